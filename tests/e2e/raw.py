"""HTTP by hand: an upstream and a client that show and send exact bytes."""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

LIMIT = 256 * 1024
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"

Pairs = list[tuple[str, str]]


@dataclass(slots=True)
class Head:
    """The start line and the headers of a message, names and values as they were written."""

    line: str
    headers: Pairs

    @classmethod
    def of(cls, raw: bytes) -> "Head":
        line, *rest = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
        pairs = [(name, value.strip()) for name, _, value in (row.partition(":") for row in rest)]
        return cls(line, pairs)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def get(self, name: str) -> str | None:
        return next(iter(self.all(name)), None)

    @property
    def chunked(self) -> bool:
        return (self.get("Transfer-Encoding") or "").lower() == "chunked"


@dataclass(slots=True)
class Message(Head):
    """A request or a reply; the body is without its transfer encoding."""

    body: bytearray = field(default_factory=bytearray)
    complete: bool = False
    closed: bool = False
    """The other side closed the connection."""

    @property
    def method(self) -> str:
        return self.line.split(" ")[0]

    @property
    def target(self) -> str:
        return self.line.split(" ")[1]

    @property
    def status(self) -> int:
        return int(self.line.split(" ")[1])


async def read_message(
    reader: asyncio.StreamReader,
    *,
    bodiless: bool = False,
    until_eof: bool = False,
    began: Callable[[Message], None] | None = None,
    changed: Callable[[], None] = lambda: None,
) -> Message:
    """Read one message; `until_eof` says how a body without a length ends."""
    head = Head.of(await reader.readuntil(b"\r\n\r\n"))
    message = Message(head.line, head.headers)
    if began is not None:
        began(message)
    if not bodiless:
        async for piece in _pieces(reader, message, until_eof):
            message.body += piece
            changed()
    message.complete = True
    changed()
    return message


async def _pieces(
    reader: asyncio.StreamReader, message: Message, until_eof: bool
) -> AsyncIterator[bytes]:
    length = message.get("Content-Length")
    if message.chunked:
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield await reader.readexactly(size)
            assert await reader.readexactly(2) == b"\r\n"
        while await reader.readuntil(b"\r\n") != b"\r\n":
            pass  # a trailer
    elif length is not None:
        left = int(length)
        while left:
            piece = await reader.read(left)
            if not piece:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(piece)
            yield piece
    elif until_eof:
        while piece := await reader.read(LIMIT):
            yield piece


class RawUpstream:
    """Records requests and answers each with the next of `replies`, or with `OK`.

    A reply is bytes, or a list of bytes and events: bytes are written at once, an event is waited
    for. `hang_up` closes the connection after each reply.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.requests: list[Message] = []
        self.replies: deque[bytes | Sequence[bytes | asyncio.Event]] = deque()
        self.hang_up = False
        self.connections = 0
        self.open_connections = 0
        self.url = ""
        self._context = context
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    @property
    def base_url(self) -> str:
        return self.url + "/v1"

    @property
    def last(self) -> Message:
        return self.requests[-1]

    async def wait_for(self, predicate: Callable[[], bool], seconds: float = 5.0) -> None:
        async with asyncio.timeout(seconds):
            while not predicate():
                await self._changed.wait()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", 0, limit=LIMIT, ssl=self._context
        )
        scheme = "http" if self._context is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open_connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    await self._serve(reader, writer)
        except asyncio.CancelledError:
            pass  # only our own exit cancels; asyncio's stream protocol would log it
        finally:
            self._tasks.discard(task)
            self.open_connections -= 1
            self._notify()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_message(reader, began=self._began, changed=self._notify)
        reply = self.replies.popleft() if self.replies else OK
        for part in [reply] if isinstance(reply, bytes) else reply:
            if isinstance(part, asyncio.Event):
                await self._wait(part, reader, request)
            else:
                writer.write(part)
                await writer.drain()
        if self.hang_up:
            raise ConnectionError

    def _began(self, request: Message) -> None:
        self.requests.append(request)
        self._notify()

    async def _wait(
        self, event: asyncio.Event, reader: asyncio.StreamReader, request: Message
    ) -> None:
        """Wait for the event, or for the other side to leave."""
        loop = asyncio.get_running_loop()
        waiting = loop.create_task(event.wait())
        leaving = loop.create_task(reader.read(1))
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                with contextlib.suppress(OSError):
                    assert leaving.result() == b""
                request.closed = True
                self._notify()
                raise ConnectionError
        finally:
            for task in (waiting, leaving):
                task.cancel()
            await asyncio.gather(waiting, leaving, return_exceptions=True)


@asynccontextmanager
async def connection(
    url: str,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A TCP connection to a server."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port, limit=LIMIT)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def exchange(url: str, request: bytes, *, bodiless: bool = False) -> Message:
    """Send bytes and read one reply."""
    async with asyncio.timeout(20), connection(url) as (reader, writer):
        writer.write(request)
        await writer.drain()
        return await read_message(reader, bodiless=bodiless, until_eof=True)


def request(
    method: str, target: str, body: bytes | None = None, *headers: tuple[str, str | bytes]
) -> bytes:
    """A request with Host and, given a body, Content-Length; nothing else is added."""
    lines = [f"{method} {target} HTTP/1.1".encode("latin-1"), b"Host: proxy.test"]
    for name, value in headers:
        raw = value if isinstance(value, bytes) else value.encode("latin-1")
        lines.append(name.encode() + b": " + raw)
    if body is not None:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")


def chunked(
    method: str, target: str, pieces: Sequence[bytes], *headers: tuple[str, str | bytes]
) -> bytes:
    """A request whose body comes in chunks."""
    head = request(method, target, None, *headers, ("Transfer-Encoding", "chunked"))
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def reply(status: str, body: bytes | None = b"", *headers: tuple[str, str | bytes]) -> bytes:
    """A reply with Content-Length unless `body` is None; nothing else is added."""
    lines = [f"HTTP/1.1 {status}".encode("latin-1")]
    for name, value in headers:
        raw = value if isinstance(value, bytes) else value.encode("latin-1")
        lines.append(name.encode() + b": " + raw)
    if body is not None:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join(lines) + b"\r\n\r\n" + (body or b"")
