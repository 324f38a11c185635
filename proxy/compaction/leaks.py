"""Keeping the leading system prompt out of what is stored.

The next request may come under another one, so nothing of it may stand in a checkpoint, whatever
a summariser saw or guessed. What the conversation itself says is no leak, even in the same words.
"""

import re
from collections.abc import Callable, Iterable, Sequence

from proxy.compaction.checkpoint import Sections
from proxy.compaction.ledger.sentences import stems

RUN_WORDS = 4
"""So many words in a row, two of them telling, are a quotation."""

MIN_CJK = 8
"""The same for scripts without spaces, characters."""

_WORD = re.compile(r"[^\W_]+")
_DENSE = re.compile("[\u3040-\u30ff\u3400-\u9fff\u0e00-\u0e7f]{2,}")
_SENTENCE = re.compile("(?<=[.!?\u3002\uff01\uff1f])\\s+|(?<=[\u3002\uff01\uff1f])|\\n+")
_NAME = re.compile(r"[\w./-]{5,}")
_LETTER = re.compile("[A-Za-z]")
_CAPITAL = re.compile(r"\b[A-Z]\w{3,}")
_WITHIN = re.compile(r"(?<=[a-z0-9,;:] )[A-Z]\w{3,}")
"""A word that begins with a capital letter though no sentence begins with it."""

_SMALL = re.compile(r"(?<![\w.@/-])[a-z]+(?![\w@/-]|\.\w)")
"""A word in small letters that is no part of an address or a path."""

_MAX_CAPITALS = 0.15
"""Where more of the words have one, it is German, or a title: capitals tell no names there."""

_NO_PLAIN_WORD = re.compile(r"[\d_/]|[A-Z]{4}")


class Prompt:
    """The leading instructions of one request."""

    def __init__(self, texts: Sequence[str], conversation: Callable[[], Iterable[str]]) -> None:
        """Take the instructions, and what gives every text that may be told, when it is needed."""
        self._runs: set[str] = set()
        self._short: set[str] = set()
        self._names: set[str] = set()
        self._proper: set[str] = set()
        for text in texts:
            self._names.update(_names(text))
            self._proper.update(_proper(text))
            self._runs.update(_runs(text))
            for sentence in _SENTENCE.split(text):
                words = _WORD.findall(sentence.lower())
                if 1 < len(words) < RUN_WORDS and stems(sentence):
                    self._short.add(" ".join(words))
        self._conversation = conversation
        self._told: str | None = None

    def kept_out(self, body: Sections | str) -> Sections | str:
        """Return a summary without the sentences that quote the instructions."""
        if not (self._runs or self._names or self._short):
            return body
        if isinstance(body, str):
            return self._text(body)
        changes: dict[str, str | tuple[str, ...]] = {}
        for name in type(body).model_fields:
            value: str | tuple[str, ...] = getattr(body, name)
            if isinstance(value, str):
                changes[name] = self._text(value)
            else:
                changes[name] = tuple(filter(None, map(self._text, value)))
        return body.model_copy(update=changes)

    def _text(self, text: str) -> str:
        if not self._quotes(text):
            return text
        kept, at = [], 0
        for found in _SENTENCE.finditer(text):
            if not self._quotes(text[at : found.start()]):
                kept.append(text[at : found.end()])
            at = found.end()
        if not self._quotes(text[at:]):
            kept.append(text[at:])
        joined = "".join(kept).strip()
        # A quotation may go over the end of a sentence.
        return "" if self._quotes(joined) else joined

    def _quotes(self, text: str) -> bool:
        names = self._names.intersection(_names(text))
        if self._proper:
            names |= self._proper.intersection(map(str.lower, _CAPITAL.findall(text)))
        words = f" {' '.join(_WORD.findall(text.lower()))} "
        short = {run for run in self._short if f" {run} " in words}
        quoted = names | short | self._runs.intersection(_runs(text))
        return not all(map(self._is_told, quoted))

    def _is_told(self, part: str) -> bool:
        if self._told is None:
            texts = list(self._conversation())
            words = " ".join(" ".join(_WORD.findall(text.lower())) for text in texts)
            self._told = "\n".join([*texts, words, "".join(_dense("\n".join(texts)))])
        return part in self._told


def _runs(text: str) -> set[str]:
    words = _WORD.findall(text.lower())
    runs = {" ".join(words[at : at + RUN_WORDS]) for at in range(len(words) - RUN_WORDS + 1)}
    found = {run for run in runs if len(stems(run)) > 1}
    for dense in _dense(text):
        found.update(dense[at : at + MIN_CJK] for at in range(len(dense) - MIN_CJK + 1))
    return found


def _names(text: str) -> list[str]:
    found = _NAME.findall(text)
    return [n.strip("./-") for n in found if _LETTER.search(n) and _NO_PLAIN_WORD.search(n)]


def _proper(text: str) -> set[str]:
    """Return the names of persons, firms and products in a text, as far as capitals tell them."""
    found, words = _WITHIN.findall(text), _WORD.findall(text)
    if len(found) > _MAX_CAPITALS * len(words):
        return set()
    return {name.lower() for name in found}.difference(_SMALL.findall(text))


def _dense(text: str) -> list[str]:
    return [] if text.isascii() else _DENSE.findall(text)
