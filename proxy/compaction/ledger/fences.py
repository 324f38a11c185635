"""Which lines of a text stand in a code fence.

A fence may open at the end of a line, as models and people write it. Cost is linear in the text,
whatever marks it holds.
"""

import re
from collections.abc import Iterator, Sequence

_FENCE = re.compile(r"(\s*)(`{3,}(?=[^`]*$)|~{3,})\s*(.*)")
_MARKS = re.compile(r"`{3,}|~{3,}")
_LANGUAGE = re.compile(r"\s*+\w*+\s*+")
_MIN_MARKS = 3
_MAX_INDENT = 3
_LATE = 1000
"""How far a fence counts as set in that began at the end of a line: any may close it."""


def fenced(lines: Sequence[str]) -> list[bool]:
    """Tell of each line whether it is in a code fence, or is one.

    A fence that is never closed goes to the end. What stands between two blocks of which the
    second has no language may be the inside of one whose text holds fences: it counts as such.
    """
    if not any("```" in line or "~~~" in line for line in lines):
        return [False] * len(lines)
    fences = _Fences()
    inside = [fences.holds(line) for line in lines]
    for start, end in _between(inside, fences.bare):
        inside[start:end] = [True] * (end - start)
    return inside


def _between(inside: Sequence[bool], bare: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield what stands between two blocks of which the second begins without a language."""
    end = 0
    for index in range(len(inside)):
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
            mark = _late_mark(line)
            if mark and line.count(mark) == 1:
                self._open.append((mark, _LATE))
        elif self._open[-1][1] == _LATE and line.rstrip().endswith(self._open[-1][0]):
            self._open.pop()


def _late_mark(line: str) -> str:
    """Return the mark of a fence that ends a line, its language aside; empty when none does."""
    marks = [found.span() for found in _MARKS.finditer(line)]
    if not marks or not _LANGUAGE.fullmatch(line, marks[-1][1]):
        return ""
    start, end = marks[-1]
    # Something stands in front of it, if only one of many marks.
    first = len(line) - len(line.lstrip())
    mark = line[max(start, first + 1) : end]
    return mark if len(mark) >= _MIN_MARKS else ""
