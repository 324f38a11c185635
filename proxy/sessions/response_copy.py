"""Copying every recorded response from one store to another, through the port alone."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from proxy.sessions.responses import RecordedResponse, ResponseStore
from proxy.sessions.state import Note

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Copied:
    base: bytes
    shared: int
    digests: bytes
    """For each of its own items a digest of all items up to that one."""

    @property
    def total(self) -> int:
        return self.shared + len(self.digests) // _DIGEST_BYTES


class ResponseCopy:
    """One copy of all responses. What the target has already stays or is written again."""

    def __init__(self, source: ResponseStore, target: ResponseStore | None) -> None:
        """Copy from `source` to `target`; without a target everything is read only."""
        self._source = source
        self._target = target
        self._copied: dict[bytes, _Copied] = {}
        self._unproven: dict[bytes, None] = {}

    async def copy(self, note: Note, add: Callable[[RecordedResponse, bool], None]) -> None:
        """Copy all, each after its base; tell `add` of each whether the target has it now.

        Raises:
            StoreError: when a store fails; what was copied until then stays.
        """
        async for response in self._source.all_responses(note):
            if self._target is None:
                add(response, True)
                continue
            taken = await self._target.save(response)
            if taken:
                self._remember(response)
            add(response, taken)

    async def verify(self) -> int:
        """Read from the target what was copied and compare; return how many differ.

        Raises:
            StoreError: when the target fails.
        """
        if self._target is None:
            return 0
        different = 0
        for key in self._unproven:
            found = await self._target.load(key)
            wanted = self._digest(key, self._copied[key].total)
            items = None if found is None else found.items
            different += items is None or _chained(b"", items)[-_DIGEST_BYTES:] != wanted
        return different

    def _remember(self, response: RecordedResponse) -> None:
        key, base, shared = response.key, response.base, response.shared
        if base and base not in self._copied:
            # The target had it before, and did not take it again.
            return
        digests = _chained(self._digest(base, shared), response.items)
        self._copied[key] = _Copied(base, shared, digests)
        self._unproven[key] = None
        if base and shared == self._copied[base].total:
            # Who reads this one reads all of that one too.
            self._unproven.pop(base, None)

    def _digest(self, key: bytes, count: int) -> bytes:
        """Return the digest of the first items of a response that was copied."""
        while count:
            copied = self._copied[key]
            if count > copied.shared:
                end = (count - copied.shared) * _DIGEST_BYTES
                return copied.digests[end - _DIGEST_BYTES : end]
            key = copied.base
        return b""


def _chained(digest: bytes, items: Iterable[bytes]) -> bytes:
    """Return the digests that follow on one, each of all items up to one more."""
    found = []
    for item in items:
        known = hashlib.blake2b(digest, digest_size=_DIGEST_BYTES)
        known.update(hashlib.blake2b(item).digest())
        digest = known.digest()
        found.append(digest)
    return b"".join(found)
