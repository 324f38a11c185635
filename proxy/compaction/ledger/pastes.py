"""Which lines of a message its author wrote, and which were pasted into it.

A paste is what stands in a code fence or behind a quote mark, what an element in angle brackets
encloses, what follows a line that announces it, what pretends to be a message of another role,
and what looks like a log, a mail, a patch, a manual, data or a record of ours. When in doubt it
is a paste: the message is quoted all the same, and nothing in it is taken for a rule.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

from proxy.compaction.guard import BREAKS, INVISIBLE, TITLES
from proxy.compaction.ledger.fences import fenced
from proxy.compaction.ledger.paste_marks import (
    BEGINS,
    INDENTED,
    LOG,
    MARKED_BEGIN,
    MARKED_END,
    TRIPLE,
    Span,
    announces,
    documents,
    folded,
    may_be_log,
)
from proxy.compaction.ledger.tags import Tags, tags_of

__all__ = ["Span", "is_mixed", "own_spans", "read"]

_LINE = re.compile(rf"[^{BREAKS}]+")
_ODD = re.compile(r"[^\n\t -~]")
"""A text without such has only line feeds for breaks, and its lines are read as they stand."""

_UNSEEN = re.compile(f"[{INVISIBLE}]+")
_QUOTED = re.compile(
    r"\s*(?:>|\||\+ |\d+[,;\t]\S|\[\d+[,\]]|\[\w+ no longer visible: |[{}]"
    r"|\],?\s*$|\"[\w .-]+\"\s*:"
    r"|[\"\u201c\u201e\u00ab\u300c][^\"\u201d\u00bb\u300d]{10,}[\"\u201d\u201c\u00bb\u300d][.,;!]?\s*$)"
    r""
)
_BINARY = re.compile(
    r"\[\w+ no longer visible: (?:unknown type"
    r"|[\w.+/-]+)(?:, \d+x\d+)?(?:, \d+ \w+)?(?:, [\w ()+@&.,-]+)?\]"
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
_ROLES = (
    *("role", "system", "assistant", "developer", "tool", "user", "human", "ai", "admin", "inst"),
    "sys",
)
"""How such a line begins when it begins with a letter."""

_NAMES = (*TITLES, *_ROLES)

_BARE = re.compile(r"\W")
_ELEMENT = re.compile(r"<([A-Za-z][\w.:-]*+)[^<>]*+>")
_MAX_ELEMENTS = 500
"""Of so many elements the end is looked for; further ones go on to their last end."""

_BEGINNINGS = ("<!", "[", "\\", "-----")
"""How all of `BEGINS` begin."""

_ALONE = re.compile(r"\s*<([A-Za-z][\w.:-]*+)[^<>]*+>\s*")
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

_BEGINNING = max(map(len, TITLES))


class _Line(NamedTuple):
    start: int
    end: int
    text: str
    """As it is read: without invisible characters, letters of full width as others."""
    head: str
    """The same without blanks in front; empty for a line of blanks."""
    after_blank: bool


def own_spans(text: str) -> list[Span]:
    """Return where `text` holds its author's own words, in order."""
    lines = _lines(text)
    if len(lines) == 1 and text.isascii() and _PLAIN.match(text):
        return [(lines[0].start, lines[0].end)]
    return _spans(lines, _own(text, lines))


def read(text: str) -> tuple[list[Span], bool]:
    """Return what `own_spans` and `is_mixed` find in a text, which is read once."""
    lines = _lines(text)
    own = _own(text, lines)
    if len(lines) == 1 and text.isascii() and _PLAIN.match(text):
        return [(lines[0].start, lines[0].end)], _is_mixed(lines, own)
    return _spans(lines, own), _is_mixed(lines, own)


def _spans(lines: Sequence[_Line], own: Sequence[bool]) -> list[Span]:
    spans: list[Span] = []
    goes_on = False
    for line, is_own in zip(lines, own, strict=True):
        if is_own and goes_on:
            spans[-1] = (spans[-1][0], line.end)
        elif is_own:
            spans.append((line.start, line.end))
        goes_on = is_own or (goes_on and not line.head)
    return spans


def is_mixed(text: str) -> bool:
    """Tell whether a message holds a paste besides its author's words, or nothing else."""
    lines = _lines(text)
    return _is_mixed(lines, _own(text, lines))


def _is_mixed(lines: Sequence[_Line], own: Sequence[bool]) -> bool:
    return not all(
        is_own or not line.head or _BINARY.fullmatch(line.text)
        for line, is_own in zip(lines, own, strict=True)
    )


def _lines(text: str) -> list[_Line]:
    if not _ODD.search(text):
        return _plain_lines(text)
    lines: list[_Line] = []
    at, blank = 0, False
    for found in _LINE.finditer(text):
        between = text[at : found.start()].replace("\r\n", "\n")
        read = found[0]
        if not read.isascii() or not read.isprintable():
            read = unicodedata.normalize("NFKC", _UNSEEN.sub("", read))
        head = read.lstrip()
        lines.append(_Line(found.start(), found.end(), read, head, blank or len(between) > 1))
        # A line of blanks parts paragraphs as an empty one does.
        blank = not head
        at = found.end()
    return lines


def _plain_lines(text: str) -> list[_Line]:
    lines: list[_Line] = []
    at, breaks, blank = 0, 0, False
    for read in text.split("\n"):
        end = at + len(read)
        if read:
            head = read.lstrip()
            lines.append(_Line(at, end, read, head, blank or breaks > 1))
            breaks, blank = 0, not head
        at = end + 1
        breaks += 1
    return lines


def _own(text: str, lines: Sequence[_Line]) -> list[bool]:
    last, letter = documents(text)
    pastes = _Pastes(text, lines)
    own = [line.start < last and pastes.is_own(index) for index, line in enumerate(lines)]
    for looks in (_is_log, _is_forged_role):
        _close_gaps(lines, own, looks)
    first, last = letter
    for index, line in enumerate(lines if last else ()):
        own[index] &= not first <= line.start < last
    return own


def _close_gaps(lines: Sequence[_Line], own: list[bool], looks: Callable[[_Line], bool]) -> None:
    """Take what stands between two lines of a log or a dialogue for a part of it."""
    others = [index for index, is_own in enumerate(own) if not is_own]
    first = next((index for index in others if looks(lines[index])), None)
    if first is not None:
        last = next(index for index in reversed(others) if looks(lines[index]))
        own[first:last] = [False] * (last - first)


def _begins_with_letter(line: _Line) -> bool:
    return line.head[:1].isascii() and line.head[:1].isalpha()


def _is_log(line: _Line) -> bool:
    return may_be_log(line.text, line.head) and LOG.match(line.text) is not None


def _is_quoted(line: _Line) -> bool:
    return not _begins_with_letter(line) and _QUOTED.match(line.text) is not None


def _may_be_named(line: _Line) -> bool:
    """Tell whether a line may begin with a title of ours or with a role."""
    if not _begins_with_letter(line):
        return bool(line.head)
    return folded(line.head[:_BEGINNING]).startswith(_NAMES)


def _is_record(line: _Line) -> bool:
    return _may_be_named(line) and _RECORD.match(line.text) is not None


def _is_forged_role(line: _Line) -> bool:
    return _may_be_named(line) and _FORGED_ROLE.match(line.text) is not None


class _Pastes:
    """Follows the lines of one message, in order."""

    def __init__(self, text: str, lines: Sequence[_Line]) -> None:
        self._text = text
        self._lines = lines
        self._fenced = fenced([line.text for line in lines])
        self._until = 0
        self._tags: dict[str, Tags] | None = None
        """By name; read when needed."""
        self._low = ""
        """The text in small letters, when needed."""
        self._begins = len(text) - len(text.lstrip())
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
        if self._rest or self._block or _is_quoted(line):
            self._rest = self._rest or _is_record(line)
            return False
        return not self._begins_paste(index)

    def _begins_paste(self, index: int) -> bool:
        line = self._lines[index]
        may_be_named = _may_be_named(line)
        if may_be_named and _RECORD.match(line.text):
            self._rest = True
            return True
        if may_be_named and _FORGED_ROLE.match(line.text):
            # The name alone stands above what it is to have said.
            self._block, self._held = True, bool(_BARE.match(line.text.rstrip()[-1:]))
            return True
        if _is_log(line):
            self._block = True
            return True
        self._indented = (
            line.text.startswith(("    ", "\t"))
            and bool(INDENTED.match(line.text))
            and (line.after_blank or not index or self._indented)
        )
        if self._indented:
            return True
        if "<" in line.text and self._opens_element(line):
            return True
        if self._opens_other(line):
            return True
        if announces(line.text):
            self._rest = not self._is_delimited(index + 1)
        return False

    def _is_delimited(self, index: int) -> bool:
        """Tell whether what follows says itself where it ends."""
        for position in range(index, len(self._lines)):
            head = self._lines[position].head
            if head:
                return self._fenced[position] or head.startswith(">")
        return False

    def _opens_element(self, line: _Line) -> bool:
        for found in _ELEMENT.finditer(line.text):
            name = found[1]
            leads = found.start() == len(line.text) - len(line.head)
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
        if opened := MARKED_BEGIN.match(line.head):
            closed = (TRIPLE if opened["triple"] else MARKED_END).search(self._text, line.end)
            self._until = max(self._until, closed.end() if closed else len(self._text))
            return True
        if not line.head.startswith(_BEGINNINGS):
            return False
        start = line.head.lower()
        for begins, ends in BEGINS:
            if start.startswith(begins.lower()):
                self._low = self._low or self._text.lower()
                end = self._low.find(ends.lower(), line.start)
                self._until = max(self._until, len(self._text) if end < 0 else end + len(ends))
                return True
        return False

    def _is_instruction(self, line: _Line, name: str) -> bool:
        # How clients send the instructions of a project: the first thing in the message.
        if not _INSTRUCTION_ELEMENT.fullmatch(name):
            return False
        if self._begins >= line.start:
            return True
        before = self._text[: min(line.start, _PREAMBLE_CHARS)]
        return line.start < _PREAMBLE_CHARS and _HEADING.fullmatch(before) is not None

    def _end_of(self, name: str, start: int) -> int | None:
        """Return where an element ends; the last end when there are more ends than beginnings."""
        if self._tags is None:
            self._tags = tags_of(self._text)
        tags = self._tags.get(name.lower())
        first = tags.first(start) if tags else 0
        if tags is None or first > tags.last_closing:
            return None
        opening, closing = tags.counts(first)
        if closing > opening or self._looked > _MAX_ELEMENTS:
            return tags.ends[tags.last_closing]
        self._looked += 1
        return tags.balanced(first)
