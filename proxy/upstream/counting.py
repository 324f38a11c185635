"""Asking an upstream how large a request is, where it can tell.

llama.cpp and OpenAI count a request without running it; llama.cpp also renders and tokenises one.
Which of that an upstream has is found out by trying, once, and remembered; one that has nothing is
left alone for a while. A count is bounded in time and never fails a request. The credential is the
request's own, and nothing is sent that the request itself would not send there.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import aiohttp

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.errors import UpstreamError
from proxy.upstream.client import UpstreamClient
from proxy.upstream.headers import of_changed_body
from proxy.upstream.routes import Route

COUNT_SECONDS = 1.0
"""How long a request waits for its count."""

ABSENT_SECONDS = 3600.0
"""How long an upstream is believed to have no counter."""

PAUSE_SECONDS = 60.0
"""How long one is left alone that did not answer, or not in time."""

MAX_UPSTREAMS = 1024
MAX_REPLY_BYTES = 8 * 1024 * 1024

_OK = 200
_NOT_THERE = frozenset({400, 404, 405, 415, 422, 501})
_UNCOUNTED = frozenset(
    {
        "stream",
        "stream_options",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "store",
        "metadata",
        "service_tier",
    }
)
"""Members of a chat request that make its prompt no longer."""

_COUNTED = frozenset(
    {
        "model",
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "conversation",
        "previous_response_id",
        "reasoning",
        "text",
        "truncation",
        "parallel_tool_calls",
    }
)
"""Members that the counter of the Responses API takes."""

_RENDERED = frozenset({"messages", "tools", "tool_choice", "chat_template_kwargs"})


class Way(Enum):
    """How an upstream counts."""

    INPUT_TOKENS = "input_tokens"
    """Beside the endpoint itself."""
    TOKENIZE = "tokenize"
    """By rendering the prompt, and tokenising that."""
    NONE = "none"


@dataclass(slots=True)
class _Known:
    way: Way
    until: float
    """When to try again, where there is none."""


class _NotThereError(Exception):
    """The upstream has no such endpoint, or one of another kind."""


class _NotNowError(Exception):
    """The upstream could not say just now."""


class Counters:
    """Counts requests of one process."""

    def __init__(self, client: UpstreamClient, clock: Callable[[], float]) -> None:
        """Take the client and a monotonic clock, in seconds."""
        self._client = client
        self._clock = clock
        self._known: OrderedDict[tuple[str, str, bool], _Known] = OrderedDict()

    def may_count(self, route: Route) -> bool:
        """Tell whether asking may bring something, as far as is known."""
        known = self._known.get(_key(route))
        return known is None or known.way is not Way.NONE or known.until <= self._clock()

    async def count(self, route: Route, body: bytes) -> int | None:
        """Return the tokens of a request as the upstream counts them; None when it does not.

        Args:
            route: where the request goes.
            body: the request.
        """
        if not self.may_count(route):
            return None
        try:
            request = codec.loads(body)
        except codec.MalformedJson:
            return None
        if not isinstance(request, dict):
            return None
        key = _key(route)
        known = self._known.get(key)
        ways: Sequence[Way] = (Way.INPUT_TOKENS, Way.TOKENIZE)
        absent = ABSENT_SECONDS
        if known is not None and known.way is not Way.NONE:
            # It may only dislike this request.
            ways, absent = (known.way,), PAUSE_SECONDS
        else:
            # Others that come meanwhile do without.
            self._note(key, Way.NONE, PAUSE_SECONDS)
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                return await self._try(route, request, ways, absent)
        except (UpstreamError, aiohttp.ClientError, TimeoutError, _NotNowError):
            self._note(key, Way.NONE, PAUSE_SECONDS)
            return None

    async def _try(
        self, route: Route, request: JsonObject, ways: Sequence[Way], absent: float
    ) -> int | None:
        for way in ways:
            try:
                tokens = await self._count(route, request, way)
            except _NotThereError:
                continue
            self._note(_key(route), way, 0.0)
            return tokens
        self._note(_key(route), Way.NONE, absent)
        return None

    async def _count(self, route: Route, request: JsonObject, way: Way) -> int:
        path = route.target.partition("?")[0].rstrip("/")
        if way is Way.INPUT_TOKENS:
            if route.speaks_responses:
                asked = {name: value for name, value in request.items() if name in _COUNTED}
            else:
                asked = {name: value for name, value in request.items() if name not in _UNCOUNTED}
            answer = await self._post(route, route.base.resolve(f"{path}/input_tokens"), asked)
            return _number(answer.get("input_tokens"))
        if route.speaks_responses:
            raise _NotThereError
        root = route.base.origin + route.base.root
        asked = {name: value for name, value in request.items() if name in _RENDERED}
        prompt = (await self._post(route, f"{root}/apply-template", asked)).get("prompt")
        if not isinstance(prompt, str):
            raise _NotThereError
        text: JsonObject = {"content": prompt, "add_special": True, "parse_special": True}
        tokens = (await self._post(route, f"{root}/tokenize", text)).get("tokens")
        if not isinstance(tokens, list):
            raise _NotThereError
        return _number(len(tokens))

    async def _post(self, route: Route, url: str, value: JsonObject) -> JsonObject:
        headers = of_changed_body(route.headers)
        headers["Content-Type"] = "application/json"
        headers["Accept"] = "application/json"
        headers["Accept-Encoding"] = "identity"
        async with self._client.send("POST", url, headers, codec.dumps(value)) as reply:
            if reply.status in _NOT_THERE:
                raise _NotThereError
            if reply.status != _OK:
                raise _NotNowError
            text = await _read(reply)
        try:
            answer = codec.loads(text)
        except codec.MalformedJson:
            raise _NotThereError from None
        if not isinstance(answer, dict):
            raise _NotThereError
        return answer

    def _note(self, key: tuple[str, str, bool], way: Way, seconds: float) -> None:
        self._known[key] = _Known(way, self._clock() + seconds)
        self._known.move_to_end(key)
        if len(self._known) > MAX_UPSTREAMS:
            self._known.popitem(last=False)


def _key(route: Route) -> tuple[str, str, bool]:
    return route.base.url, route.model, route.speaks_responses


async def _read(reply: aiohttp.ClientResponse) -> bytes:
    text = b""
    while more := await reply.content.readany():
        text += more
        if len(text) > MAX_REPLY_BYTES:
            raise _NotThereError
    return text


def _number(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise _NotThereError
    return value
