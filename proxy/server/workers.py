"""Several processes behind one port: the parent that starts, watches and ends the workers.

The parent reserves the port, forks the workers, and from then on only waits: for a signal, for
the report of a worker that starts, for the time to start one again. It runs no event loop and no
thread, so a fork copies nothing that is in motion. Each worker opens its own listening socket on
the port, and the kernel spreads connections over them; each has its own store connection.

Two pipes tie them together. A worker writes one report, ready or failed, to a pipe of its own
and closes it. The *lifeline* is never written to: its other end is held by the parent alone, so
a worker that reads its end knows that the parent is gone, however it went.
"""

import asyncio
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import NoReturn

from proxy.codec import JsonObject, MalformedJson, as_text, dumps, loads
from proxy.errors import ProxyError
from proxy.server.gate import Gate
from proxy.server.serve import Announce, CannotListen, cannot_listen, keep_fixed, serve
from proxy.settings import Settings, SettingsError
from proxy.telemetry import EventSink, log

SETTLED_SECONDS = 5.0
"""A worker that lived this long did not die of its start."""
MAX_PAUSE_SECONDS = 30.0

_READ_BYTES = 65_536


class WorkerFailed(Exception):
    """The workers could not start, or did not end in order; the text says why."""


@dataclass(frozen=True, slots=True)
class Serving:
    """What every worker needs to run `serve`."""

    sink: EventSink
    announce: Announce
    """Called in the parent, once all workers are ready."""
    reload: Callable[[], Settings]
    run: Callable[[Coroutine[None, None, None]], None]
    """Runs a coroutine to its end on a new event loop."""


def supervise(settings: Settings, serving: Serving) -> None:
    """Serve with `settings.server.workers` processes until SIGTERM or SIGINT, then drain them.

    Raises:
        CannotListen: when the port is taken or the address is not ours.
        SettingsError: when this system cannot share a port between processes.
        WorkerFailed: when a worker failed before all were ready, with its own message, or when
            one did not end in order.
    """
    if sys.platform == "win32" or not hasattr(socket, "SO_REUSEPORT"):
        raise SettingsError(
            "server.workers: this system cannot share a port between processes; leave it 1"
        )
    with ExitStack() as held:
        port = _reserve(settings, held)
        signals = _Signals()
        held.callback(signals.close)
        _Parent(settings, serving, port, signals, held).run()


def pause_seconds(quick_deaths: int) -> float:
    """Return how long to wait before a start, after so many quick deaths in a row.

    >>> [pause_seconds(deaths) for deaths in (0, 1, 2, 3, 4, 99)]
    [0.0, 0.0, 1.0, 2.0, 4.0, 30.0]
    """
    if quick_deaths < 2:
        return 0.0
    return min(MAX_PAUSE_SECONDS, 2.0 ** min(quick_deaths - 2, 10))


def describe_end(code: int) -> str:
    """Return an exit code as words; a negative one is the signal that ended the process.

    >>> describe_end(3), describe_end(-9)
    ('exit code 3', 'SIGKILL')
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _reserve(settings: Settings, held: ExitStack) -> int:
    """Bind every address of the host without listening; returns the port.

    The sockets never listen, so no connection goes to them, but they keep the port ours while no
    worker listens, and let port 0 be picked once for all.
    """
    host, port = settings.server.host, settings.server.port
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        for family, kind, protocol, _, address in dict.fromkeys(found):
            bound = held.enter_context(socket.socket(family, kind, protocol))
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # SO_REUSEPORT only afterwards: with it, a second foldgate could bind this port and
            # take every other connection. SO_REUSEADDR only before: it passes over connections
            # in TIME_WAIT, but would let others in while no worker listens.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((address[0], port, *address[2:]))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            port = int(bound.getsockname()[1])
    except OSError as error:
        raise cannot_listen(settings, error) from None
    return port


class _Signals:
    """The signals of this process as bytes on a pipe, which `select` can wait for."""

    NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

    def __init__(self) -> None:
        self.pipe, self._write = os.pipe()
        os.set_blocking(self.pipe, False)
        os.set_blocking(self._write, False)
        signal.set_wakeup_fd(self._write)
        self._before = {number: signal.signal(number, _ignore) for number in self.NUMBERS}

    def close(self) -> None:
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.pipe)
        os.close(self._write)

    def hold(self) -> None:
        """Let signals wait. A fork inherits this."""
        signal.pthread_sigmask(signal.SIG_BLOCK, self.NUMBERS)

    def release(self) -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.NUMBERS)


def _ignore(*_: object) -> None:
    """Take a signal; its number is on the pipe already."""


@dataclass(slots=True)
class _Worker:
    """A child process."""

    slot: int
    pid: int
    report: int | None
    """Read end of its report; None once it was read."""
    born: float = field(default_factory=time.monotonic)
    said: bytes = b""

    @property
    def told(self) -> JsonObject:
        """The report; empty when there is none."""
        try:
            report = loads(self.said)
        except MalformedJson:
            return {}
        return report if isinstance(report, dict) else {}

    def hear(self) -> None:
        """Read what there is of the report."""
        if self.report is not None:
            piece = os.read(self.report, _READ_BYTES)
            self.said += piece
            if not piece:
                os.close(self.report)
                self.report = None


class _Parent:
    """The state of the supervisor, and its one loop."""

    def __init__(
        self, settings: Settings, serving: Serving, port: int, signals: _Signals, held: ExitStack
    ) -> None:
        self._settings = settings
        self._serving = serving
        self._port = port
        self._signals = signals
        self._held = held
        self._lifeline, self._lifeline_end = os.pipe()
        self._workers: dict[int, _Worker] = {}
        self._quick_deaths = [0] * settings.server.workers
        self._due: dict[int, tuple[float, str]] = {}
        """Slots without a worker: when to start one, and how the last one ended."""
        self._announced = False
        self._stopping = False
        self._failure = ""

    def run(self) -> None:
        try:
            for slot in range(self._settings.server.workers):
                self._start(slot)
            while self._workers or self._due:
                self._wait()
        finally:
            # Whatever happened: workers that are left end by this.
            os.close(self._lifeline_end)
            for pid in self._workers:
                os.waitpid(pid, 0)
            os.close(self._lifeline)
        if self._failure:
            raise WorkerFailed(self._failure)

    def _wait(self) -> None:
        starting = {w.report: w for w in self._workers.values() if w.report is not None}
        timeout = None
        if self._due:
            timeout = max(0.0, min(at for at, _ in self._due.values()) - time.monotonic())
        readable, _, _ = select.select([self._signals.pipe, *starting], (), (), timeout)
        if self._signals.pipe in readable:
            for number in dict.fromkeys(os.read(self._signals.pipe, _READ_BYTES)):
                self._take(number)
        for pipe in readable:
            if pipe in starting:
                starting[pipe].hear()
        self._announce_once()
        now = time.monotonic()
        for slot in [slot for slot, (at, _) in self._due.items() if at <= now]:
            self._start_again(slot)

    def _announce_once(self) -> None:
        if self._announced or self._stopping:
            return
        reports = [worker.told for worker in self._workers.values() if worker.report is None]
        lines = [(line, r["text"]) for r in reports if isinstance(line := r.get("line"), dict)]
        if len(lines) == self._settings.server.workers:
            self._announced = True
            line, text = lines[0]
            self._serving.announce(line, as_text(text))

    def _take(self, number: int) -> None:
        if number == signal.SIGCHLD:
            self._reap()
            return
        if number == signal.SIGHUP:
            self._reload()
        else:
            self._stopping = True
            self._due.clear()
        self._forward(number)

    def _forward(self, number: int) -> None:
        for pid in self._workers:
            os.kill(pid, number)

    def _reload(self) -> None:
        # The workers do the same and say what is wrong; this is for those that start later.
        with suppress(SettingsError, OSError):
            new = self._serving.reload()
            Gate(new)
            self._settings = keep_fixed(self._settings, new)

    def _reap(self) -> None:
        for worker in [*self._workers.values()]:
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            if pid:
                del self._workers[pid]
                while worker.report is not None:
                    worker.hear()
                self._bury(worker, os.waitstatus_to_exitcode(status))

    def _bury(self, worker: _Worker, code: int) -> None:
        end = describe_end(code)
        reason = as_text(worker.told.get("error"))
        if self._stopping:
            if code and not self._failure:
                self._failure = reason or f"a worker did not end in order ({end})"
            return
        if not self._announced:
            self._failure = reason or f"a worker ended before all were ready ({end})"
            self._stopping = True
            self._forward(signal.SIGTERM)
            return
        quick = time.monotonic() - worker.born < SETTLED_SECONDS
        deaths = self._quick_deaths[worker.slot] + 1 if quick else 0
        self._quick_deaths[worker.slot] = deaths
        pause = pause_seconds(deaths)
        if pause:
            log().error("worker_down", status=end, reason=reason, pause_seconds=pause)
        self._due[worker.slot] = time.monotonic() + pause, end

    def _start_again(self, slot: int) -> None:
        _, end = self._due.pop(slot)
        try:
            self._start(slot)
        except OSError as error:
            log().error("worker_down", status=end, reason=error.strerror)
            self._due[slot] = time.monotonic() + MAX_PAUSE_SECONDS, end
        else:
            log().warning("worker_restarted", status=end)

    def _start(self, slot: int) -> None:
        # What is still buffered would be written by both.
        sys.stdout.flush()
        sys.stderr.flush()
        report, write = os.pipe()
        self._signals.hold()
        try:
            pid = os.fork()
            if pid == 0:
                self._be_worker(write)
        except OSError:
            os.close(report)
            raise
        finally:
            self._signals.release()
            os.close(write)
        self._workers[pid] = _Worker(slot, pid, report)

    def _be_worker(self, report: int) -> NoReturn:
        """Run as a worker. Nothing of the parent's stack may run in it, not even its `finally`."""
        code = 1
        try:
            try:
                self._let_go()
                code = self._work(report)
            finally:
                if (error := sys.exception()) is not None:
                    traceback.print_exception(error)
        finally:
            os._exit(code)

    def _let_go(self) -> None:
        """Close what is the parent's."""
        os.close(self._lifeline_end)
        self._held.close()
        for worker in self._workers.values():
            if worker.report is not None:
                os.close(worker.report)

    def _work(self, report: int) -> int:
        with open(report, "wb", buffering=0) as pipe:

            def tell(message: JsonObject) -> None:
                # Nobody reads it when the parent is gone; the lifeline takes care of that.
                with suppress(BrokenPipeError):
                    pipe.write(dumps(message))
                pipe.close()

            def ready(line: JsonObject, text: str) -> None:
                tell({"line": line, "text": text})
                # Held since the fork: only now there are handlers for them.
                self._signals.release()

            try:
                self._serving.run(self._attached(ready))
            except (SettingsError, CannotListen, ProxyError, OSError) as error:
                if pipe.closed:
                    raise
                tell({"error": str(error)})
                return 1
        return 0

    async def _attached(self, ready: Announce) -> None:
        """Serve as long as the parent lives."""
        loop = asyncio.get_running_loop()

        def orphaned() -> None:
            loop.remove_reader(self._lifeline)
            log().warning("parent_gone")
            os.kill(os.getpid(), signal.SIGTERM)

        loop.add_reader(self._lifeline, orphaned)
        try:
            await serve(self._settings, self._serving.sink, ready, self._serving.reload, self._port)
        finally:
            loop.remove_reader(self._lifeline)
            # The loop gives its handlers back before the process is over; a second SIGTERM in
            # between must not count as a violent end.
            self._signals.hold()
