"""Finding the context window that a server really serves.

Sources, the first that answers: the setting of the model or profile; the `/models` entry of the
model, by the generic field names (`facts` of the public APIs: vLLM `max_model_len`, Groq and
Vercel `context_window`, OpenRouter `context_length`, llama.cpp `meta.n_ctx`, …); llama.cpp's
`/props`. A trained maximum is never taken for a served window.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.compaction.policy import Window
from proxy.errors import UpstreamError
from proxy.upstream.client import UpstreamClient
from proxy.upstream.headers import credential_of, summary_headers
from proxy.upstream.routes import Route

KNOWN_SECONDS = 300.0
UNKNOWN_SECONDS = 30.0
REFUSED_SECONDS = 10.0
MAX_REFUSED = 1024
MAX_MODELS = 1024
"""Model names are the clients' to choose, so what is remembered of them is bounded."""


_FIELDS = (
    ("max_model_len",),
    ("context_window",),
    ("context_length",),
    ("max_context_length",),
    ("max_input_tokens",),
    ("inputTokenLimit",),
    ("meta", "n_ctx"),
    ("top_provider", "context_length"),
    ("limits", "max_context_length"),
    ("limits", "max_input_tokens"),
    ("loaded_context_length",),
)
_NO_ANSWER = frozenset({401, 403, 407, 408, 425, 429})
_MAX_REPLY_BYTES = 8 * 1024 * 1024


class _Unanswered(Exception):
    """The upstream did not answer the question; another caller may have more luck."""


@dataclass(slots=True)
class _Entry:
    window: Window
    until: float


class WindowProbe:
    """Asks upstreams for their windows, and remembers the answers for a while."""

    def __init__(
        self, client: UpstreamClient, clock: Callable[[], float], probe_seconds: float
    ) -> None:
        """Take the client, a monotonic clock, and the longest time one probe may take."""
        self._client = client
        self._clock = clock
        self._probe_seconds = probe_seconds
        self._known: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._refused: OrderedDict[tuple[str, str, int], float] = OrderedDict()
        self._asking: dict[tuple[str, str], asyncio.Task[Window]] = {}

    def remembered(self, route: Route) -> Window | None:
        """Return what is known without waiting; None when nobody was asked yet.

        An answer that has grown old still counts while a new one is fetched behind the scenes,
        so only the first request for a model ever waits.
        """
        if route.window is not None:
            return Window(route.window, "settings")
        key = (route.base.url, route.model)
        entry = self._known.get(key)
        if entry is None:
            # Who was refused a moment ago would be refused again; others may ask.
            refused = self._refused.get((*key, _credential(route)), 0.0) > self._clock()
            return Window() if refused else None
        if entry.until <= self._clock():
            self.ask_soon(route)
        return entry.window

    async def window(self, route: Route) -> Window:
        """Return the window; asks at most once at a time per model, within the probe time.

        Never raises: an upstream that does not tell has an unknown window.
        """
        known = self.remembered(route)
        if known is not None:
            return known
        key = (route.base.url, route.model)
        return await asyncio.shield(self._task(key, route))

    def ask_soon(self, route: Route) -> None:
        """Ask without waiting for the answer."""
        _ = self._task((route.base.url, route.model), route)

    def _task(self, key: tuple[str, str], route: Route) -> "asyncio.Task[Window]":
        task = self._asking.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(key, route))
            self._asking[key] = task
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        return task

    async def close(self) -> None:
        """Stop asking."""
        for task in list(self._asking.values()):
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    async def _ask(self, key: tuple[str, str], route: Route) -> Window:
        window = Window()
        try:
            async with asyncio.timeout(self._probe_seconds):
                window = await self._probe(route)
        except (TimeoutError, UpstreamError, aiohttp.ClientError):
            pass
        except _Unanswered:
            # A wrong key or a busy server says nothing about the window.
            self._refused[*key, _credential(route)] = self._clock() + REFUSED_SECONDS
            if len(self._refused) > MAX_REFUSED:
                self._refused.popitem(last=False)
            if key not in self._known:
                return window
        if window.tokens is None and key in self._known and self._known[key].window.tokens:
            # The server is silent for now; what it said before still holds.
            window = self._known[key].window
        seconds = UNKNOWN_SECONDS if window.tokens is None else KNOWN_SECONDS
        self._known[key] = _Entry(window, self._clock() + seconds)
        self._known.move_to_end(key)
        if len(self._known) > MAX_MODELS:
            self._known.popitem(last=False)
        return window

    async def _probe(self, route: Route) -> Window:
        listing = await self._get(route, route.base.resolve("/v1/models"))
        entry = _entry_for(listing, route.model)
        tokens = window_of(entry) if entry is not None else None
        if tokens is not None:
            return Window(tokens, "models")
        if listing is None or (entry is not None and entry.get("owned_by") == "llamacpp"):
            props = await self._get(route, f"{route.base.origin}{route.base.root}/props")
            settings = props.get("default_generation_settings") if isinstance(props, dict) else None
            served = settings.get("n_ctx") if isinstance(settings, dict) else None
            if _is_tokens(served):
                return Window(int(str(served)), "props")
        return Window()

    async def _get(self, route: Route, url: str) -> Json:
        headers = summary_headers(route.headers)
        del headers["x-foldgate-purpose"], headers["Content-Type"]
        async with self._client.send("GET", url, headers, None) as reply:
            if reply.status in _NO_ANSWER or reply.status >= 500:
                raise _Unanswered
            if reply.status != 200:
                return None
            body = await reply.content.read(_MAX_REPLY_BYTES)
            while len(body) < _MAX_REPLY_BYTES and not reply.content.at_eof():
                body += await reply.content.read(_MAX_REPLY_BYTES - len(body))
        try:
            return codec.loads(body)
        except codec.MalformedJson:
            return None


def _credential(route: Route) -> int:
    return hash(credential_of(route.headers))


def _entry_for(listing: Json, model: str) -> JsonObject | None:
    data = listing.get("data") if isinstance(listing, dict) else listing
    entries = codec.as_objects(data)
    for entry in entries:
        if entry.get("id") == model:
            return entry
    # A server with one model serves that one, whatever name it is called by.
    return entries[0] if len(entries) == 1 else None


def window_of(entry: JsonObject) -> int | None:
    """Return the smallest window that a `/models` entry names, or None."""
    found = []
    for path in _FIELDS:
        value: Json = entry
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if _is_tokens(value):
            found.append(int(str(value)))
    return min(found, default=None)


def _is_tokens(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
