"""What code found in a text, remembered from one compaction to the next.

Clients send the whole conversation again, and it is compacted again and again: what was found in
a text the last time is what would be found in it now. Texts are known by their digest and are
not kept. Bounded by bytes: what was used longest ago goes first. Safe to use from several threads.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Generic, TypeVar

ENTRY_OVERHEAD_BYTES = 200
"""About what an entry costs besides what was found."""

MIN_CHARS = 40
"""A shorter text is read as fast as it is looked up."""

_DIGEST_BYTES = 16
_LARGEST_SHARE = 8

Found = TypeVar("Found")


class Findings(Generic[Found]):
    """What one function found in texts."""

    def __init__(
        self, find: Callable[[Sequence[str]], Found], size: Callable[[Found], int], limit_bytes: int
    ) -> None:
        """Remember the results of a function.

        Args:
            find: takes one text or several; it must depend on them alone, and nobody may change
                what it returns.
            size: tells about how many bytes a result takes.
            limit_bytes: for all results together.
        """
        self._find = find
        self._size = size
        self._limit = limit_bytes
        self._used = 0
        self._known: OrderedDict[bytes, tuple[Found, int]] = OrderedDict()
        self._lock = Lock()

    @property
    def used_bytes(self) -> int:
        """What is remembered now, overhead included."""
        return self._used

    def of(self, *texts: str) -> Found:
        """Return what is found in a text, or in several together."""
        if sum(map(len, texts)) < MIN_CHARS:
            return self._find(texts)
        key = _digest(texts)
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known[0]
        # Two threads may find the same at once; the result is the same.
        found = self._find(texts)
        self._remember(key, found)
        return found

    def _remember(self, key: bytes, found: Found) -> None:
        size = self._size(found) + ENTRY_OVERHEAD_BYTES
        if size > self._limit // _LARGEST_SHARE:
            return
        with self._lock:
            old = self._known.pop(key, None)
            self._known[key] = found, size
            self._used += size - (old[1] if old else 0)
            while self._used > self._limit:
                _, (_, freed) = self._known.popitem(last=False)
                self._used -= freed


def _digest(texts: Sequence[str]) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        # With its length, so that it shows where each ends.
        digest.update(len(data).to_bytes(8))
        digest.update(data)
    return digest.digest()
