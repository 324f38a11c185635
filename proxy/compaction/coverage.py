"""What a summary must not lose, and must not claim.

A summariser's sections are checked against the originals. Instructions are whole sentences of
what was said, word for word; what quotes nobody becomes a discovery, a part of a sentence becomes
the sentence with what leads to it, and a rule that was withdrawn or replaced goes. What a tool
printed is no goal and no plan. What the summary before held and the new one dropped is put back:
instructions that are still in force, files, open steps.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from proxy.compaction.checkpoint import Sections
from proxy.compaction.guard import BREAKS, as_entry
from proxy.compaction.ledger.addressed import is_instruction
from proxy.compaction.ledger.quotes import HINT, Quote
from proxy.compaction.ledger.rules import is_rule
from proxy.compaction.ledger.sentences import MAX_SENTENCE_CHARS, sentences, stems
from proxy.compaction.plain_text import sections_in, with_kept

MAX_FILES = 60
MAX_STEPS = 12
MAX_KEPT_CHARS = 4000
"""So much of an earlier summary is put back at most, the newest."""

_WORD = re.compile(r"\w+")
_SHARED_WORDS = 0.75
_SHARED_CJK = 0.6
_VERB = 2
_RUN = 3
_PRINTED_RUNS = 0.5
"""What repeats so many of its runs of three words from a tool's output is from there."""

_PIECES = re.compile(rf"(?<=[.!?\u3002\uff01\uff1f])\s+|[{BREAKS}]+")
_DONE = re.compile(
    r"\b(?:done|finished|completed?|written|fixed|added|ran|passe[sd]|implemented|resolved|removed"
    r"|updated|created|merged|deployed|works|erledigt|fertig|abgeschlossen|geschrieben|behoben"
    r"|terminée?|faite?|hecho|listo|fatto|feito|готов\w*|сделан\w*|заверш\w*)\b|完了|済|已|完成|완료",
    re.I,
)
_NOT = re.compile(
    r"\b(?:not|yet|never|still|remain\w*|to be|nicht|noch|pas encore|aún|non|ainda|не|ещё)\b|未"
    r"|まだ|아직|n['\u2019]t\b",
    re.I,
)
_CJK = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7ff]")
_LEADS_ON = re.compile(r"[:;,(\uff1a\uff1b\uff0c\u3001\u2013\u2014-][\"'*_]*$")
_GOES_ON = re.compile(r"[;,\uff1b\uff0c\u3001][\"'*_]*$")
_CONTINUES = re.compile(r"[\W\d_]*[a-z\u00df-\u00f6\u00f8-\u00ff\u0430-\u044f]")
_ITEM = re.compile(r"(?:[-*+\u2022\u2013]|\(?\w{1,3}[.)])\s")


def cover(
    summary: Sections,
    quotes: Sequence[Quote],
    previous: Sections | str | None,
    printed: Callable[[], Iterable[str]] = tuple,
) -> Sections:
    """Return the summary with its instructions grounded and what it dropped put back.

    Args:
        summary: what the summariser wrote.
        quotes: what was said, with what became of it; only user and mid-transcript system text.
            What a tool printed is never among them, so it can never become an instruction.
        previous: the summary that it went on from, if there was one.
        printed: gives what tools were asked and printed; called when there is something to check.
    """
    said = _Said(quotes)
    instructions, discoveries = list[str](), list(summary.discoveries)
    for entry in summary.instructions:
        sentence = said.sentence_of(entry)
        if sentence is None:
            discoveries.append(entry)
        elif sentence:
            instructions.append(sentence)
    summary, promoted = _Printed(printed, said).taken_from(summary)
    files, steps = summary.relevant_files, summary.next_steps
    if previous is not None:
        before = sections_in(previous) if isinstance(previous, str) else previous
        instructions += filter(None, map(said.sentence_of, before.instructions))
        files = _with_dropped(files, before.relevant_files, MAX_FILES)
        open_steps = _unsettled(before.next_steps, _told(summary))
        steps = _with_dropped(steps, open_steps, MAX_STEPS)
    return summary.model_copy(
        update={
            "instructions": tuple(dict.fromkeys(instructions)),
            "discoveries": tuple(dict.fromkeys((*discoveries, *promoted))),
            "relevant_files": files,
            "next_steps": steps,
        }
    )


def cover_text(
    text: str,
    quotes: Sequence[Quote],
    previous: Sections | str | None,
    printed: Callable[[], Iterable[str]] = tuple,
) -> str:
    """Return a summary in plain text with what it does not mention of the one before.

    The instructions in front of it are grounded as those of sections are, and what only a tool
    asked for is marked.
    """
    said = _Said(quotes)
    text = _Printed(printed, said).marked_in(text)
    if previous is None:
        return text
    before = sections_in(previous) if isinstance(previous, str) else previous
    # What only running text tells would not be read again by whoever goes on from it.
    known = sections_in(text)
    found = filter(None, map(said.sentence_of, before.instructions))
    done = [line for line in _PIECES.split(text) if _DONE.search(line) and not _NOT.search(line)]
    steps = _unsettled(before.next_steps, (*done, *known.next_steps))
    kept = Sections(
        instructions=_within(_missing("\n".join(known.instructions), dict.fromkeys(found))),
        next_steps=_within([*steps][-MAX_STEPS:]),
        relevant_files=_within(
            _missing("\n".join(known.relevant_files), before.relevant_files)[-MAX_FILES:]
        ),
    )
    return with_kept(text, kept)


class _Said:
    """Everything that was said, as one line of words that quotes are looked up in."""

    def __init__(self, quotes: Sequence[Quote]) -> None:
        self._quotes = quotes
        self._squashed = [f" {squash(quote.text)} " for quote in quotes]

    def sentence_of(self, entry: str) -> str | None:
        """Return the sentence that `entry` quotes; empty when it no longer holds, None if none.

        The newest message whose author says it counts; to repeat it from a paste, or to ask about
        it, is not to say it.
        """
        wanted = _bounded(squash(entry))
        if not wanted.strip():
            return None
        is_quoted = False
        for quote, text in zip(reversed(self._quotes), reversed(self._squashed), strict=True):
            if wanted in text:
                is_quoted = True
                whole = "" if quote.is_over else self._whole(quote, wanted)
                if whole is not None:
                    return whole
        return "" if is_quoted else None

    def _whole(self, quote: Quote, wanted: str) -> str | None:
        spans = list(sentences(quote.text))
        pieces = [quote.text[start:end] for start, end in spans]
        squashed = list(map(squash, pieces))
        # Where each sentence begins in the line of all of them.
        starts = list(accumulate((len(piece) + 1 for piece in squashed), initial=1))
        at = f" {' '.join(squashed)} ".find(wanted)
        if at < 0:
            return None
        touched = [
            index
            for index, start in enumerate(starts[:-1])
            if start < at + len(wanted) and at < start + len(squashed[index])
        ]
        if not touched or all(_asks(pieces[index]) for index in touched):
            return None
        if any(_is_over(quote, pieces[index]) for index in touched):
            touched = [index for index in touched if not _is_over(quote, pieces[index])]
            return " ".join(pieces[index] for index in touched)
        first, last = _led(quote.text, spans, touched[0]), touched[-1]
        while last + 1 < len(pieces) and _GOES_ON.search(pieces[last]):
            last += 1
        whole = " ".join(pieces[first : last + 1])
        # What cannot be shown with all that belongs to it is left to the message itself.
        return whole if len(whole) <= 2 * MAX_SENTENCE_CHARS else ""


def _led(text: str, spans: Sequence[tuple[int, int]], index: int) -> int:
    """Return where begins what a sentence cannot stand without: its list's title, its own head."""
    while index:
        start, end = spans[index]
        before_start, before_end = spans[index - 1]
        piece, before = text[start:end], text[before_start:before_end]
        parted = text[before_end:start]
        if _ITEM.match(piece) and "\n\n" not in parted.replace("\r", ""):
            head = _head_of_list(text, spans, index)
            if head is None:
                return index
            index = head
        elif parted.strip() or not (
            _LEADS_ON.search(before)
            or (_CONTINUES.match(piece) and before[-1:] != "\n")
            or (len(before) > MAX_SENTENCE_CHARS // 2 and before[-1:].isalnum())
        ):
            return index
        else:
            index -= 1
    return index


def _head_of_list(text: str, spans: Sequence[tuple[int, int]], index: int) -> int | None:
    while index and _ITEM.match(text[slice(*spans[index])]):
        index -= 1
    return index if _LEADS_ON.search(text[slice(*spans[index])]) else None


def _asks(sentence: str) -> bool:
    return sentence.rstrip("\"')*_ ").endswith(("?", "\uff1f")) and not is_rule(sentence)


def _bounded(words: str) -> str:
    # Scripts without spaces have no word ends to go by.
    head = "" if not words or _CJK.match(words[0]) else " "
    tail = "" if not words or _CJK.match(words[-1]) else " "
    return f"{head}{words}{tail}"


class _Printed:
    """What tools were asked and printed, to tell where a request in a summary comes from."""

    def __init__(self, texts: Callable[[], Iterable[str]], said: _Said) -> None:
        self._texts = texts
        self._said = said
        self._words: str | None = None

    def taken_from(self, summary: Sections) -> tuple[Sections, list[str]]:
        """Return the summary without requests that only tools made, and these, marked as such."""
        changes: dict[str, str | tuple[str, ...]] = {}
        promoted: list[str] = []
        for name in ("goal", "accomplished", "current_state", "next_steps", "relevant_files"):
            value: str | tuple[str, ...] = getattr(summary, name)
            entries = (value,) if isinstance(value, str) else value
            kept = tuple(self._without(entry, promoted) for entry in entries)
            changes[name] = kept[0] if isinstance(value, str) else tuple(filter(None, kept))
        return summary.model_copy(update=changes), promoted

    def marked_in(self, text: str) -> str:
        """Return a text in which the requests that only tools made are marked as such."""
        marked, at = list[str](), 0
        for found in (*_PIECES.finditer(text), None):
            end, joint = (found.start(), found[0]) if found else (len(text), "")
            piece = text[at:end]
            marked += [_marked(piece) if self._is_printed(piece) else piece, joint]
            at = end + len(joint)
        return "".join(marked)

    def _without(self, entry: str, promoted: list[str]) -> str:
        pieces = [piece for piece in _PIECES.split(entry) if piece]
        if not (is_instruction(entry) or any(map(is_instruction, pieces))):
            return entry
        found = [piece for piece in pieces if self._is_printed(piece)]
        if not found:
            return entry
        promoted += map(_marked, found)
        return " ".join(piece for piece in pieces if piece not in found)

    def _is_printed(self, piece: str) -> bool:
        words = squash(piece).split()
        if len(words) < _RUN or not is_instruction(piece) or self._said.sentence_of(piece):
            return False
        if self._words is None:
            self._words = f" {squash(' '.join(self._texts()))} "
        # A summariser may have put a word before it or behind it.
        runs = [" ".join(words[at : at + _RUN]) for at in range(len(words) - _RUN + 1)]
        return sum(f" {run} " in self._words for run in runs) >= _PRINTED_RUNS * len(runs)


_MARK = "printed or pasted, not asked for: "


def _marked(piece: str) -> str:
    return piece if _MARK in piece else f'{_MARK}"{as_entry(piece)}"'


def _is_over(quote: Quote, sentence: str) -> bool:
    noted = " ".join(sentence.split())[:100]
    return any(noted in mark for mark in quote.marks if HINT not in mark and _ENDS.match(mark))


_ENDS = re.compile("withdrawn|superseded")


def squash(text: str) -> str:
    """Return the words of a text alone, so that spelling and marks do not count."""
    return " ".join(_WORD.findall(text.lower()))


def _with_dropped(new: Sequence[str], old: Iterable[str], most: int) -> tuple[str, ...]:
    return (*_within(_missing("\n".join(new), old)[-most:]), *new)


def _missing(text: str, entries: Iterable[str]) -> list[str]:
    """Return the entries that a text does not hold as words of their own."""
    words = f" {squash(text)} "
    found = ((entry, squash(entry)) for entry in entries)
    return [entry for entry, wanted in found if wanted and _bounded(wanted) not in words]


def _within(entries: Sequence[str]) -> tuple[str, ...]:
    kept: list[str] = []
    left = MAX_KEPT_CHARS
    for entry in reversed(entries):
        left -= len(entry)
        if left < 0:
            break
        kept.append(entry)
    return tuple(reversed(kept))


def _told(summary: Sections) -> Iterator[str]:
    yield from (*summary.accomplished, *summary.next_steps, summary.current_state)


def _unsettled(steps: Sequence[str], lines: Iterable[str]) -> Iterator[str]:
    """Yield earlier steps that the new summary says nothing of, neither done nor planned."""
    told = [(stems(line), {word[:_VERB] for word in squash(line).split()}) for line in lines]
    for step in steps:
        words, verb = stems(step), squash(step).partition(" ")[0]
        rest = words - stems(verb)
        share = _SHARED_CJK if _CJK.search(step) else _SHARED_WORDS
        for line, starts in told:
            # Of a verb only the beginning stays as it is: write, wrote, written.
            if rest and rest <= line and verb[:_VERB] in starts:
                break
            if len(words & line) >= share * len(words):
                break
        else:
            if words:
                yield step
