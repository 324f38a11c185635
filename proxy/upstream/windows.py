"""Finding the context window that a server really serves, and remembering it.

The setting of the model or profile counts before all else. Then the list of models is asked for,
and where that does not say, what the kind of server has beside it (`window_sources`). One probe
is all of these requests together: it has one limit in time, and what it has found by then counts.
Only the route's own host is asked, with the caller's own credential.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import aiohttp

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.compaction.policy import Window
from proxy.errors import UpstreamError
from proxy.upstream.client import UpstreamClient
from proxy.upstream.headers import credential_of, summary_headers
from proxy.upstream.routes import Route
from proxy.upstream.window_sources import (
    PROVISIONAL,
    UNKNOWN,
    Question,
    Questions,
    further,
    of_entry,
    of_listing,
    plausible,
    tighter,
)

Key = tuple[str, str]
"""Base URL and model."""

KNOWN_SECONDS = 300.0
UNKNOWN_SECONDS = 30.0
REFUSED_SECONDS = 10.0
MAX_REFUSED = 1024
MAX_ABSENT = 1024
MAX_MODELS = 1024
"""Model names are the clients' to choose, so what is remembered of them is bounded."""

_NO_ANSWER = frozenset({401, 403, 407, 408, 425, 429})
_ABSENT = frozenset({404, 405, 410, 501})
_MAX_REPLY_BYTES = 8 * 1024 * 1024


class _Unanswered(Exception):
    """The upstream did not answer the question; another caller may have more luck."""


_K = TypeVar("_K")
_V = TypeVar("_V")


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
        self._known: OrderedDict[Key, _Entry] = OrderedDict()
        self._refused: OrderedDict[tuple[str, str, int], float] = OrderedDict()
        self._absent: OrderedDict[str, float] = OrderedDict()
        self._asking: dict[Key, asyncio.Task[Window]] = {}
        self._changed: Callable[[str, str, Window], None] | None = None

    def when_changed(self, tell: Callable[[str, str, Window], None]) -> None:
        """Have someone told of a size that changed: of the base URL, the model, the new window.

        It is told when a server that had said one size says another, whatever made us ask.
        """
        self._changed = tell

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

    def refresh(self, route: Route) -> None:
        """Ask again soon, whatever is remembered: the upstream refused what should have fitted.

        Until the answer is there, what is remembered holds.
        """
        if route.window is None:
            self._forget_absent(route)
            self.ask_soon(route)

    async def refreshed(self, route: Route) -> Window:
        """Ask again and return the answer; waits for the time of one probe at most."""
        if route.window is not None:
            return Window(route.window, "settings")
        self._forget_absent(route)
        return await asyncio.shield(self._task((route.base.url, route.model), route))

    def forget(self, route: Route) -> None:
        """Forget what was told of a model; the next request for it waits for a new answer."""
        self._known.pop((route.base.url, route.model), None)
        self._forget_absent(route)

    def _forget_absent(self, route: Route) -> None:
        for url in [url for url in self._absent if url.startswith(route.base.origin + "/")]:
            del self._absent[url]

    def _task(self, key: Key, route: Route) -> "asyncio.Task[Window]":
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

    async def _ask(self, key: Key, route: Route) -> Window:
        window = UNKNOWN
        try:
            window = await self._probe(route)
        except (TimeoutError, UpstreamError, aiohttp.ClientError):
            pass
        except _Unanswered:
            # A wrong key or a busy server says nothing about the window.
            refused = (*key, _credential(route))
            _keep(self._refused, refused, self._clock() + REFUSED_SECONDS, MAX_REFUSED)
            if key not in self._known:
                return window
        return self._remember(key, window)

    def _remember(self, key: Key, told: Window) -> Window:
        entry = self._known.get(key)
        known = UNKNOWN if entry is None else entry.window
        window = told
        if told.tokens is None or (told.source in PROVISIONAL and known.source not in PROVISIONAL):
            # The server is silent for now, or has unloaded the model; what it said still holds.
            window = tighter(known, told)
        is_firm = window.tokens is not None and told.source not in PROVISIONAL
        seconds = KNOWN_SECONDS if is_firm else UNKNOWN_SECONDS
        _keep(self._known, key, _Entry(window, self._clock() + seconds), MAX_MODELS)
        if self._changed is not None and known.trusted not in {None, window.trusted}:
            self._changed(*key, window)
        return window

    async def _probe(self, route: Route) -> Window:
        deadline = asyncio.get_running_loop().time() + self._probe_seconds
        async with asyncio.timeout_at(deadline):
            listing = await self._listing(route)
        found = plausible(of_listing(listing, route.model))
        more = UNKNOWN
        questions = further(listing, route.base, route.model, found)
        # What the list said counts also when there is no time left for the rest.
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                more = await self._first_told(route, questions)
        return tighter(found, more)

    async def _first_told(self, route: Route, kinds: Sequence[Questions]) -> Window:
        """Ask in the manner of several kinds of servers at once, as it can be one of them only."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._follow(route, questions)) for questions in kinds]
        left = set(tasks)
        try:
            while left:
                _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                told = [task.result() for task in tasks if task not in left]
                for window in told:
                    if window.tokens is not None:
                        return window
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return UNKNOWN

    async def _follow(self, route: Route, questions: Questions) -> Window:
        reply: Json = None
        for question in questions:
            if question.follows and reply is None:
                break
            reply = await self._answer(route, question)
            window = plausible(question.read(reply, route.model))
            if window.tokens is not None:
                return window
        return UNKNOWN

    async def _listing(self, route: Route) -> Json:
        status, reply = await self._send(route, route.base.resolve("/v1/models"), None)
        if status in _NO_ANSWER or status >= 500:
            raise _Unanswered
        return reply

    async def _answer(self, route: Route, question: Question) -> Json:
        """Return the reply to a question; None when there was none that says anything."""
        # Most servers have none of the others' pages, so they are not asked for them each time.
        if self._absent.get(question.url, 0.0) > self._clock():
            return None
        try:
            status, reply = await self._send(route, question.url, question.body)
        except (UpstreamError, aiohttp.ClientError):
            return None
        is_absent = status in _ABSENT or 300 <= status < 400 or (status == 200 and reply is None)
        if is_absent and question.body is None:
            _keep(self._absent, question.url, self._clock() + KNOWN_SECONDS, MAX_ABSENT)
        return reply

    async def _send(self, route: Route, url: str, body: JsonObject | None) -> tuple[int, Json]:
        headers = summary_headers(route.headers)
        del headers["x-foldgate-purpose"]
        data, method = None, "GET"
        if body is None:
            del headers["Content-Type"]
        else:
            data, method = codec.dumps(body), "POST"
        async with self._client.send(method, url, headers, data) as reply:
            if reply.status != 200:
                return reply.status, None
            raw = await reply.content.read(_MAX_REPLY_BYTES)
            while len(raw) < _MAX_REPLY_BYTES and not reply.content.at_eof():
                raw += await reply.content.read(_MAX_REPLY_BYTES - len(raw))
        try:
            return reply.status, codec.loads(raw)
        except codec.MalformedJson:
            return reply.status, None


def _keep(memory: "OrderedDict[_K, _V]", key: _K, value: _V, most: int) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > most:
        memory.popitem(last=False)


def _credential(route: Route) -> int:
    return hash(credential_of(route.headers))


def window_of(entry: JsonObject) -> int | None:
    """Return the smallest window that a `/models` entry names, or None."""
    window = of_entry(entry)
    return window.input_limit or window.tokens
