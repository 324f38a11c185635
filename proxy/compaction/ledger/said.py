"""What a message states: its rules and facts, each with its place.

It depends on the text alone, so it is remembered from one compaction to the next. Nothing here
knows the other messages; `quotes` does.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from proxy.compaction.ledger import closings, rules, sentences, withdrawals
from proxy.compaction.ledger.findings import Findings
from proxy.compaction.ledger.pastes import Span
from proxy.compaction.ledger.rules import Statement

MAX_STATEMENTS = 200
"""What one message may state; of more, the first and the last count."""

MAX_EXACT_CHARS = 2000

MAX_LINE_CHARS = 300
"""A statement keeps its whole line with it when that is no longer than this."""

REMEMBERED_BYTES = 4 * 2**20
"""For what messages state: enough for some megabytes of them."""

_PART_BYTES = 350


class _Part(NamedTuple):
    """A statement as it is remembered: its words are read again where it stands."""

    start: int
    end: int
    is_rule: bool
    takes_back: bool
    is_pasted: bool
    words: str
    pattern: str
    form: str
    """The pattern of its whole line, unless that is a rule."""


class _Said(NamedTuple):
    parts: tuple[_Part, ...]
    is_mixed: bool


def statements(text: str, number: int) -> tuple[list[Statement], bool]:
    """Return what a message states, in order, and whether a part of it is not its author's own.

    Args:
        text: the message.
        number: its place among the messages.
    """
    said = _SAID.of(text)
    whole = len(text.strip()) if said.parts else 0
    return [_statement(text, number, part, whole) for part in said.parts], said.is_mixed


def _statement(text: str, number: int, part: _Part, whole: int) -> Statement:
    return Statement(
        text[part.start : part.end],
        number,
        part.start,
        part.end,
        part.is_rule,
        frozenset(part.words.split()),
        is_alone=part.end - part.start == whole and not part.is_pasted,
        takes_back=part.takes_back,
        is_pasted=part.is_pasted,
        pattern=part.pattern,
    )


def forms(text: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a message that state something and are no rules, behind their patterns.

    They are in order; those without a pattern are left out.
    """
    for part in _SAID.of(text).parts:
        if part.form:
            start, end = line_of(text, part.start, part.end)
            yield part.form, text[start:end].strip()


def line_of(text: str, start: int, end: int) -> Span:
    """Return where a statement stands with its whole line, or alone when that is long."""
    first, last = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    last = len(text) if last < 0 else last
    return (first, last) if last - first <= MAX_LINE_CHARS else (start, end)


def _read(text: str) -> _Said:
    spans, is_mixed = sentences.read(text)
    found = list(_found(text, spans))
    found += closings.statements(text, 0, found[-1].end if found else 0)
    if len(found) > MAX_STATEMENTS:
        half = MAX_STATEMENTS // 2
        found = found[:half] + found[-half:]
    return _Said(tuple(_parts(text, found)), is_mixed)


def _found(text: str, spans: Sequence[Span]) -> Iterator[Statement]:
    # Numbers in a long paste are many, and seldom what its author stated.
    exact = len(text) <= MAX_EXACT_CHARS
    for start, end in spans:
        sentence = text[start:end]
        takes_back = withdrawals.read(sentence) is not None
        is_rule = takes_back or rules.is_rule(sentence)
        if not is_rule and sentence.endswith("?"):
            continue
        if is_rule or (exact and rules.has_value(sentence)) or rules.is_labelled(sentence):
            words = rules.subject(sentence)
            yield Statement(sentence, 0, start, end, is_rule, words, takes_back=takes_back)


def _parts(text: str, found: Sequence[Statement]) -> Iterator[_Part]:
    forms: dict[Span, str] = {}
    for each in found:
        pattern = rules.pattern(each.text)
        place = line_of(text, each.start, each.end)
        if place not in forms:
            forms[place] = _form(text[slice(*place)].strip(), each, pattern)
        yield _Part(
            each.start,
            each.end,
            each.is_rule,
            each.takes_back,
            each.is_pasted,
            " ".join(sorted(each.words)),
            pattern,
            forms[place],
        )


def _form(line: str, each: Statement, pattern: str) -> str:
    if len(line) > MAX_LINE_CHARS:
        return ""
    is_known = line == each.text and not (each.takes_back or each.is_pasted)
    if each.is_rule if is_known else rules.is_rule(line):
        return ""
    return pattern if line == each.text else rules.pattern(line)


def _size(said: _Said) -> int:
    return sum(_PART_BYTES + len(part.words) + 2 * len(part.pattern) for part in said.parts)


_SAID = Findings(lambda texts: _read(*texts), _size, REMEMBERED_BYTES)
