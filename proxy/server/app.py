"""The composition root: which adapter stands behind each port, and how long each lives."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

from aiohttp import web

from proxy.compaction import fingerprint, measure
from proxy.compactor.chains import Chains
from proxy.compactor.compactor import Compactor
from proxy.compactor.counts import Counts
from proxy.compactor.folding import Folder
from proxy.compactor.folds import StoredFolds
from proxy.compactor.memory import PATIENCE_SECONDS, SessionMemory
from proxy.compactor.ports import Environment
from proxy.dialects.bodies import Annotators
from proxy.dialects.chat_completions import ChatCompletions
from proxy.dialects.memo import PrefixMemo
from proxy.dialects.responses import Responses
from proxy.errors import StoreError, StoreUnavailable
from proxy.server.curing import Cures
from proxy.server.events import StoredEvents
from proxy.server.gate import Gate
from proxy.server.handlers import Gateway
from proxy.server.relay import Relayed
from proxy.server.sending import Sender
from proxy.server.stores import OpenableStore, is_shared, make_store
from proxy.server.tasks import Tasks
from proxy.server.tenancy import Tenancy, source_of
from proxy.settings import Settings, SettingsError
from proxy.telemetry import EventSink, Fanout, log
from proxy.upstream.calibrations import Calibrations
from proxy.upstream.client import TransportOptions, UpstreamClient
from proxy.upstream.continuations import Continuations
from proxy.upstream.counting import Counters
from proxy.upstream.effective import EffectiveWindows
from proxy.upstream.learned import LearnedWindows
from proxy.upstream.summarizer import SummaryTimes, UpstreamSummarizer
from proxy.upstream.templates import Templates
from proxy.upstream.windows import WindowProbe

FLUSH_SECONDS = 1.0
NOTE_SECONDS = 30.0
EXPIRE_SECONDS = 3600.0

GATEWAY: web.AppKey[Gateway] = web.AppKey("gateway", Gateway)
WINDOWS: web.AppKey[WindowProbe] = web.AppKey("windows", WindowProbe)


@dataclass(frozen=True, slots=True)
class Parts:
    """What lives as long as the application."""

    store: OpenableStore
    client: UpstreamClient
    events: StoredEvents
    memory: SessionMemory
    chains: Chains
    windows: WindowProbe
    compactor: Compactor
    tasks: Tasks
    gateway: Gateway


def build_app(settings: Settings, sink: EventSink) -> web.Application:
    """Build the application.

    Raises:
        SettingsError: when the settings cannot be used, for example without an upstream.
    """
    gate = Gate(settings)
    # Body limits are ours: larger bodies are streamed through, not refused.
    app = web.Application(client_max_size=0)

    async def lifetime(app: web.Application) -> AsyncIterator[None]:
        parts = await _open(settings, gate, sink)
        app[GATEWAY] = parts.gateway
        app[WINDOWS] = parts.windows
        parts.tasks.start(parts.events.run())
        parts.tasks.start(_housekeeping(parts))
        yield
        await _close(parts)

    app.cleanup_ctx.append(lifetime)
    app.router.add_route("*", "/{path:.*}", _handle)
    app.on_response_prepare.append(_strip_added_headers)
    return app


async def _handle(request: web.Request) -> web.StreamResponse:
    return await request.app[GATEWAY].handle(request)


async def _strip_added_headers(_: web.Request, response: web.StreamResponse) -> None:
    # aiohttp signs every reply and guesses its type; a transparent proxy does not.
    for name in response.added if isinstance(response, Relayed) else ("Server",):
        response.headers.popall(name, None)


async def _open(settings: Settings, gate: Gate, sink: EventSink) -> Parts:
    store = make_store(settings.store)
    async with AsyncExitStack() as unless_open:
        unless_open.push_async_callback(store.close)
        tenancy = await _tenancy(settings, store)
        unless_open.pop_all()
    events = StoredEvents(store)
    sinks = Fanout((sink, events))
    upstream, compaction = settings.upstream, settings.compaction
    client = UpstreamClient(
        TransportOptions(
            upstream.connect_seconds, upstream.idle_seconds, upstream.ca_file, upstream.http_proxy
        )
    )
    environment = Environment(time.time, lambda: secrets.token_hex(8))
    shared = is_shared(settings.store)
    memory = SessionMemory(
        store,
        sinks,
        time.time,
        patience=settings.store.timeout_ms / 1000 if shared else PATIENCE_SECONDS,
        shared=shared or settings.server.workers > 1,
    )
    windows = WindowProbe(client, time.monotonic, upstream.probe_seconds)
    learned = LearnedWindows(time.monotonic)
    calibrations = Calibrations(learned)
    windows.when_changed(lambda base, model, _: learned.forget(base, model))
    effective = EffectiveWindows(windows, learned)
    chains = Chains(
        store.responses,
        memory.calls,
        time.time,
        settings.store.response_bytes,
        shared=memory.shared,
    )
    continuations = Continuations()
    templates = Templates()
    annotators = Annotators(measure.size_of, fingerprint.extend, measure.text_size)
    # The first digest keeps the dialects apart, so they share the memory.
    memos = (
        PrefixMemo(settings.server.memo_bytes * 15 // 16),
        PrefixMemo(settings.server.memo_bytes // 16),
    )
    compactor = Compactor(
        memory,
        Folder(
            UpstreamSummarizer(
                client, SummaryTimes(compaction.first_byte_seconds, compaction.idle_seconds)
            ),
            environment,
            compaction.concurrency,
            StoredFolds(store, memory.calls, time.time),
        ),
        effective,
        Counts(calibrations, Counters(client, time.monotonic)),
        chains,
        continuations,
        templates,
        sinks,
        environment,
    )
    tasks = Tasks()
    gateway = Gateway(
        gate,
        ChatCompletions(annotators, *memos),
        Responses(annotators, *memos),
        client,
        compactor,
        memory,
        chains,
        tenancy,
        Sender(
            client,
            chains,
            calibrations,
            continuations,
            Cures(continuations, learned, calibrations, effective, templates),
        ),
    )
    return Parts(store, client, events, memory, chains, windows, compactor, tasks, gateway)


async def _tenancy(settings: Settings, store: OpenableStore) -> Tenancy:
    """Open the store, and find the key that tells tenants apart."""
    tenancy = settings.tenancy
    source, key = source_of(tenancy.source, settings.server.host), tenancy.key_bytes()
    shared = is_shared(settings.store)
    if shared and key is None and source != "fixed":
        raise SettingsError(
            "tenancy.key: must be set for a store that is shared, the same for all replicas; "
            "make one with `openssl rand -hex 32` and set FOLDGATE_TENANCY__KEY=hex:…"
        )
    where = settings.store.shown_url
    try:
        await store.open()
        if key is None:
            key = await store.secret("tenancy")
    except StoreUnavailable as error:
        if not shared:
            raise StoreUnavailable(f"{where}: {error}; see --store (store.url)") from None
        if key is None:
            raise StoreUnavailable(
                f"{where}: {error}; see --store (store.url), or set tenancy.key to start without"
            ) from None
        # A fleet must be able to start while its store is away.
        log().warning("store_unavailable", store=where, reason=error.reason)
    except StoreError as error:
        raise type(error)(f"{where}: {error}; see --store (store.url)") from None
    return Tenancy(source, key, tenancy.header, tenancy.trusted_proxies)


async def _housekeeping(parts: Parts) -> None:
    expire_at = note_at = 0.0
    while True:
        if parts.memory.pending:
            await parts.memory.flush()
        await parts.chains.flush()
        await parts.events.flush()
        now = time.monotonic()
        if now >= note_at:
            note_at = now + NOTE_SECONDS
            await parts.memory.note_uses()
        if now >= expire_at:
            expire_at = now + EXPIRE_SECONDS
            try:
                await parts.store.expire(time.time())
            except StoreError as error:
                log().warning("expiry_failed", reason=str(error))
        await asyncio.sleep(FLUSH_SECONDS)


async def _close(parts: Parts) -> None:
    await parts.tasks.close()
    await parts.compactor.close()
    await parts.windows.close()
    await parts.memory.note_uses()
    await parts.memory.close()
    await parts.chains.flush()
    await parts.events.flush()
    await parts.client.close()
    await parts.store.close()
