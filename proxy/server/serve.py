"""Running the server: ready line, reload, drain."""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from aiohttp import web
from multidict import CIMultiDict

from proxy.codec import JsonObject
from proxy.compaction.policy import Window
from proxy.server.app import GATEWAY, WINDOWS, build_app
from proxy.server.gate import Gate
from proxy.server.handlers import Gateway
from proxy.settings import Settings, SettingsError
from proxy.telemetry import EVENT_SCHEMA, EventSink, log
from proxy.upstream.routes import Route

_HEADER_BYTES = 64 * 1024
_MAX_HEADERS = 512
_GEN2_THRESHOLD = 100
_FIXED = (
    "server.host",
    "server.port",
    "server.workers",
    "server.memo_bytes",
    "store",
    "tenancy",
    "upstream.ca_file",
    "upstream.http_proxy",
    "upstream.connect_seconds",
    "upstream.idle_seconds",
    "upstream.probe_seconds",
    "compaction.first_byte_seconds",
    "compaction.idle_seconds",
    "compaction.concurrency",
)
"""Settings and sections that are built in at the start; a reload cannot change them."""
Announce = Callable[[JsonObject, str], None]
"""Takes the ready line as JSON and as text."""
_SHUTDOWN_SECONDS = 0.5
"""Only for what the drain did not wait for any longer; aiohttp's own is a minute."""


class CannotListen(Exception):
    """The address cannot be listened on; the text says what to do."""


async def serve(
    settings: Settings,
    sink: EventSink,
    announce: Announce,
    reload: Callable[[], Settings],
    shared_port: int | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Args:
        settings: what to serve with.
        sink: where events go.
        announce: called once when ready, with the line as JSON and as text.
        reload: reads the settings again, for SIGHUP.
        shared_port: port to share with other processes, instead of one of the settings' own.

    Raises:
        CannotListen: when the port is taken or the address is not ours.
        SettingsError, StoreError: when the parts cannot be set up.
    """
    app = build_app(settings, sink)
    runner = make_runner(app)
    await runner.setup()
    try:
        port = await _listen(runner, settings, shared_port)
        stop = asyncio.Event()
        gateway = app[GATEWAY]
        if sys.platform != "win32":
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop.set)
            loop.add_signal_handler(signal.SIGHUP, lambda: _reload(gateway, reload))
        announce(*await _ready(app, settings, port))
        # What lives now lives for good; large bodies should not make it be walked again.
        gc.collect()
        gc.freeze()
        first, second, _ = gc.get_threshold()
        gc.set_threshold(first, second, _GEN2_THRESHOLD)
        await stop.wait()
        await _drain(gateway, settings.server.drain_seconds)
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serving(
    settings: Settings, sink: EventSink
) -> AsyncIterator[tuple[str, web.Application]]:
    """Serve for as long as the block runs; gives the URL (without /v1) and the application.

    Raises:
        CannotListen, SettingsError, StoreError: as `serve` does.
    """
    app = build_app(settings, sink)
    runner = make_runner(app)
    await runner.setup()
    try:
        port = await _listen(runner, settings, None)
        yield _url(settings.server.host, port), app
    finally:
        await runner.cleanup()


def make_runner(app: web.Application) -> web.AppRunner:
    """Return the runner of an application, which parses HTTP the way the proxy needs it."""
    return web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        logger=_discreet_logger(),
        auto_decompress=False,
        max_line_size=_HEADER_BYTES,
        max_field_size=_HEADER_BYTES,
        max_headers=_MAX_HEADERS,
        shutdown_timeout=_SHUTDOWN_SECONDS,
    )


def _discreet_logger() -> logging.Logger:
    """Return a logger for aiohttp's own complaints, which quote what they failed on."""
    logger = logging.getLogger("foldgate.http")
    logger.addFilter(_name_only)
    return logger


def _name_only(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0] if record.exc_info else None
    record.msg, record.args = "a request could not be handled", ()
    if kind is not None:
        record.msg += f" ({kind.__name__})"
    record.exc_info = record.exc_text = record.stack_info = None
    return True


def cannot_listen(settings: Settings, error: OSError) -> CannotListen:
    """Return what to say when the address of the settings could not be bound."""
    reason = error.strerror or type(error).__name__
    return CannotListen(
        f"cannot listen on {settings.server.host}:{settings.server.port} ({reason}): choose "
        "another --port (0 picks a free one) or --host"
    )


async def _listen(runner: web.AppRunner, settings: Settings, shared_port: int | None) -> int:
    site = web.TCPSite(
        runner,
        settings.server.host,
        settings.server.port if shared_port is None else shared_port,
        backlog=1024,
        reuse_port=None if shared_port is None else True,
    )
    try:
        await site.start()
    except OSError as error:
        raise cannot_listen(settings, error) from None
    address = runner.addresses[0]
    return int(address[1])


async def window_of(app: web.Application) -> Window:
    """Return the window of the default upstream's default model; asks the upstream if need be."""
    gate = app[GATEWAY].gate
    headers: CIMultiDict[str] = CIMultiDict()
    setting = gate.settings.upstream.context_window
    route = Route(gate.base, "", gate.default_headers(headers), setting)
    return await app[WINDOWS].window(route)


async def _ready(app: web.Application, settings: Settings, port: int) -> tuple[JsonObject, str]:
    gate = app[GATEWAY].gate
    window = await window_of(app)
    url = _url(settings.server.host, port)
    line: JsonObject = {
        "schema": EVENT_SCHEMA,
        "type": "listening",
        "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "url": url,
        "upstream": gate.base.url,
        "store": settings.store.shown_url,
        "window": window.tokens,
        "window_source": window.source,
        "shadow": settings.server.shadow,
    }
    workers = ""
    if settings.server.workers > 1:
        line["workers"] = settings.server.workers
        workers = f"{settings.server.workers} workers, "
    shadow = ", shadow: nothing is changed" if settings.server.shadow else ""
    text = (
        f"foldgate listening on {url} -> {gate.base.url} "
        f"({workers}store {settings.store.shown_url}, window {_describe(window)}{shadow})"
    )
    return line, text


def _url(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _describe(window: Window) -> str:
    return "unknown" if window.tokens is None else f"{window.tokens} from {window.source}"


def _reload(gateway: Gateway, reload: Callable[[], Settings]) -> None:
    old = gateway.gate.settings
    try:
        new = reload()
        gate = Gate(new)
    except (SettingsError, OSError) as error:
        log().error("reload_refused", reason=str(error))
        return
    fixed = [name for name in _FIXED if _value(old, name) != _value(new, name)]
    if fixed:
        log().warning("reload_needs_restart", settings=", ".join(fixed))
    gateway.gate = gate
    log().info("reloaded")


def keep_fixed(old: Settings, new: Settings) -> Settings:
    """Return `new`, but with everything of `old` that a reload cannot change."""
    for name in _FIXED:
        section, _, key = name.partition(".")
        value = getattr(old, section)
        if key:
            value = getattr(new, section).model_copy(update={key: getattr(value, key)})
        new = new.model_copy(update={section: value})
    return new


def _value(settings: Settings, name: str) -> object:
    section, _, key = name.partition(".")
    value = getattr(settings, section)
    return getattr(value, key) if key else value


async def _drain(gateway: Gateway, seconds: float) -> None:
    if gateway.running:
        log().info("draining", running=gateway.running)
    try:
        async with asyncio.timeout(seconds):
            await gateway.drain()
    except TimeoutError:
        log().warning("drain_cut_short", running=gateway.running)
