"""Lines that state something exact, and which of them a newer one replaces.

A line names what it is about (its subject) and where it comes from (its source: a file, a
command, a tool, the assistant). Only the same subject from the same source is stated anew; what
the assistant says replaces what one tool alone had said, and the other way round. A subject that
stands several times in one output is a column of a table, and an output with many such lines is
a log: of these only what is labelled, told in a sentence, a total or changed is taken.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from proxy.compaction.ledger.addressed import is_instruction
from proxy.compaction.ledger.findings import Findings
from proxy.compaction.ledger.statements import Stated, is_source, of_answer, of_output

MAX_OF_ONE = 12
"""Lines of one output; of more only the telling ones count."""

FEW = 3
"""So few exact lines in an output of few lines are what it was asked for."""

FEW_LINES = 12
MANY_ASKED = 24
ROWS = 3
"""So many numbered subjects are the rows of a table."""

MAX_CHANGED = 6
"""What changes in more places than this changes with every run."""

MAX_REMEMBERED = 6_000

_SOURCE_FILE = re.compile(
    r"\.(?:py|pyi|[cm]?[jt]sx?|go|rs|rb|java|kt|swift|c|h|cc|cpp|hpp|cs|php|scala|lua|css|scss"
    r"|html?|vue|svelte|sql|proto)$"
)
_DATA_FILE = re.compile(r"\.(?:json[5l]?|ya?ml|toml|lock|ini|cfg|conf|xml|csv|svg|ipynb|mod|sum)$")
_DURATION = re.compile(r"\bin \d[\d.]*\s?m?s\b.*|\b\d[\d.]*\s?m?s\b")
_TICKING = re.compile(r"time|date|elapsed|took|pid|uptime|seed|hash|token|timestamp|_at$", re.I)
_VAGUE = frozenset(
    {"it", "there", "he", "she", "they", "which", "what", "here", "step", "line", "error"}
    | {"result", "value", "number", "that", "this"}
)
_MAX_SUBJECT_WORDS = 4


@dataclass(frozen=True, slots=True)
class Value:
    """A line that states something exact."""

    line: str
    by: str
    """Who wrote it: ``tool`` or ``assistant``."""
    was: str = ""
    """The line that it takes the place of."""
    telling: bool = False
    """Whether it says by itself that it matters: a label, a decision, a sentence, the whole of
    an output."""
    at: int = field(default=0, compare=False)
    """Index of the item that says it."""
    over: str = ""
    """What became of it later, for example ``superseded in 9``."""


class Values:
    """Gathers what is stated, in the order in which it was last said."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._values: dict[tuple[str, str], Value] = {}
        self._seen: dict[tuple[str, str], str] = {}
        self._by_subject: dict[str, set[str]] = {}
        self._asked: dict[tuple[str, str], None] = {}
        self._labelled: dict[str, tuple[str, str]] = {}
        """Where a sentence under a label was stated last, whatever stands in it."""
        self.at = 0
        """Index of the item that is gone through."""

    def all(self) -> tuple[Value, ...]:
        """Return every value once, the newest last."""
        subjects = Counter(subject for _, subject in self._asked)
        is_usual = len(self._asked) > MANY_ASKED
        # Several files may say the same; it is told once, where it was said last.
        newest = {value.line: key for key, value in self._values.items()}
        # What a session asks for all the time is nothing that stands out.
        return tuple(
            replace(value, telling=False)
            if key in self._asked and (is_usual or subjects[key[1]] > FEW)
            else value
            for key, value in self._values.items()
            if newest[value.line] == key
        )

    def take_output(self, text: str, source: str) -> None:
        """Take what a tool printed; `source` tells the file, command or tool."""
        is_code = source.startswith("file:") and bool(_SOURCE_FILE.search(source))
        lines = _without_columns((_OF_CODE if is_code else _OF_OUTPUT).of(text))
        few = 0 < len(lines) <= FEW and text.count("\n", 0, 4000) < FEW_LINES
        changed = [line for line in lines if self._is_changed(line, source)]
        natural = [line for line in changed if not _is_row(line)]
        is_volatile = len(natural) > MAX_CHANGED
        rows = [line for line in lines if _is_row(line)]
        kept = lines if len(rows) < ROWS else [line for line in lines if not _is_row(line)]
        if len(lines) > MAX_OF_ONE:
            anew = {line.line for line in ([] if is_volatile else natural)}
            kept = [
                line
                for line in kept
                if line.is_kept or line.line in anew or self._is_known(line, source)
            ]
            kept = _most_telling(kept)
        names = {line.line for line in kept}
        for line in lines:
            if line.line in names:
                is_asked = few and not line.is_telling and "_" not in line.subject
                self._put(line, source, "tool", is_telling=line.is_telling or is_asked)
                if is_asked:
                    self._asked[source, line.subject or line.line] = None
            elif line.subject and len(self._seen) < MAX_REMEMBERED:
                self._seen[source, line.subject] = line.line

    def take_answer(self, text: str) -> None:
        """Take what the assistant stated."""
        stated = list(_OF_ANSWER.of(text))
        for line in stated if len(stated) <= MAX_OF_ONE else _most_telling(stated):
            self._put(line, "", "assistant", is_telling=line.is_telling)

    def _is_known(self, line: Stated, source: str) -> bool:
        return (source, line.subject or line.line) in self._values

    def _is_changed(self, line: Stated, source: str) -> bool:
        seen = self._seen.get((source, line.subject)) if line.subject else None
        return seen is not None and seen != line.line and not _TICKING.search(line.subject)

    def _put(self, line: Stated, source: str, by: str, *, is_telling: bool) -> None:
        key = source, line.subject or line.line
        old = self._values.pop(key, None)
        was = self._seen.pop(key, "") if old is None else old.line
        if old is None and not was and line.is_numeric:
            other = self._said_elsewhere(line.subject, source)
            was = "" if other is None else self._values.pop(other).line
        if line.is_sentence:
            other = self._labelled.get(line.subject)
            if old is None and not was and other in self._values:
                # The same sentence is about the same thing, wherever it is printed.
                old = self._values.pop(other)
                was = old.line
            self._labelled[line.subject] = key
        if _same(was, line.line):
            was = old.was if old is not None else ""
        value = Value(line.line, by, was, is_telling or (old is not None and old.telling), self.at)
        self._values[key] = value
        if line.is_numeric:
            self._by_subject.setdefault(line.subject, set()).add(source)

    def _said_elsewhere(self, subject: str, source: str) -> tuple[str, str] | None:
        """Find what is stated anew by another: the assistant, or the one tool that told it."""
        words = subject.split()
        if len(words) > _MAX_SUBJECT_WORDS or not _VAGUE.isdisjoint(words):
            return None
        sources = [s for s in self._by_subject.get(subject, ()) if (s, subject) in self._values]
        if source and "" not in sources:
            return None
        if len(sources) != 1 or sources[0].startswith("file:") or source.startswith("file:"):
            return None
        return sources[0], subject


def holds_data(text: str, source: str) -> bool:
    """Tell whether a tool printed code or data: by the file's name, or by its look."""
    if source.startswith("file:") and (_SOURCE_FILE.search(source) or _DATA_FILE.search(source)):
        return True
    return is_source(text.splitlines())


def _is_row(line: Stated) -> bool:
    return any(map(str.isdigit, line.subject))


def _same(old: str, new: str) -> bool:
    return old == new or _DURATION.sub("", old) == _DURATION.sub("", new)


def _printed(text: str, *, is_code: bool) -> tuple[Stated, ...]:
    stated = {line.line: line for line in of_output(text, is_code=is_code)}
    return tuple(line for line in stated.values() if not is_instruction(line.line))


def _size(lines: Sequence[Stated]) -> int:
    return sum(_LINE_BYTES + len(line.line) + len(line.subject) for line in lines)


_LINE_BYTES = 200
_OF_OUTPUT = Findings(lambda texts: _printed(*texts, is_code=False), _size, 3 * 2**19)
_OF_CODE = Findings(lambda texts: _printed(*texts, is_code=True), _size, 2**19)
_OF_ANSWER = Findings(lambda texts: tuple(of_answer(*texts)), _size, 2**19)


def _without_columns(lines: Sequence[Stated]) -> list[Stated]:
    counts: dict[str, int] = {}
    for line in lines:
        counts[line.subject] = counts.get(line.subject, 0) + 1
    # What is told of several things is told of none: only the line itself stands for it.
    return [replace(n, subject="", is_numeric=False) if counts[n.subject] > 1 else n for n in lines]


def _most_telling(lines: list[Stated]) -> list[Stated]:
    if len(lines) <= MAX_OF_ONE:
        return lines
    order = sorted(range(len(lines)), key=lambda i: (not lines[i].is_telling, -i))
    return [lines[i] for i in sorted(order[:MAX_OF_ONE])]
