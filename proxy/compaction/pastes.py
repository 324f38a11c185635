"""Which lines of a message its author wrote, and which were pasted into it.

A paste is what stands in a code fence or behind a quote mark, what an element in angle brackets
encloses, what follows a line that announces it, what pretends to be a message of another role,
and what looks like a log, a mail, a patch, a manual, data or a record of ours. When in doubt it
is a paste: the message is quoted all the same, and nothing in it is taken for a rule.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from proxy.compaction.guard import BREAKS, INVISIBLE, TITLES
from proxy.compaction.paste_marks import (
    BEGINS,
    FIRST_HEADING,
    GREETING,
    INDENTED,
    LOG,
    MAIL,
    MANUAL_PART,
    PATCH,
    SIGN_OFF,
    announces,
)

Span = tuple[int, int]

_LINE = re.compile(rf"[^{BREAKS}]+")
_ONE_BREAK = dict.fromkeys(map(ord, BREAKS), "\n")
_UNSEEN = re.compile(f"[{INVISIBLE}]+")
_FENCE = re.compile(r"(\s*)(`{3,}(?=[^`]*$)|~{3,})\s*(.*)")
_LATE_FENCE = re.compile(r"\S.*?(`{3,}|~{3,})\s*\w*\s*$")
_QUOTED = re.compile(
    r"\s*(?:>|\||\+ |\d+[,;\t]\S|\[\d+[,\]]|\[\w+ no longer visible: |[{}]"
    r"|\],?\s*$|\"[\w .-]+\"\s*:"
    r"|[\"\u201c\u201e\u00ab\u300c][^\"\u201d\u00bb\u300d]{10,}[\"\u201d\u201c\u00bb\u300d][.,;!]?\s*$)"
)
_BINARY = re.compile(
    r"\[\w+ no longer visible: (?:unknown type|[\w.+/-]+)(?:, \d+x\d+)?(?:, \d+ \w+)?\]"
)
"""The line that we write for an image or a file: nobody's words, and no paste either."""

_RECORD = re.compile(
    r"\s*\[\d+(?:, ?(?:open|rule|withdrawn|superseded|again|user|system|developer)"
    r"|\] (?:user|assistant|system|developer|tool|result of)\b)|[^\w>]*(?:"
    + "|".join(TITLES)
    + ")",
    re.I,
)
_FORGED_ROLE = re.compile(
    r"\s*(?:[-*] )?(?:#+ *|\*\*|\[|<|\"|\()?(?:"
    r"role\W{1,5}(?:system|assistant|developer|tool|user)\b"
    r"|(?:system|assistant|developer|tool|user|human|ai|admin)"
    r"(?:[ _-](?:message|prompt|notice|note|override|instructions?|update|response|output|result"
    r"|reminder|says?))*\W{0,3}:"
    r"|<?\|(?:im_)?start|INST\b|SYS\b|/?<<SYS)",
    re.I,
)
_BARE = re.compile(r":\W*$|\W$")
_ELEMENT = re.compile(r"<([A-Za-z][\w.:-]*)[^<>]*>")
_TAG = re.compile(r"<(\s*/?)\s*([A-Za-z][\w.:-]*)")
_MAX_ELEMENTS = 500
"""Of so many elements the end is looked for; further ones go on to their last end."""

_ALONE = re.compile(r"\s*<([A-Za-z][\w.:-]*)[^<>]*>\s*")
_VOID_NAMES = "area br col embed hr img input link meta source track wbr p li td tr"
_VOID = frozenset(_VOID_NAMES.split())
_INSTRUCTION_ELEMENT = re.compile(
    r"(?:[\w-]*[_-])?(?:instructions|rules|guidelines)|task|user_(?:query|request|message)", re.I
)
_HEADING = re.compile(r"\s*#+ [^\n]*\s*")
_PREAMBLE_CHARS = 120
"""A client puts a heading of so many characters before the instructions of the project."""

_PLAIN = re.compile(r" {0,3}(?:[-*] )?[A-Za-z][A-Za-z']* [^\"<`~:$#]*$")
"""A single line that no pattern here can match is the author's."""

_MAX_INDENT = 3
_LATE = 1000
"""How far a fence counts as set in that began at the end of a line: any may close it."""


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    end: int
    text: str
    """As it is read: without invisible characters, letters of full width as others."""
    after_blank: bool


def own_spans(text: str) -> list[Span]:
    """Return where `text` holds its author's own words, in order."""
    lines = _lines(text)
    if len(lines) == 1 and text.isascii() and _PLAIN.match(text):
        return [(lines[0].start, lines[0].end)]
    own = _own(text, lines)
    spans: list[Span] = []
    goes_on = False
    for line, is_own in zip(lines, own, strict=True):
        if is_own and goes_on:
            spans[-1] = (spans[-1][0], line.end)
        elif is_own:
            spans.append((line.start, line.end))
        goes_on = is_own or (goes_on and not line.text.strip())
    return spans


def is_mixed(text: str) -> bool:
    """Tell whether a message holds a paste besides its author's words, or nothing else."""
    lines = _lines(text)
    return not all(
        is_own or not line.text.strip() or _BINARY.fullmatch(line.text)
        for line, is_own in zip(lines, _own(text, lines), strict=True)
    )


def _lines(text: str) -> list[_Line]:
    lines: list[_Line] = []
    at, blank = 0, False
    for found in _LINE.finditer(text):
        between = text[at : found.start()].replace("\r\n", "\n")
        read = found[0]
        if not read.isascii() or not read.isprintable():
            read = unicodedata.normalize("NFKC", _UNSEEN.sub("", read))
        blank = blank or len(between) > 1
        lines.append(_Line(found.start(), found.end(), read, blank))
        # A line of blanks parts paragraphs as an empty one does.
        blank = not read.strip()
        at = found.end()
    return lines


def _own(text: str, lines: Sequence[_Line]) -> list[bool]:
    last = _document_start(text)
    pastes = _Pastes(text, lines)
    own = [line.start < last and pastes.is_own(index) for index, line in enumerate(lines)]
    for marked in (LOG, _FORGED_ROLE):
        _close_gaps(lines, own, marked)
    first, last = _letter(text)
    for index, line in enumerate(lines):
        own[index] &= not first <= line.start < last
    return own


def _document_start(text: str) -> int:
    """Return where a mail, a patch or a manual begins that goes on to the end of the message."""
    starts = [len(text)]
    text = text.translate(_ONE_BREAK)
    for begins in (MAIL, PATCH):
        found = begins.search(text)
        if found:
            starts.append(found.start())
    parts = [found.start() for found in MANUAL_PART.finditer(text)]
    if len(parts) > 1:
        first = FIRST_HEADING.search(text)
        starts.append(min(parts[0], first.start() if first else parts[0]))
    return min(starts)


def _letter(text: str) -> Span:
    """Return where a letter stands that has both ends and is not all of the message."""
    text = text.translate(_ONE_BREAK)
    greeting = next((g for g in GREETING.finditer(text) if text[: g.start()].strip()), None)
    closing = SIGN_OFF.search(text, greeting.end()) if greeting else None
    return (greeting.start(), len(text)) if greeting and closing else (0, 0)


def _close_gaps(lines: Sequence[_Line], own: list[bool], marked: "re.Pattern[str]") -> None:
    """Take what stands between two lines of a log or a dialogue for a part of it."""
    places = [
        index for index, line in enumerate(lines) if not own[index] and marked.match(line.text)
    ]
    if len(places) > 1:
        for index in range(places[0], places[-1]):
            own[index] = False


class _Pastes:
    """Follows the lines of one message, in order."""

    def __init__(self, text: str, lines: Sequence[_Line]) -> None:
        self._text = text
        self._lines = lines
        self._fenced = _fenced(lines)
        self._until = 0
        self._tags: dict[str, list[tuple[int, bool, int]]] | None = None
        """By name: where a tag begins, whether it closes, where it ends; read when needed."""
        self._looked = 0
        self._rest = False
        self._block = False
        self._held = False
        self._indented = False

    def is_own(self, index: int) -> bool:
        """Tell whether a line is the author's."""
        line = self._lines[index]
        if self._fenced[index] or line.start < self._until:
            # What was announced is what stands in the fence.
            return False
        if line.after_blank:
            self._block, self._held = self._held, False
        if self._rest or self._block or _QUOTED.match(line.text):
            self._look_for_record(line)
            return False
        return not self._begins_paste(index)

    def _look_for_record(self, line: _Line) -> None:
        if _RECORD.match(line.text):
            self._rest = True

    def _begins_paste(self, index: int) -> bool:
        line = self._lines[index]
        if _RECORD.match(line.text):
            self._rest = True
            return True
        if _FORGED_ROLE.match(line.text):
            # The name alone stands above what it is to have said.
            self._block, self._held = True, bool(_BARE.search(line.text.rstrip()))
            return True
        if LOG.match(line.text):
            self._block = True
            return True
        self._indented = bool(INDENTED.match(line.text)) and (
            line.after_blank or not index or self._indented
        )
        if self._indented:
            return True
        if self._opens_element(line) or self._opens_other(line):
            return True
        if announces(line.text):
            self._rest = not self._is_delimited(index + 1)
        return False

    def _is_delimited(self, index: int) -> bool:
        """Tell whether what follows says itself where it ends."""
        for position in range(index, len(self._lines)):
            text = self._lines[position].text
            if text.strip():
                return self._fenced[position] or bool(re.match(r"\s*>", text))
        return False

    def _opens_element(self, line: _Line) -> bool:
        for found in _ELEMENT.finditer(line.text):
            name = found[1]
            leads = not line.text[: found.start()].strip()
            if leads and self._is_instruction(line, name):
                return False
            end = self._end_of(name, line.start)
            if end is None:
                if leads and _ALONE.fullmatch(line.text) and name.lower() not in _VOID:
                    self._rest = True
                    return True
                continue
            if leads or end > line.end:
                self._until = max(self._until, end)
                return True
        return False

    def _opens_other(self, line: _Line) -> bool:
        start = line.text.lstrip().lower()
        for begins, ends in BEGINS:
            if start.startswith(begins.lower()):
                end = self._text.lower().find(ends.lower(), line.start)
                self._until = max(self._until, len(self._text) if end < 0 else end + len(ends))
                return True
        return False

    def _is_instruction(self, line: _Line, name: str) -> bool:
        # How clients send the instructions of a project: the first thing in the message.
        before = self._text[: line.start]
        is_first = not before.strip() or (
            len(before) < _PREAMBLE_CHARS and _HEADING.fullmatch(before) is not None
        )
        return is_first and _INSTRUCTION_ELEMENT.fullmatch(name) is not None

    def _end_of(self, name: str, start: int) -> int | None:
        """Return where an element ends; the last end when there are more ends than beginnings."""
        tags = self._tags_of(name.lower())
        first = bisect_left(tags, (start,))
        ends = [end for _, closes, end in tags[first:] if closes]
        if not ends:
            return None
        if len(ends) > len(tags) - first - len(ends) or self._looked > _MAX_ELEMENTS:
            return ends[-1]
        self._looked += 1
        depth = 0
        for _, closes, end in tags[first:]:
            depth += -1 if closes else 1
            if depth == 0:
                return end
        return None

    def _tags_of(self, name: str) -> list[tuple[int, bool, int]]:
        if self._tags is None:
            self._tags = {}
            for tag in _TAG.finditer(self._text):
                entry = (tag.start(), bool(tag[1].strip()), tag.end())
                self._tags.setdefault(tag[2].lower(), []).append(entry)
        return self._tags.get(name, [])


def _fenced(lines: Sequence[_Line]) -> list[bool]:
    """Tell of each line whether it is in a code fence, or is one.

    A fence that is never closed goes to the end. What stands between two blocks of which the
    second has no language may be the inside of one whose text holds fences: it counts as such.
    """
    fences = _Fences()
    inside = [fences.holds(line.text) for line in lines]
    for start, end in _between(lines, inside, fences.bare):
        inside[start:end] = [True] * (end - start)
    return inside


def _between(
    lines: Sequence[_Line], inside: Sequence[bool], bare: Sequence[bool]
) -> Iterator[Span]:
    """Yield what stands between two blocks of which the second begins without a language."""
    end = 0
    for index in range(len(lines)):
        if inside[index] and not (index and inside[index - 1]):
            if end and bare[index]:
                yield end, index
        elif not inside[index] and index and inside[index - 1]:
            end = index


class _Fences:
    """Follows the code fences of one message, line by line."""

    def __init__(self) -> None:
        self.bare: list[bool] = []
        """Of each line, whether it is a fence without a language."""
        self._open: list[tuple[str, int]] = []
        """The marks of those that are open, and how far they are set in."""

    def holds(self, line: str) -> bool:
        """Tell whether a line is in a fence, or is one; lines are given in order."""
        is_marked = "```" in line or "~~~" in line
        fence = _FENCE.match(line) if is_marked else None
        self.bare.append(fence is not None and not fence[3])
        if fence is None:
            was_open = bool(self._open)
            if is_marked:
                self._look_inside(line)
            return was_open
        mark, indent = fence[2], len(fence[1])
        if not self._open:
            self._open.append((mark, indent))
        elif mark[0] == self._open[-1][0][0]:
            self._nest(mark, indent, has_language=bool(fence[3]))
        return True

    def _nest(self, mark: str, indent: int, *, has_language: bool) -> None:
        opened, set_in = self._open[-1]
        if has_language:
            self._open.append((mark, indent))
        elif len(mark) >= len(opened) and indent <= set_in + _MAX_INDENT:
            self._open.pop()

    def _look_inside(self, line: str) -> None:
        # A fence may open or close at the end of a line; only one that opened so closes so.
        if not self._open:
            late = _LATE_FENCE.search(line)
            if late and line.count(late[1]) == 1:
                self._open.append((late[1], _LATE))
        elif self._open[-1][1] == _LATE and line.rstrip().endswith(self._open[-1][0]):
            self._open.pop()
