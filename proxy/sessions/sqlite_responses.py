"""Recorded responses in the file of the SQLite store.

An item is stored once, by its content, whichever responses and parts of the archive it is in.
"""

import asyncio
import hashlib
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial

from proxy.sessions import sqlite_response_rows as rows
from proxy.sessions import state
from proxy.sessions.responses import RecordedResponse
from proxy.sessions.sqlite_file import SqliteFile
from proxy.sessions.sqlite_response_rows import Written
from proxy.sessions.sqlite_retention import expire_responses, shrink
from proxy.sessions.state import Note, ignore, readable


class SqliteResponses:
    """A `ResponseStore` in the file of a `SqliteStore`, which opens and closes it."""

    def __init__(self, file: SqliteFile, retention_seconds: float, archive_bytes: int) -> None:
        """Take the file, how long responses are kept, and how large all items may become."""
        self._file = file
        self._retention_seconds = retention_seconds
        self._archive_bytes = archive_bytes

    async def save(self, response: RecordedResponse) -> bool:
        """See `ResponseStore.save`."""
        return await self._file.run(lambda: self._save(response))

    async def load(self, key: bytes) -> RecordedResponse | None:
        """See `ResponseStore.load`."""
        found = await self._read(partial(rows.read_whole, key=key))
        if found is None:
            return None
        # A long conversation is much to unpack.
        items = await asyncio.to_thread(_opened, found, ignore)
        if items is None:
            return None
        return RecordedResponse(key, found.anchor, b"", 0, items, time=found.time)

    async def has(self, key: bytes) -> bool:
        """See `ResponseStore.has`."""
        return await self._file.run(lambda: rows.has(self._file.db(), key))

    async def load_items(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """See `ResponseStore.load_items`."""
        found = dict[bytes, bytes]()
        for key, packed in (await self._file.run(lambda: self._packed(keys))).items():
            raw = readable(partial(state.unpack, packed), ignore)
            if raw is not None:
                found[key] = raw
        return found

    async def forget(self, key: bytes) -> bool:
        """See `ResponseStore.forget`."""
        return await self._file.run(lambda: self._file.write(lambda db: rows.forget(db, key)))

    async def expire(self, now: float) -> int:
        """See `ResponseStore.expire`."""

        def expire(db: sqlite3.Connection) -> int:
            gone = expire_responses(db, now - self._retention_seconds)
            return gone + shrink(db, self._archive_bytes)

        return await self._file.run(lambda: self._file.write(expire))

    async def all_responses(self, note: Note = ignore) -> AsyncIterator[RecordedResponse]:
        """See `ResponseStore.all_responses`."""
        last, left_out = 0, set[bytes]()
        while page := await self._file.run(partial(self._keys_after, last)):
            for _, key in page:
                response = await self._exported(key, left_out, note)
                if response is None:
                    left_out.add(key)
                else:
                    yield response
            last = page[-1][0]

    def _save(self, response: RecordedResponse) -> bool:
        # Packing is the slow part and needs no lock.
        blobs = [
            (hashlib.sha256(raw).digest(), len(raw), state.pack(raw)) for raw in response.items
        ]
        return self._file.write(lambda db: rows.insert(db, response, blobs))

    def _packed(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        found = {key: rows.item(self._file.db(), key) for key in keys}
        return {key: packed for key, packed in found.items() if packed is not None}

    def _keys_after(self, last: int) -> Sequence[tuple[int, bytes]]:
        return rows.keys_after(self._file.db(), last)

    async def _exported(
        self, key: bytes, left_out: set[bytes], note: Note
    ) -> RecordedResponse | None:
        found = await self._read(partial(rows.read_own, key=key))
        if found is None or found.base in left_out:
            return None
        items = await asyncio.to_thread(_opened, found, note)
        if items is None:
            return None
        names = tuple(found.names)
        return RecordedResponse(
            key, found.anchor, found.base, found.shared, items, names, found.time
        )

    async def _read(self, read: "partial[Written | None]") -> Written | None:
        return await self._file.run(lambda: self._file.read(read))


def _opened(found: Written, note: Note) -> tuple[bytes, ...] | None:
    """Return the items; None, with a note for each that is damaged, when any is."""
    # An empty value is damaged too.
    items = [readable(partial(state.unpack, packed or b""), note) for packed in found.packed]
    whole = tuple(raw for raw in items if raw is not None)
    return whole if len(whole) == len(items) else None
