"""Replaced items in Redis: content-addressed blobs, written before the commit that names them.

Many small calls instead of few large ones, so that the server never spends long on one. Each
call is atomic and may be repeated. What a crash leaves behind is never named and expires.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import partial

from proxy.compaction.checkpoint import SCHEMA_VERSION
from proxy.errors import StateCorrupt
from proxy.sessions import state
from proxy.sessions.redis_client import RedisClient
from proxy.sessions.redis_cluster import Argument, Reply
from proxy.sessions.redis_keys import ADDRESS_BYTES, Keys, items
from proxy.sessions.redis_scripts import ARCHIVE, ARCHIVE_LARGE, DROP
from proxy.sessions.sealing import Sealer
from proxy.sessions.state import Archived, Note, Unreadable, ignore, readable

CHUNK_ITEMS = 64
CHUNK_BYTES = 256 * 1024

DRAFT_MILLISECONDS = 600_000
"""How long a large item may take from its first part to its last."""

_COUNT_BYTES = 4
_CONTEXT = b"archive:"

_Sealed = tuple[int, bytes, bytes]
"""Position, address and stored form of an item."""


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
        chunk: list[_Sealed] = []
        async for entry in self._sealed(anchor, archive):
            if len(entry[2]) > CHUNK_BYTES:
                await self._write_large(keys, anchor, entry)
                continue
            size = sum(len(blob) for _, _, blob in chunk)
            if chunk and (len(chunk) == CHUNK_ITEMS or size + len(entry[2]) > CHUNK_BYTES):
                await self._write_chunk(keys, anchor, chunk)
                chunk = []
            chunk.append(entry)
        if chunk:
            await self._write_chunk(keys, anchor, chunk)

    async def _write_chunk(self, keys: list[str], anchor: bytes, chunk: Sequence[_Sealed]) -> None:
        blobs = [self._keys.blob(anchor, address) for _, address, _ in chunk]
        arguments: list[Argument] = [self._milliseconds]
        for entry in chunk:
            arguments += entry
        await self._client.run(ARCHIVE, [*keys, *blobs], arguments)

    async def _write_large(self, keys: list[str], anchor: bytes, entry: _Sealed) -> None:
        """Store an item as a list of parts, which appears under its name when it is whole."""
        position, address, blob = entry
        name = self._keys.blob(anchor, address)
        draft = f"{name}:{secrets.token_hex(8)}"
        parts = range(0, len(blob), CHUNK_BYTES)
        for start in parts:
            await self._client.call("RPUSH", draft, blob[start : start + CHUNK_BYTES])
            await self._client.call("PEXPIRE", draft, DRAFT_MILLISECONDS)
        named = address + len(parts).to_bytes(_COUNT_BYTES, "big")
        arguments: list[Argument] = [self._milliseconds, position, named]
        await self._client.run(ARCHIVE_LARGE, [*keys, name, draft], arguments)

    async def read(
        self, anchor: bytes, session: str, archive_id: str, note: Note = ignore
    ) -> list[Archived]:
        """Return the items of an id by position; unreadable and expired ones are left out."""
        try:
            entries = [e async for e in self._entries(anchor, session, archive_id)]
        except StateCorrupt:
            note(Unreadable("damaged"))
            return []
        found = []
        for start in range(0, len(entries), CHUNK_ITEMS // 4):
            part = entries[start : start + CHUNK_ITEMS // 4]
            small = [self._keys.blob(anchor, named) for _, named in part if not _parts(named)]
            bodies = iter(
                await self._client.pipeline([("GET", blob) for blob in small], lenient=True)
            )
            for position, named in part:
                body = await self._whole(anchor, named) if _parts(named) else next(bodies)
                if not isinstance(body, bytes) or not body:
                    continue
                raw = readable(partial(self._opened, anchor, body), note)
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

    async def _sealed(self, anchor: bytes, archive: Iterable[Archived]) -> AsyncIterator[_Sealed]:
        for item in archive:
            if len(item.raw) > CHUNK_BYTES:
                # So much to compress would hold everything else up.
                yield await asyncio.to_thread(self._seal, anchor, item)
            else:
                yield self._seal(anchor, item)

    def _seal(self, anchor: bytes, item: Archived) -> _Sealed:
        address = self._sealer.address(item.raw)
        sealed = self._sealer.seal(state.pack(item.raw), _CONTEXT + anchor)
        return item.index, address, sealed

    def _opened(self, anchor: bytes, blob: bytes) -> bytes | None:
        if self._sealer.version_of(blob) > SCHEMA_VERSION:
            return None
        return state.unpack(self._sealer.open(blob, _CONTEXT + anchor))

    async def _whole(self, anchor: bytes, named: bytes) -> bytes | None:
        name, found = self._keys.blob(anchor, named), []
        for part in range(_parts(named)):
            body = (await self._client.pipeline([("LINDEX", name, part)], lenient=True))[0]
            if not isinstance(body, bytes):
                return None
            found.append(body)
        return b"".join(found)

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


def _parts(named: bytes) -> int:
    """Return of how many parts an item is made; 0 when it is one string."""
    return int.from_bytes(named[ADDRESS_BYTES:], "big")
