"""Where the tags of a text in angle brackets stand, and which of them belong together.

Nothing is parsed: texts only look like HTML or XML. Cost is linear in the text, however the tags
are nested.
"""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

_TAG = re.compile(r"<(\s*+/?+)\s*+([A-Za-z][\w.:-]*)")


class Tags:
    """The tags of one name in a text, in order."""

    def __init__(self) -> None:
        """Begin with none."""
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.last_closing = -1
        """Index of the last tag that closes."""
        self._depths = [0]
        """Before each tag, and after the last one."""
        self._next: list[int] | None = None

    def add(self, start: int, end: int, *, closes: bool) -> None:
        """Take in the next tag."""
        if closes:
            self.last_closing = len(self.starts)
        self.starts.append(start)
        self.ends.append(end)
        self._depths.append(self._depths[-1] + (-1 if closes else 1))

    def first(self, start: int) -> int:
        """Return the index of the first tag that begins at `start` or behind it."""
        return bisect_left(self.starts, start)

    def counts(self, first: int) -> tuple[int, int]:
        """Return how many tags open and how many close from `first` on."""
        rest = len(self.starts) - first
        more = self._depths[-1] - self._depths[first]
        return (rest + more) // 2, (rest - more) // 2

    def balanced(self, first: int) -> int | None:
        """Return where as many tags as open from `first` on have closed, if ever."""
        if self._next is None:
            self._next = _next_alike(self._depths)
        at = self._next[first]
        return self.ends[at - 1] if at else None


def _next_alike(numbers: Sequence[int]) -> list[int]:
    """Return for each place where the same number stands next; 0 for none."""
    places, last = [0] * len(numbers), dict[int, int]()
    for place in range(len(numbers) - 1, -1, -1):
        places[place] = last.get(numbers[place], 0)
        last[numbers[place]] = place
    return places


def tags_of(text: str) -> dict[str, Tags]:
    """Return the tags of a text by their names in small letters."""
    tags: dict[str, Tags] = defaultdict(Tags)
    for tag in _TAG.finditer(text):
        tags[tag[2].lower()].add(tag.start(), tag.end(), closes=bool(tag[1].strip()))
    return tags
