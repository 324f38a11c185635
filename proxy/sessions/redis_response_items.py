"""The items of recorded responses in Redis: cut into pieces, each sealed and named by content.

A piece is small enough that no command is long on the server, and whole by itself: processes
that write the same item at once cannot mix theirs up.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from proxy.compaction.checkpoint import SCHEMA_VERSION
from proxy.errors import StateCorrupt
from proxy.sessions import state
from proxy.sessions.redis_client import RedisClient
from proxy.sessions.redis_cluster import Reply
from proxy.sessions.redis_keys import ADDRESS_BYTES, Keys, items
from proxy.sessions.sealing import Sealer
from proxy.sessions.state import Note, ignore, readable

PIECE_BYTES = 256 * 1024
WRITE_PIECES, WRITE_BYTES = 256, PIECE_BYTES
READ_PIECES, READ_BYTES = 1024, 1024 * 1024
"""What one command may take along."""

THREAD_BYTES = 64 * 1024
"""So much to pack or unpack would hold everything else up."""

_SIZE_BYTES = 4
_PIECE_BYTES = ADDRESS_BYTES + _SIZE_BYTES
_LAST = 1 << 31
"""Marks the size of the last piece of an item."""

_CONTEXT = b"response:"

Piece = tuple[bytes, bytes]
"""Address and stored form."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """Items as they are stored."""

    named: Sequence[bytes]
    """Each item as the addresses and sizes of its pieces."""
    pieces: Sequence[Piece]

    def chunks(self) -> Iterator[Sequence[Piece]]:
        """Return the pieces in the order to be sent, at least one chunk."""
        chunk, size = list[Piece](), 0
        for piece in self.pieces:
            if chunk and (len(chunk) == WRITE_PIECES or size + len(piece[1]) > WRITE_BYTES):
                yield chunk
                chunk, size = [], 0
            chunk.append(piece)
            size += len(piece[1])
        yield chunk


class RedisResponseItems:
    """Seals items, and reads them back."""

    def __init__(self, client: RedisClient, keys: Keys, sealer: Sealer) -> None:
        """Take the connection, the names and the sealing."""
        self._client = client
        self._keys = keys
        self._sealer = sealer

    async def seal(self, anchor: bytes, raws: Sequence[bytes]) -> Sealed:
        """Return the stored form of items."""
        if sum(map(len, raws)) > THREAD_BYTES:
            return await asyncio.to_thread(self._seal, anchor, raws)
        return self._seal(anchor, raws)

    async def read(
        self, anchor: bytes, named: Sequence[bytes], note: Note = ignore
    ) -> list[bytes | None]:
        """Return items by what they are named; None, with a note, for those not readable."""
        wanted = {piece: size for item in named for piece, size in _pieces(item)}
        found = dict[bytes, bytes | None]()
        for chunk in _chunked(wanted.items()):
            fields = [b"b:" + address for address in chunk]
            replies = items(await self._client.call("HMGET", self._keys.responses(anchor), *fields))
            work = partial(self._opened, anchor, chunk, replies, note)
            size = sum(len(body) for body in replies if isinstance(body, bytes))
            found.update(await asyncio.to_thread(work) if size > THREAD_BYTES else work())
        return [_joined([found[address] for address, _ in _pieces(item)]) for item in named]

    def _seal(self, anchor: bytes, raws: Sequence[bytes]) -> Sealed:
        named, pieces = list[bytes](), dict[bytes, bytes]()
        for raw in raws:
            name, last = b"", max(len(raw) - 1, 0) // PIECE_BYTES
            for number in range(last + 1):
                piece = raw[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
                address = self._sealer.address(piece)
                if address not in pieces:
                    context = _context(anchor, address)
                    pieces[address] = self._sealer.seal(state.pack(piece), context)
                size = len(piece) | (_LAST if number == last else 0)
                name += address + size.to_bytes(_SIZE_BYTES, "big")
            named.append(name)
        return Sealed(named, tuple(pieces.items()))

    def _opened(
        self, anchor: bytes, addresses: Sequence[bytes], bodies: Sequence[Reply], note: Note
    ) -> dict[bytes, bytes | None]:
        return {
            address: readable(partial(self._open, _context(anchor, address), body), note)
            for address, body in zip(addresses, bodies, strict=True)
        }

    def _open(self, context: bytes, body: Reply) -> bytes | None:
        """Return a piece; None when a newer version wrote it."""
        if not isinstance(body, bytes):
            raise StateCorrupt("a stored item is gone")
        if self._sealer.version_of(body) > SCHEMA_VERSION:
            return None
        return state.unpack(self._sealer.open(body, context))


def _context(anchor: bytes, address: bytes) -> bytes:
    # Binds an encrypted piece to its place, so that it cannot be put elsewhere.
    return _CONTEXT + anchor + address


def _pieces(named: bytes) -> Iterator[tuple[bytes, int]]:
    for at in range(0, len(named), _PIECE_BYTES):
        size = int.from_bytes(named[at + ADDRESS_BYTES : at + _PIECE_BYTES], "big")
        yield named[at : at + ADDRESS_BYTES], size & ~_LAST


def split(named: bytes) -> list[bytes]:
    """Take apart how several items are named."""
    found, start = list[bytes](), 0
    for at in range(0, len(named), _PIECE_BYTES):
        if named[at + ADDRESS_BYTES] & 0x80:
            found.append(named[start : at + _PIECE_BYTES])
            start = at + _PIECE_BYTES
    return found


def _chunked(pieces: Iterable[tuple[bytes, int]]) -> Iterator[list[bytes]]:
    chunk, total = list[bytes](), 0
    for address, size in pieces:
        if chunk and (len(chunk) == READ_PIECES or total + size > READ_BYTES):
            yield chunk
            chunk, total = [], 0
        chunk.append(address)
        total += size
    if chunk:
        yield chunk


def _joined(pieces: Sequence[bytes | None]) -> bytes | None:
    whole = [piece for piece in pieces if piece is not None]
    return b"".join(whole) if pieces and len(whole) == len(pieces) else None
