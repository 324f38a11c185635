"""The proxy, running: in this process for most tests, as a process of its own for a few."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import web

from proxy.codec import Json, JsonObject, MalformedJson, loads
from proxy.server.app import GATEWAY, build_app
from proxy.server.handlers import Gateway
from proxy.server.serve import make_runner
from proxy.settings import Settings, load_settings
from proxy.telemetry import Event

ROOT = Path(__file__).parents[2]
_READY = re.compile(r"foldgate listening on (http://\S+) -> ")


class Events(list[JsonObject]):
    """Events as they are written with `--json`; it is an event sink too."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def emit(self, event: Event) -> None:
        self.add(event.to_json())

    def add(self, line: JsonObject) -> None:
        self.append(line)
        self.notify()

    def notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def of_type(self, type_: str) -> list[JsonObject]:
        return [event for event in self if event["type"] == type_]

    async def wait_until(self, predicate: Callable[[], bool], seconds: float = 10.0) -> None:
        """Return once `predicate` holds; it is tried after every event or line."""
        async with asyncio.timeout(seconds):
            while not predicate():
                await self._changed.wait()

    async def wait_event(self, type_: str, count: int = 1, seconds: float = 10.0) -> JsonObject:
        """Return event number `count` (from 1) of a type, waiting for it if need be."""
        await self.wait_until(lambda: len(self.of_type(type_)) >= count, seconds)
        return self.of_type(type_)[count - 1]


def store_url(folder: Path) -> str:
    """The store that `Running` and `Served` use; a second start in the folder finds it again."""
    return f"sqlite:///{folder / 'foldgate.db'}"


class Running:
    """The real application over TCP, in this process.

    ``Running(up.base_url, tmp_path, **{"compaction.threshold": 0.5})``; the third positional
    argument replaces the process's environment. ``profiles=[{...}]`` sets profiles. Keys come from
    the process's environment always.
    """

    def __init__(
        self,
        upstream: str,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        /,
        **values: Json,
    ) -> None:
        sections: JsonObject = {}
        for name, value in {
            "upstream.base_url": upstream,
            "store.url": store_url(folder),
            **values,
        }.items():
            section, _, key = name.partition(".")
            if key:
                members = sections.setdefault(section, {})
                assert isinstance(members, dict)
                members[key] = value
            else:
                sections[section] = value
        overrides = {name: value for name, value in sections.items() if isinstance(value, dict)}
        lists = {name: value for name, value in sections.items() if isinstance(value, list)}
        settings = load_settings(None, overrides, environment)
        if lists:
            plain = settings.model_dump(exclude_unset=True)
            settings = Settings.model_validate({**plain, **lists})
        self.settings: Settings = settings
        self.events = Events()
        self.url = ""
        self._runner: web.AppRunner | None = None

    @property
    def gateway(self) -> Gateway:
        """The heart of the application, for drain and reload."""
        assert self._runner is not None
        return self._runner.app[GATEWAY]

    async def wait_event(self, type_: str, count: int = 1, seconds: float = 10.0) -> JsonObject:
        return await self.events.wait_event(type_, count, seconds)

    async def __aenter__(self) -> Self:
        self._runner = make_runner(build_app(self.settings, self.events))
        try:
            await self._runner.setup()
            await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        except BaseException:
            await self._runner.cleanup()
            raise
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Shut down in order; the store is closed afterwards."""
        if self._runner is not None:
            await self._runner.cleanup()


class NotServing(AssertionError):
    """The process ended before it was ready."""


class Served:
    """`python -m proxy serve --json` as a process of its own, on a port it picks.

    `upstream` may be None when a config file or the environment names it. `args` come last on
    the command line. `env` is added to this process's environment.
    """

    def __init__(
        self,
        upstream: str | None,
        folder: Path,
        *,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        json_lines: bool = True,
    ) -> None:
        self._command = ["serve", "--port", "0", "--store", store_url(folder)]
        self._command += ["--json"] if json_lines else []
        self._command += [] if upstream is None else ["--upstream", upstream]
        self._command += args
        self._env = env or {}
        self._folder = folder
        self._readers: list[asyncio.Task[None]] = []
        self._process: asyncio.subprocess.Process | None = None
        self.events = Events()
        """What came on stdout as JSON, the ready line aside."""
        self.ready: JsonObject = {}
        self.stdout: list[str] = []
        self.stderr: list[str] = []
        self.url = ""

    @property
    def process(self) -> asyncio.subprocess.Process:
        assert self._process is not None
        return self._process

    @property
    def log(self) -> str:
        """What came on stderr so far."""
        return "".join(self.stderr)

    async def wait_event(self, type_: str, count: int = 1, seconds: float = 10.0) -> JsonObject:
        return await self.events.wait_event(type_, count, seconds)

    async def wait_log(self, text: str, count: int = 1, seconds: float = 10.0) -> None:
        """Return once `text` was logged `count` times."""
        await self.events.wait_until(lambda: self.log.count(text) >= count, seconds)

    async def __aenter__(self) -> Self:
        self._process = await _start(self._command, self._folder, self._env)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        loop = asyncio.get_running_loop()
        self._readers = [
            loop.create_task(self._read(self._process.stdout, self._take_stdout)),
            loop.create_task(self._read(self._process.stderr, self.stderr.append)),
        ]
        try:
            await self.events.wait_until(lambda: bool(self.url) or self._ended, 20.0)
            if not self.url:
                raise NotServing(f"exit code {await self.wait()}:\n{self.log}")
        except BaseException:
            await self.kill()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.kill()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def terminate(self, seconds: float = 15.0) -> int:
        """Ask it to stop; returns its exit code."""
        self.process.terminate()
        return await self.wait(seconds)

    async def kill(self) -> int:
        """End it at once; harmless when it has ended already."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        return await self.wait()

    async def wait(self, seconds: float = 15.0) -> int:
        """Wait for its end and for everything it wrote; returns its exit code."""
        async with asyncio.timeout(seconds):
            code = await self.process.wait()
            await asyncio.gather(*self._readers)
        return code

    @property
    def _ended(self) -> bool:
        return all(reader.done() for reader in self._readers)

    async def _read(self, stream: asyncio.StreamReader, take: Callable[[str], None]) -> None:
        try:
            while line := await stream.readline():
                take(line.decode())
                self.events.notify()
        finally:
            asyncio.get_running_loop().call_soon(self.events.notify)

    def _take_stdout(self, text: str) -> None:
        self.stdout.append(text)
        if found := _READY.match(text):
            self.url = found[1]
        try:
            line = loads(text)
        except MalformedJson:
            return
        if isinstance(line, dict) and line.get("type") == "listening":
            self.ready = line
            self.url = str(line["url"])
        elif isinstance(line, dict):
            self.events.append(line)


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that ended."""

    code: int
    stdout: str = field(repr=False)
    stderr: str = field(repr=False)


async def command(
    *args: str, folder: Path, env: Mapping[str, str] | None = None, seconds: float = 20.0
) -> Finished:
    """Run `python -m proxy ARGS` to its end; the process never outlives the call."""
    process = await _start(args, folder, env or {})
    try:
        async with asyncio.timeout(seconds):
            stdout, stderr = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    assert process.returncode is not None
    return Finished(process.returncode, stdout.decode(), stderr.decode())


@contextlib.asynccontextmanager
async def started(
    *args: str, folder: Path, env: Mapping[str, str] | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python -m proxy ARGS` for as long as the block runs; killed at its end."""
    process = await _start(args, folder, env or {})
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def _start(
    args: Sequence[str], folder: Path, env: Mapping[str, str]
) -> asyncio.subprocess.Process:
    inherited = {**os.environ, "HOME": str(folder), "COLUMNS": "200", "NO_COLOR": "1"}  # noqa: TID251
    for name in ("XDG_DATA_HOME", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        inherited.pop(name, None)
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "proxy",
        *args,
        cwd=ROOT,
        env={**inherited, **env},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
