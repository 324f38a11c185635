"""Stands between a client and the proxy and notes what passes; changes no byte of it.

It relays TCP, so what the client and the proxy see is what they would see of each other. Only
plain HTTP/1.1 with bodies of declared length, or chunked, is understood when the notes are read.
"""

import asyncio
import bisect
import contextlib
import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from proxy.codec import JsonObject, MalformedJson, loads

_REPLY = re.compile(rb"HTTP/1\.[01] (\d{3}) ")  # a reply's head follows a body without a line end
_LENGTH = re.compile(rb"^content-length: *(\d+) *\r?$", re.IGNORECASE | re.MULTILINE)
_CHUNKED = re.compile(rb"^transfer-encoding: *chunked *\r?$", re.IGNORECASE | re.MULTILINE)
_STREAM_ERROR = re.compile(
    rb'^data: \{"(?:error"|type":"(?:error|response\.failed)")', re.MULTILINE
)
_OVERFLOW = re.compile(
    rb"context_length_exceeded|exceed_context_size|available context size|maximum context length"
)


@dataclass(frozen=True, slots=True)
class Received:
    """A reply as the client got it."""

    status: int
    rest: bytes = field(repr=False)

    @property
    def failed(self) -> bool:
        """Whether it is an error, or an error was told after it had begun well."""
        return self.status >= 400 or bool(_STREAM_ERROR.search(self.rest))

    @property
    def overflow(self) -> bool:
        """Whether it says that the context is too long."""
        return self.failed and bool(_OVERFLOW.search(self.rest))


class _Notes(bytearray):
    """One direction of a connection, with the times at which its parts came."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[tuple[int, float]] = []

    def add(self, data: bytes) -> None:
        self.parts.append((len(self), time.monotonic()))
        self += data

    def came(self, offset: int) -> float:
        """Return when the byte at an offset came."""
        return self.parts[bisect.bisect_right(self.parts, (offset, math.inf)) - 1][1]


@dataclass(slots=True)
class _Connection:
    sent: _Notes = field(default_factory=_Notes)
    got: _Notes = field(default_factory=_Notes)


class Witness:
    """The relay; `async with` starts it, `url` is where clients go."""

    def __init__(self, url: str) -> None:
        """Relay to a server on this machine."""
        self._target = urlsplit(url)
        self._connections: list[_Connection] = []
        self._server: asyncio.Server | None = None
        self._relays: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for relay in self._relays:
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)

    @property
    def replies(self) -> list[Received]:
        """Everything that the client got."""
        found: list[Received] = []
        for connection in self._connections:
            _, *pieces = _REPLY.split(bytes(connection.got))
            pairs = zip(pieces[::2], pieces[1::2], strict=True)
            found += [Received(int(status), rest) for status, rest in pairs]
        return found

    @property
    def bodies(self) -> list[JsonObject]:
        """The JSON bodies that the client sent, in order."""
        found: list[tuple[float, JsonObject]] = []
        for connection in self._connections:
            for offset, body in _bodies(bytes(connection.sent)):
                with contextlib.suppress(MalformedJson):
                    value = loads(body)
                    if isinstance(value, dict):
                        found.append((connection.sent.came(offset), value))
        return [body for _, body in sorted(found, key=lambda pair: pair[0])]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.get_running_loop().create_task(self._relay(reader, writer))
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        notes = _Connection()
        self._connections.append(notes)
        there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        try:
            await asyncio.gather(_pump(reader, back, notes.sent), _pump(there, writer, notes.got))
        finally:
            back.close()
            writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, notes: _Notes) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            notes.add(data)
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.close()


def _bodies(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield where each request begins, and its body."""
    start = 0
    while (end := data.find(b"\r\n\r\n", start)) >= 0:
        head, rest, body = data[start:end], end + 4, b""
        if found := _LENGTH.search(head):
            length = int(found[1])
            body, rest = data[rest : rest + length], rest + length
        elif _CHUNKED.search(head):
            body, rest = _unchunked(data, rest)
        yield start, body
        start = rest


def _unchunked(data: bytes, start: int) -> tuple[bytes, int]:
    """Return a chunked body and where it ends."""
    body, size = b"", 1
    while size:
        end = data.index(b"\r\n", start)
        size = int(data[start:end].partition(b";")[0], 16)
        start = end + 2
        body, start = body + data[start : start + size], start + size + 2
    return body, start
