"""Replaced items in Redis: content-addressed blobs, written before the commit that names them.

Many small calls instead of few large ones, so that the server never spends long on one. Each
call is atomic and may be repeated. What a crash leaves behind is never named and expires.
"""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import partial

from proxy.compaction.checkpoint import SCHEMA_VERSION
from proxy.errors import StateCorrupt
from proxy.sessions import state
from proxy.sessions.redis_client import RedisClient
from proxy.sessions.redis_cluster import Argument, Reply
from proxy.sessions.redis_keys import Keys, data, items
from proxy.sessions.redis_scripts import ARCHIVE, DROP
from proxy.sessions.sealing import Sealer
from proxy.sessions.state import Archived, Note, ignore, readable

CHUNK_ITEMS = 64
CHUNK_BYTES = 256 * 1024

_CONTEXT = b"archive:"


class RedisArchive:
    """The archive part of the Redis store."""

    def __init__(self, client: RedisClient, keys: Keys, sealer: Sealer, seconds: float) -> None:
        """Take the connection, the names, the sealing and how long items are kept."""
        self._client = client
        self._keys = keys
        self._sealer = sealer
        self._milliseconds = int(seconds * 1000)

    async def write(
        self, anchor: bytes, session: str, archive_id: str, archive: Iterable[Archived]
    ) -> None:
        """Store items under an id; the same ones twice are harmless."""
        keys = [self._keys.entries(anchor, session, archive_id), self._keys.references(anchor)]
        for chunk in _chunks(self._sealed(anchor, archive)):
            blobs = [self._keys.blob(anchor, address) for _, address, _ in chunk]
            arguments: list[Argument] = [self._milliseconds]
            for entry in chunk:
                arguments += entry
            await self._client.run(ARCHIVE, [*keys, *blobs], arguments)

    async def read(
        self, anchor: bytes, session: str, archive_id: str, note: Note = ignore
    ) -> list[Archived]:
        """Return the items of an id by position; unreadable and expired ones are left out."""
        entries = [e async for e in self._entries(anchor, session, archive_id)]
        found = []
        for start in range(0, len(entries), CHUNK_ITEMS // 4):
            part = entries[start : start + CHUNK_ITEMS // 4]
            blobs = [self._keys.blob(anchor, address) for _, address in part]
            heads = await self._client.pipeline(
                [("GETRANGE", blob, 0, CHUNK_BYTES - 1) for blob in blobs], lenient=True
            )
            for (position, _), blob, head in zip(part, blobs, heads, strict=True):
                if not head:
                    continue
                sealed = await self._whole(blob, data(head))
                raw = readable(partial(self._opened, anchor, sealed), note)
                if raw is not None:
                    found.append(Archived(position, raw))
        return sorted(found, key=lambda archived: archived.index)

    async def drop(self, anchor: bytes, session: str, archive_id: str) -> None:
        """Delete the entries of an id, and the blobs that nothing else names."""
        keys = [self._keys.entries(anchor, session, archive_id), self._keys.references(anchor)]
        entries = [e async for e in self._entries(anchor, session, archive_id)]
        for start in range(0, len(entries), CHUNK_ITEMS):
            part = entries[start : start + CHUNK_ITEMS]
            blobs = [self._keys.blob(anchor, address) for _, address in part]
            arguments: list[Argument] = []
            for entry in part:
                arguments += entry
            await self._client.run(DROP, [*keys, *blobs], arguments)

    def _sealed(
        self, anchor: bytes, archive: Iterable[Archived]
    ) -> Iterator[tuple[int, bytes, bytes]]:
        for item in archive:
            address = self._sealer.address(item.raw)
            sealed = self._sealer.seal(state.pack(item.raw), _CONTEXT + anchor)
            yield item.index, address, sealed

    def _opened(self, anchor: bytes, blob: bytes) -> bytes | None:
        if self._sealer.version_of(blob) > SCHEMA_VERSION:
            return None
        return state.unpack(self._sealer.open(blob, _CONTEXT + anchor))

    async def _whole(self, blob: str, head: bytes) -> bytes:
        if len(head) < CHUNK_BYTES:
            return head
        parts = [head]
        while len(parts[-1]) == CHUNK_BYTES:
            start = len(parts) * CHUNK_BYTES
            part = await self._client.call("GETRANGE", blob, start, start + CHUNK_BYTES - 1)
            parts.append(data(part))
        return b"".join(parts)

    async def _entries(
        self, anchor: bytes, session: str, archive_id: str
    ) -> AsyncIterator[tuple[int, bytes]]:
        key, cursor, seen = self._keys.entries(anchor, session, archive_id), 0, set[int]()
        while True:
            reply = items(await self._client.call("HSCAN", key, cursor, "COUNT", 500))
            if len(reply) != 2:
                raise StateCorrupt("Redis holds something else than was written")
            for position, address in _pairs(reply[1]):
                # A growing hash may tell an entry twice.
                if position not in seen:
                    seen.add(position)
                    yield position, address
            cursor = int(reply[0]) if isinstance(reply[0], int | bytes) else 0
            if not cursor:
                return


def _pairs(reply: Reply) -> Iterator[tuple[int, bytes]]:
    # redis-py turns this part of the reply into a mapping.
    if isinstance(reply, dict):
        for position, address in reply.items():
            yield int(position), address


def _chunks(
    entries: Iterable[tuple[int, bytes, bytes]],
) -> Iterator[Sequence[tuple[int, bytes, bytes]]]:
    chunk: list[tuple[int, bytes, bytes]] = []
    size = 0
    for entry in entries:
        if chunk and (len(chunk) == CHUNK_ITEMS or size + len(entry[2]) > CHUNK_BYTES):
            yield chunk
            chunk, size = [], 0
        chunk.append(entry)
        size += len(entry[2])
    if chunk:
        yield chunk
