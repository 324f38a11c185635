"""Several processes behind one port: spread, replaced, reloaded, drained, and never left behind."""

import asyncio
import contextlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import loads
from proxy.telemetry import JsonLines
from tests import builders as b
from tests.e2e.raw import LIMIT, Message, RawUpstream, read_message, request
from tests.e2e.running import ROOT, NotServing, Served, command, store_url
from tests.upstream import Reply, ScriptedUpstream

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

CHAT = "/v1/chat/completions"
LIVE = request("GET", "/_foldgate/live")
STREAMED = b.chat_body([b.user("hi")], stream=True)
UPSTREAM = "http://127.0.0.1:9/v1"
WORKERS = 3
WINDOW = {"FOLDGATE_UPSTREAM__CONTEXT_WINDOW": "8000"}
MANY = 50
"""Connections after which no worker is left out, but for one case in millions."""


class Fleet(Served):
    """The proxy with several workers; no process of it outlives the test."""

    def __init__(
        self,
        upstream: str | None,
        folder: Path,
        *args: str,
        env: dict[str, str] | None = None,
        json_lines: bool = True,
    ) -> None:
        arguments = ["--workers", str(WORKERS), *args]
        super().__init__(upstream, folder, args=arguments, env=env, json_lines=json_lines)

    def workers(self) -> set[int]:
        """The process ids of the workers."""
        return {pid for pid, parent in parents() if parent == self.process.pid}

    def threads(self) -> int:
        """How many threads the parent has."""
        return len([*Path(f"/proc/{self.process.pid}/task").iterdir()])

    async def kill(self) -> int:
        left = self.workers() if self.process.returncode is None else set()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return await self.wait()

    @asynccontextmanager
    async def connected(self) -> AsyncIterator["Connection"]:
        """A connection of its own, and the worker that has it."""
        port = int(self.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LIMIT)
        try:
            connection = Connection(reader, writer)
            # Only a reply tells that it was taken from the queue of the socket.
            assert (await connection.exchange(LIVE)).status == 200
            connection.worker = owner(self.workers(), port, writer.get_extra_info("sockname")[1])
            yield connection
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    @asynccontextmanager
    async def connected_to(self, worker: int) -> AsyncIterator["Connection"]:
        """A connection to a certain worker, as soon as it is there."""
        async with asyncio.timeout(20):
            while True:
                async with self.connected() as connection:
                    if connection.worker == worker:
                        yield connection
                        return

    async def replaced(self, worker: int, count: int) -> int:
        """End a worker at once; returns the new one, restart number `count`, when it serves."""
        before = self.workers()
        os.kill(worker, signal.SIGKILL)
        await self.wait_log("worker_restarted", count)
        (new,) = self.workers() - before
        async with self.connected_to(new):
            return new


@dataclass(slots=True)
class Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    worker: int = 0

    async def exchange(self, data: bytes) -> Message:
        async with asyncio.timeout(20):
            self.writer.write(data)
            await self.writer.drain()
            return await read_message(self.reader)

    async def chat(self, body: bytes) -> Message:
        message = await self.exchange(request("POST", CHAT, body))
        assert message.status == 200, bytes(message.body)
        return message


def parents() -> list[tuple[int, int]]:
    """Every process and its parent."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
                found.append((int(entry.name), int(after_name[1])))
    return found


def owner(workers: set[int], port: int, client_port: int) -> int:
    """The process that holds the proxy's side of a connection on the loopback."""
    inode = inode_of(f"0100007F:{port:04X}", f"0100007F:{client_port:04X}")
    for pid in workers:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(descriptor.readlink()) == f"socket:[{inode}]":
                    return pid
    raise AssertionError("no worker has the connection")


def inode_of(local: str, remote: str) -> str:
    # The table is no snapshot: while others connect, a row may be left out of one reading.
    for _ in range(100):
        for row in Path("/proc/net/tcp").read_text().splitlines():
            cells = row.split()
            if (cells[1], cells[2]) == (local, remote):
                return cells[9]
    raise AssertionError("no such connection")


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def wait_end(process: int) -> None:
    """Return when the process behind a pidfd has ended, be it a zombie or gone."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(process, ended.set)
    try:
        async with asyncio.timeout(10):
            await ended.wait()
    finally:
        loop.remove_reader(process)


def marks(reply: Message) -> str:
    return reply.get("x-foldgate-compaction") or ""


# Starting


async def test_the_ready_line_comes_once_and_counts_the_workers(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    async with Fleet(up.base_url, tmp_path) as fold:
        assert fold.ready["workers"] == WORKERS
        assert not fold.url.endswith(":0")
        workers = fold.workers()
        assert len(workers) == WORKERS
        assert fold.threads() == 1
        assert await fold.terminate() == 0
    assert len(fold.stdout) == 1
    assert fold.log == ""
    assert not any(map(is_running, workers))


@pytest.mark.slow
async def test_the_ready_line_for_people_counts_the_workers(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    up.window = 16_384
    async with Fleet(up.base_url, tmp_path, json_lines=False) as fold:
        assert fold.stdout == [
            f"foldgate listening on {fold.url} -> {up.base_url} "
            f"(3 workers, store {store_url(tmp_path)}, window 16384 from models)\n"
        ]
        assert await fold.terminate() == 0


async def test_one_worker_is_the_process_itself(up: ScriptedUpstream, tmp_path: Path) -> None:
    async with Fleet(up.base_url, tmp_path, "--workers", "1") as fold:
        assert "workers" not in fold.ready
        assert fold.workers() == set()
        assert await fold.terminate() == 0


@pytest.mark.slow
async def test_connections_reach_every_worker(up: ScriptedUpstream, tmp_path: Path) -> None:
    async with Fleet(up.base_url, tmp_path) as fold, contextlib.AsyncExitStack() as held:
        opened = [await held.enter_async_context(fold.connected()) for _ in range(MANY)]
        for connection in opened:
            await connection.chat(b.chat_body([b.user("hi")]))
        assert {connection.worker for connection in opened} == fold.workers()
    assert len(up.main) == MANY


REFUSALS = {
    "no upstream": ((), "upstream.base_url: name the upstream"),
    "too many": (("--upstream", UPSTREAM, "--workers", "65"), "server.workers: "),
    "a host that is not ours": (
        ("--upstream", UPSTREAM, "--host", "192.0.2.1"),
        "cannot listen on 192.0.2.1:0 (",
    ),
    "not a database": (("--upstream", UPSTREAM), "SQLITE_NOTADB"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSALS)
async def test_a_refusal_is_said_once(tmp_path: Path, name: str) -> None:
    args, expected = REFUSALS[name]
    (tmp_path / "foldgate.db").write_bytes(b"this is not a database, by far" * 100)
    store = ("--store", store_url(tmp_path), "--port", "0")
    env = {"FOLDGATE_UPSTREAM__DISCOVER": "false"}
    finished = await command("serve", "--workers", "3", *store, *args, folder=tmp_path, env=env)
    assert (finished.code, finished.stdout) == (1, "")
    (line,) = finished.stderr.splitlines()
    assert line.startswith("foldgate: ")
    assert expected in line


async def test_a_port_that_is_taken_is_said_once(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        await assert_taken(port, tmp_path, "--workers", "3")


@pytest.mark.slow
async def test_a_port_with_workers_is_not_shared_with_another_foldgate(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    async with Fleet(up.base_url, tmp_path) as fold:
        port = fold.url.rpartition(":")[2]
        await assert_taken(port, tmp_path, "--workers", "3")
        await assert_taken(port, tmp_path)


async def assert_taken(port: str, folder: Path, *args: str) -> None:
    arguments = ["--upstream", UPSTREAM, "--store", store_url(folder), "--port", port, *args]
    finished = await command("serve", *arguments, folder=folder)
    assert (finished.code, finished.stdout) == (1, "")
    (line,) = finished.stderr.splitlines()
    assert line.startswith(f"foldgate: cannot listen on 127.0.0.1:{port} (")
    assert "choose another --port" in line


@asynccontextmanager
async def starting(
    folder: Path,
) -> AsyncIterator[tuple[Fleet, "asyncio.Task[Fleet]", asyncio.Event]]:
    """Workers that wait for the upstream to tell its window, until the event is set."""
    gate = asyncio.Event()
    async with RawUpstream() as raw:
        raw.replies.extend(
            [gate, b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n"] for _ in range(99)
        )
        fold = Fleet(raw.base_url, folder, env={"FOLDGATE_UPSTREAM__PROBE_SECONDS": "30"})
        ready = asyncio.get_running_loop().create_task(fold.__aenter__())
        try:
            await raw.wait_for(lambda: len(raw.requests) >= WORKERS, 20)
            yield fold, ready, gate
        finally:
            gate.set()
            await fold.kill()
            await asyncio.gather(ready, return_exceptions=True)


@pytest.mark.slow
async def test_a_worker_that_dies_while_they_start_ends_the_start(tmp_path: Path) -> None:
    async with starting(tmp_path) as (fold, ready, gate):
        os.kill(min(fold.workers()), signal.SIGKILL)
        gate.set()
        said = r"exit code 1:\nfoldgate: a worker ended before all were ready \(SIGKILL\)\n$"
        with pytest.raises(NotServing, match=said):
            await ready
    assert fold.stdout == []


@pytest.mark.slow
async def test_sigterm_while_they_start_ends_them_in_order(tmp_path: Path) -> None:
    async with starting(tmp_path) as (fold, ready, gate):
        fold.signal(signal.SIGTERM)
        gate.set()
        with pytest.raises(NotServing, match=r"exit code 0:\n$"):
            await ready
    assert fold.stdout == []


# Living


async def test_a_worker_that_is_killed_is_replaced(up: ScriptedUpstream, tmp_path: Path) -> None:
    async with Fleet(up.base_url, tmp_path) as fold:
        first = fold.workers()
        for count, worker in enumerate(first, 1):
            before = fold.workers()
            os.kill(worker, signal.SIGKILL)
            await fold.wait_log("worker_restarted", count)
            (new,) = fold.workers() - before
            for _ in range(5):
                async with fold.connected() as connection:
                    await connection.chat(b.chat_body([b.user("hi")]))
            async with fold.connected_to(new):
                pass
        assert len(fold.workers()) == WORKERS
        assert not fold.workers() & first
        assert fold.log.count("SIGKILL") == WORKERS
        assert len(fold.stdout) == 1
        assert await fold.terminate() == 0


@pytest.mark.slow
async def test_a_worker_that_cannot_start_again_is_tried_again_later(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    async with Fleet(up.base_url, tmp_path) as fold:
        with contextlib.closing(sqlite3.connect(tmp_path / "foldgate.db")) as database:
            database.execute("PRAGMA user_version = 9999")
        os.kill(min(fold.workers()), signal.SIGKILL)
        await fold.wait_log("worker_down")
        assert "newer" in fold.log
        assert len(fold.workers()) == WORKERS - 1
        async with fold.connected() as connection:
            await connection.chat(b.chat_body([b.user("hi")]))
        assert await fold.terminate() == 0
    assert len(fold.stdout) == 1


async def test_events_of_all_workers_are_whole_lines(
    up: ScriptedUpstream, tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    sessions = 12

    async def compact(fold: Served, seed: int) -> None:
        # Longer than what a pipe takes in one piece by itself.
        body = b.chat_body(b.tool_session(15, seed=seed), model=f"{seed}-" + "m" * 6000)
        headers = {"Connection": "close"}
        async with client.post(fold.url + CHAT, data=body, headers=headers) as reply:
            assert reply.status == 200
            assert reply.headers["x-foldgate-compaction"].startswith("compacted")

    async with Fleet(up.base_url, tmp_path, env=WINDOW) as fold:
        async with asyncio.TaskGroup() as group:
            for seed in range(sessions):
                group.create_task(compact(fold, seed))
        await fold.wait_event("compaction_completed", sessions)
        assert await fold.terminate() == 0
    assert all(isinstance(loads(line), dict) for line in fold.stdout)
    assert len(fold.events.of_type("compaction_completed")) == sessions
    assert max(map(len, fold.stdout)) > 6000
    assert fold.log == ""
    assert up.violations == []


async def test_what_one_worker_compacted_another_one_reuses(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    body = b.chat_body(b.tool_session(15))
    async with Fleet(up.base_url, tmp_path, env=WINDOW) as fold:
        one, two, _ = fold.workers()
        async with fold.connected_to(one) as connection:
            assert "compacted" in marks(await connection.chat(body))
        async with fold.connected_to(two) as connection:
            assert marks(await connection.chat(body)) == "reused"
        assert fold.events.of_type("store_failed") == []
        assert await fold.terminate() == 0
    assert len(up.summaries) == 1
    assert up.main[0].body == up.main[1].body


@pytest.mark.slow
async def test_sighup_reaches_all_workers_and_those_that_come_later(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    config = tmp_path / "foldgate.toml"
    config.write_text("[upstream]\ncontext_window = 100000\n")
    async with Fleet(up.base_url, tmp_path, "--config", str(config)) as fold:
        config.write_text("[upstream]\ncontext_window = 8000\n")
        fold.signal(signal.SIGHUP)
        await fold.wait_log("reloaded", WORKERS)
        config.write_text("this is no TOML")
        fold.signal(signal.SIGHUP)
        await fold.wait_log("reload_refused", WORKERS)
        workers = fold.workers()
        new = await fold.replaced(min(workers), 1)
        for seed, worker in enumerate([*workers - {min(workers)}, new]):
            async with fold.connected_to(worker) as connection:
                body = b.chat_body(b.tool_session(15, seed=seed))
                assert "compacted" in marks(await connection.chat(body))
        assert await fold.terminate() == 0


# Ending


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_lets_the_streams_of_all_workers_finish(
    up: ScriptedUpstream, tmp_path: Path, number: signal.Signals
) -> None:
    gate = asyncio.Event()
    up.reply = lambda _: Reply(text="one two three four", gate=gate)
    async with Fleet(up.base_url, tmp_path) as fold:
        workers = fold.workers()
        async with contextlib.AsyncExitStack() as held:
            for worker in workers:
                connection = await held.enter_async_context(fold.connected_to(worker))
                await begin_stream(connection)
                held.push_async_callback(finish_stream, connection)
            # As a terminal does it: everybody gets it, and the parent passes it on once more.
            for pid in workers if number == signal.SIGINT else ():
                os.kill(pid, number)
            fold.signal(number)
            await fold.wait_log("draining", WORKERS)
            gate.set()
        assert await fold.wait() == 0
    assert not any(map(is_running, workers))
    # A client that has read all may close before the end of its stream is written.
    assert "Traceback" not in fold.log or "closing transport" in fold.log


@pytest.mark.slow
async def test_workers_of_a_killed_parent_finish_and_end(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    up.reply = lambda _: Reply(text="one two three four", gate=gate)
    async with Fleet(up.base_url, tmp_path) as fold, contextlib.AsyncExitStack() as held:
        workers = fold.workers()
        processes = [os.pidfd_open(pid) for pid in workers]
        for process in processes:
            held.callback(os.close, process)
        try:
            async with fold.connected_to(min(workers)) as connection:
                await begin_stream(connection)
                fold.signal(signal.SIGKILL)
                await fold.wait_log("parent_gone", WORKERS)
                gate.set()
                await finish_stream(connection)
            assert await fold.wait() == -signal.SIGKILL
            for process in processes:
                await wait_end(process)
        finally:
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
    assert "Traceback" not in fold.log


async def begin_stream(connection: Connection) -> None:
    connection.writer.write(request("POST", CHAT, STREAMED))
    async with asyncio.timeout(10):
        head = await connection.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")


async def finish_stream(connection: Connection) -> None:
    async with asyncio.timeout(10):
        await connection.reader.readuntil(b"data: [DONE]\n\n")


@pytest.mark.slow
async def test_a_worker_that_does_not_end_in_order_is_told(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    up.reply = lambda _: Reply(text="one two three four", gate=asyncio.Event())
    async with Fleet(up.base_url, tmp_path) as fold:
        worker = min(fold.workers())
        async with fold.connected_to(worker) as connection:
            await begin_stream(connection)
            fold.signal(signal.SIGTERM)
            await fold.wait_log("draining")
            os.kill(worker, signal.SIGKILL)
            assert await fold.wait() == 1
    assert "foldgate: a worker did not end in order (SIGKILL)\n" in fold.log


# Lines of several processes


def test_a_line_is_one_write() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    line = {"text": "x" * 20_000}
    with theirs, os.fdopen(ours.detach(), "w") as stream:
        JsonLines(stream).write({**line})
        # A datagram is what was given to one write.
        assert loads(theirs.recv(100_000)) == line


WRITERS = """
import os, sys
from proxy.telemetry import JsonLines
lines = JsonLines(sys.stdout, shared=True)
pids = []
for writer in range(4):
    pid = os.fork()
    if pid == 0:
        for number in range(100):
            lines.write({"text": str(writer) * (30_000 if number % 2 else 10)})
        os._exit(0)
    pids.append(pid)
for pid in pids:
    os.waitpid(pid, 0)
"""


def test_long_lines_of_several_processes_do_not_mix() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITERS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 400
    for line in lines:
        value = loads(line)
        assert isinstance(value, dict)
        assert len(set(str(value["text"]))) == 1
