"""`foldgate run -- CLIENT`: a proxy for as long as one client runs.

The client keeps the terminal, so the proxy writes to a log file. Whatever ends this command ends
the client and what the client started.
"""

import asyncio
import logging
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, TextIO

import typer
from aiohttp import web
from psutil import Process

from proxy import codec
from proxy.codec import JsonObject
from proxy.commands import clients, processes
from proxy.commands.command_line import (
    ConfigOption,
    fail,
    find_upstream,
    load,
    run_fast,
    say,
    settled,
)
from proxy.errors import ProxyError
from proxy.server.app import GATEWAY
from proxy.server.serve import CannotListen, serving, window_of
from proxy.sessions.store_check import counted
from proxy.settings import Settings, SettingsError, environment_of_children
from proxy.telemetry import (
    COMPACTION_COMPLETED,
    COMPACTION_FAILED,
    STORE_FAILED,
    Event,
    EventSink,
    Fanout,
    JsonLines,
    configure_log,
)
from proxy.upstream.windows import window_of as window_in

NOT_FOUND = 127
NOT_EXECUTABLE = 126
"""Exit codes of a command that could not be started, as shells have them."""
LOG_BYTES = 8 * 1024 * 1024
_LOG_NAME = "run.log"
if sys.platform == "win32":
    _KEYS = frozenset({signal.SIGINT})
else:
    _KEYS = frozenset({signal.SIGINT, signal.SIGQUIT})
"""What Ctrl-C and its stronger relative send."""
_Process = subprocess.Popen[bytes]


def run_command(
    client: Annotated[
        list[str],
        typer.Argument(metavar="CLIENT", help="The client's command and its arguments."),
    ],
    upstream: Annotated[
        str | None,
        typer.Option(
            help="Base URL of the upstream; without it that of OPENAI_BASE_URL, or a server on "
            "this machine."
        ),
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 0,
    store: Annotated[str | None, typer.Option(help="Where session state is kept.")] = None,
    config: ConfigOption = None,
    log_file: Annotated[
        Path | None, typer.Option("--log", help="Log file; by default in your log folder.")
    ] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Write the closing line as JSON.")
    ] = False,
) -> None:
    """Run a client behind a proxy of its own; ends with the client's exit code.

    The client finds the proxy through OPENAI_BASE_URL and its relatives; codex, aider and opencode
    are told in their own ways. Example: foldgate run -- codex
    """
    overrides: dict[str, JsonObject] = {"server": {"host": "127.0.0.1", "port": port, "workers": 1}}
    if upstream is not None:
        overrides["upstream"] = {"base_url": upstream}
    if store is not None:
        overrides["store"] = {"url": store}
    settings = _with_upstream(load(config, overrides), config, overrides)
    path = log_file or _default_log()
    try:
        with _logging_to(path) as stream:
            counts = Counts()
            sink = Fanout((counts, JsonLines(stream)))
            run = Run(settings, client, sink, counts)
            run_fast(run.until_the_client_ends())
    except CannotStart as error:
        fail(str(error), error.code)
    except (SettingsError, CannotListen, ProxyError, OSError) as error:
        fail(str(error))
    say(codec.dumps(counts.to_json()).decode() if json_output else f"foldgate: {counts.text(path)}")
    raise typer.Exit(run.code)


def _with_upstream(
    settings: Settings, config: Path | None, overrides: dict[str, JsonObject]
) -> Settings:
    """Return the settings with an upstream: the client's own one, or a server on this machine."""
    if settings.upstream.base_url is None:
        variables = environment_of_children()
        for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
            if url := variables.get(name):
                say(f"foldgate: the upstream is {url}, from {name}")
                return load(config, {**overrides, "upstream": {"base_url": url}})
    return settled(settings, find_upstream(settings))


class CannotStart(Exception):
    """The client cannot be started; `code` is the exit code of that."""

    def __init__(self, text: str, code: int) -> None:
        """Take the text and the exit code."""
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class Counts:
    """What happened during a run; an event sink."""

    requests: int = 0
    compactions: int = 0
    tokens_kept_out: int = 0
    troubles: int = 0
    """Events that somebody should look at."""

    def emit(self, event: Event) -> None:
        """Count an event."""
        self.compactions += event.type == COMPACTION_COMPLETED
        self.troubles += event.type in {COMPACTION_FAILED, STORE_FAILED}

    def to_json(self) -> JsonObject:
        """Return them as an object."""
        return {
            "requests": self.requests,
            "compactions": self.compactions,
            "tokens_kept_out": self.tokens_kept_out,
            "warnings": self.troubles,
        }

    def text(self, log: Path) -> str:
        """Return them as a line for people."""
        trouble = f"; {counted(self.troubles, 'warning')} in {log}" if self.troubles else ""
        return (
            f"{counted(self.requests, 'request')}, {counted(self.compactions, 'compaction')}, "
            f"{counted(self.tokens_kept_out, 'token')} kept out{trouble}"
        )


@dataclass(slots=True)
class Run:
    """One client and its proxy."""

    settings: Settings
    command: Sequence[str]
    sink: EventSink
    counts: Counts
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    code: int = 0
    """The client's exit code, once it has ended."""
    _process: _Process | None = None
    _stopped: int = 0
    """The signal that ended it all, if one did."""
    _family: list[Process] = field(default_factory=list)
    """The client and its descendants when that signal came."""

    async def until_the_client_ends(self) -> None:
        """Serve until the client ends.

        Raises:
            CannotStart: when the client's command cannot be started.
            CannotListen, SettingsError, StoreError: when the proxy cannot be set up.
        """
        async with serving(self.settings, self.sink) as (url, app):
            try:
                command, variables = await self._pointed(url, app)
                await self._client(command, variables)
            finally:
                totals = app[GATEWAY].totals
                self.counts.requests = totals.requests
                self.counts.tokens_kept_out = totals.tokens_kept_out

    async def _pointed(self, url: str, app: web.Application) -> tuple[list[str], dict[str, str]]:
        """Return the client's command and environment, pointed at the proxy."""
        window = (await window_of(app)).tokens
        name, _ = clients.client_of(self.command)
        if place := clients.CONFIGURED_IN.get(name):
            say(
                f"foldgate: {name} takes its base URL from {place}, not from the environment; "
                f"put {url}/v1 there (--port keeps the port), or use `foldgate serve`"
            )
        inherited = environment_of_children()
        models: dict[str, int | None] = {}
        if window is None or name in clients.NAME_MODELS:
            listed = await _models(url, inherited, self.settings.upstream.probe_seconds)
            models = {name: tokens or window for name, tokens in (listed or {}).items()}
            if window is None and not any(models.values()):
                self._warn(app[GATEWAY].gate.base.url, answers=listed is not None)
        variables = clients.environment(inherited, url, name, models)
        return clients.arguments(self.command, url, models), variables

    def _warn(self, upstream: str, *, answers: bool) -> None:
        """Say that the window is unknown, once."""
        trouble = "does not tell its context window" if answers else "does not answer"
        compaction, limits = self.settings.compaction, self.settings.limits
        limit = int(compaction.threshold * limits.max_context_chars)
        say(
            f"foldgate: {upstream} {trouble}, so only conversations of {limit:,} characters are "
            "compacted; set FOLDGATE_UPSTREAM__CONTEXT_WINDOW"
        )

    async def _client(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        with _watcher(self.mark) as watcher:
            self._process = self._start(command, {**variables, processes.MARK: self.mark})
            self._take_signals()
            with suppress(OSError):
                watcher.write(str(self._process.pid).encode())
                watcher.flush()
            code = await asyncio.to_thread(self._process.wait)
            await asyncio.to_thread(self._end_what_is_left)
        self.code = 128 + (self._stopped or -code) if code < 0 else code

    def _start(self, command: Sequence[str], variables: Mapping[str, str]) -> _Process:
        if sys.platform != "win32":
            # Ignored by inheritance, it would take the client's exit code with it.
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Not through the event loop: what it knows of a child's end depends on signals.
        try:
            return subprocess.Popen(command, env=dict(variables))
        except FileNotFoundError:
            raise CannotStart(f"{self.command[0]}: no such command", NOT_FOUND) from None
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise CannotStart(f"{self.command[0]}: {reason}", NOT_EXECUTABLE) from None

    def _take_signals(self) -> None:
        if sys.platform == "win32":
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, *_KEYS):
            # What is ignored was meant to be, by nohup for example.
            if signal.getsignal(number) != signal.SIG_IGN:
                loop.add_signal_handler(number, self._stop, number)

    def _stop(self, number: int) -> None:
        """End the client: with the signal first, then by force."""
        if self._process is None or self._stopped:
            return
        if number in _KEYS and processes.keys_reach_us():
            # The client decides what they mean. It has got them itself, unless it left our group,
            # as `timeout` does.
            if not processes.is_in_our_group(self._process.pid):
                self._process.send_signal(number)
            return
        self._stopped = number
        # Once the client has gone, its children can no longer be told by their parent.
        root = self._process.pid if self._process.poll() is None else None
        self._family = processes.family(self.mark, root)
        self._process.send_signal(number)
        asyncio.get_running_loop().call_later(processes.GRACE_SECONDS, self._process.kill)

    def _end_what_is_left(self) -> None:
        left = processes.family(self.mark)
        if self._stopped:
            left += [process for process in self._family if process not in left]
        else:
            # What made itself a daemon outlives a client that ended by itself.
            left = [process for process in left if not processes.is_daemon(process)]
        processes.end(left)


async def _models(
    url: str, variables: Mapping[str, str], seconds: float
) -> dict[str, int | None] | None:
    """Return what the upstream serves and in which window, asked through the proxy.

    None when it does not answer within some seconds.
    """
    # Nothing else here needs it.
    import aiohttp

    headers = {"Authorization": f"Bearer {variables.get('OPENAI_API_KEY') or clients.NO_KEY}"}
    timeout = aiohttp.ClientTimeout(total=seconds)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url}/v1/models", headers=headers) as reply,
        ):
            body = await reply.read()
    except (aiohttp.ClientError, TimeoutError, ValueError):
        # The last one is for a key that no header can hold: the client will hear of it.
        return None
    if reply.status >= 500:
        return None
    try:
        listing = codec.loads(body)
    except codec.MalformedJson:
        return {}
    entries = codec.as_objects(listing.get("data") if isinstance(listing, dict) else listing)
    return {name: window_in(entry) for entry in entries if (name := codec.as_text(entry.get("id")))}


@contextmanager
def _watcher(mark: str) -> Iterator[IO[bytes]]:
    """Run the process that ends the family should this one be killed; gives its input."""
    process = subprocess.Popen(
        # The client's folder may hold a module of any name, ours included.
        [sys.executable, "-P", processes.__file__, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with process:
        if process.stdin is None:
            raise RuntimeError("a pipe was asked for")
        yield process.stdin
        # Should it be gone, then there is nobody to be told.
        with suppress(OSError):
            process.stdin.write(processes.FINISHED)
            process.stdin.close()


def _default_log() -> Path:
    from platformdirs import user_log_path

    return user_log_path("foldgate", appauthor=False) / _LOG_NAME


@contextmanager
def _logging_to(path: Path) -> Iterator[TextIO]:
    """Write everything that would go to stderr into a file that only this user may read.

    Raises:
        CannotStart: when it cannot be written.
    """
    try:
        stream = _opened(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CannotStart(
            f"cannot write the log {path} ({reason}): choose another --log", 1
        ) from None
    with stream:
        configure_log(stream=stream)
        logging.basicConfig(stream=stream, level=logging.WARNING, force=True)
        yield stream


def _opened(path: Path) -> TextIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Another run may do the same at this moment.
    with suppress(FileNotFoundError):
        if path.is_file() and path.stat().st_size > LOG_BYTES:
            path.replace(path.with_suffix(".old.log"))
    return open(path, "a", encoding="utf-8", opener=_private)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
