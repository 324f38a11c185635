"""A real HTTP server on the loopback that plays a strict OpenAI-compatible upstream."""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

from proxy.codec import Json, JsonObject, as_objects, dumps, loads
from tests import upstream_responses as responses
from tests.upstream_replies import ChatAnswer
from tests.upstream_replies import Reply as Reply
from tests.upstream_responses import RESPONSES_PATH
from tests.upstream_rules import (
    VIOLATIONS,
    Rejection,
    Rules,
    check,
    decompress,
    openai,
    plausible_checkpoint,
    prompt_tokens,
)

PURPOSE_HEADER = "x-foldgate-purpose"
CHAT_PATH = "/v1/chat/completions"
CHAT, RESPONSES = "chat", "responses"
BOTH = frozenset({CHAT, RESPONSES})
_BODY_LIMIT = 512 * 1024 * 1024


@dataclass(slots=True)
class Outcome:
    """What became of a request."""

    status: int | None = None
    """Of the reply, once its headers were sent."""
    finished: bool = False
    disconnected: bool = False
    """The client went away before the reply was finished."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A request exactly as it arrived."""

    method: str
    path_qs: str
    headers: CIMultiDictProxy[str]
    body: bytes = field(repr=False)
    outcome: Outcome = field(default_factory=Outcome)
    chat_path: str = CHAT_PATH
    responses_path: str = RESPONSES_PATH

    @property
    def path(self) -> str:
        return self.path_qs.partition("?")[0]

    @property
    def decoded(self) -> bytes:
        """The body without its content encoding."""
        return decompress(self.body, self.headers.get("Content-Encoding", ""))

    @property
    def json(self) -> JsonObject:
        value = loads(self.decoded)
        assert isinstance(value, dict), "the request body is not a JSON object"
        return value

    @property
    def messages(self) -> Sequence[JsonObject]:
        """The messages, or the items of a Responses request."""
        body = self.json
        return as_objects(body.get("messages")) or responses.input_items(body)

    @property
    def is_chat(self) -> bool:
        return self.method == "POST" and self.path == self.chat_path

    @property
    def api(self) -> str:
        """The API of a request to a model; else empty."""
        if self.method == "POST" and self.path == self.responses_path:
            return RESPONSES
        return CHAT if self.is_chat else ""

    @property
    def is_summary(self) -> bool:
        return bool(self.api) and self.headers.get(PURPOSE_HEADER) == "compaction"

    @property
    def disconnected(self) -> bool:
        return self.outcome.disconnected


@dataclass(kw_only=True, eq=False)
class ScriptedUpstream(Rules):
    """The server; `async with` starts it. Its switches may be changed between requests."""

    model: str = "test-model"
    advertise_window: bool = True
    key: str | None = None
    chat_path: str = CHAT_PATH
    """Where it takes chat requests; nowhere else."""
    responses_path: str = RESPONSES_PATH
    apis: frozenset[str] = BOTH
    """What it speaks; the other API is answered with 404."""
    summary_apis: frozenset[str] | None = None
    """What it speaks to the summariser, when that is not the same."""
    overflow_as: Callable[[int, int], tuple[int, bytes]] | None = None
    """Status and body of a refusal by the window, of the prompt's tokens and the limit; else as
    llama.cpp and OpenAI do it."""
    overflow_in_stream: bool = True
    """As OpenAI, tell a Responses stream of an overflow within it; else with a plain 400."""
    reply: Callable[[Recorded], Reply] | None = None
    """Makes the reply to a main request when `replies` is empty."""
    summary_text: str | Callable[[Recorded], str] | None = None
    timings: bool = False
    """Add llama.cpp's `timings` to replies."""

    replies: deque[Reply] = field(default_factory=deque)
    summary_replies: deque[Reply] = field(default_factory=deque)
    requests: list[Recorded] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    """Every refusal of a request to a model, whatever the rule."""
    stored: responses.Stored = field(default_factory=responses.Stored)
    url: str = ""

    _runner: web.AppRunner | None = None
    _used: set[object] = field(default_factory=set)
    """Addresses of connections that carried a request to a model."""
    _dropped: list[bytes] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _served: int = 0
    _closing: bool = False

    @property
    def base_url(self) -> str:
        return self.url + "/v1"

    @property
    def main(self) -> list[Recorded]:
        """The requests to the model itself, of both APIs."""
        return [r for r in self.requests if r.api and not r.is_summary]

    @property
    def summaries(self) -> list[Recorded]:
        return [r for r in self.requests if r.is_summary]

    @property
    def violations(self) -> list[str]:
        """Refusals by the rules of a conversation's structure, and by the window."""
        return [str(r) for r in self.rejections if r.rule in VIOLATIONS]

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=_BODY_LIMIT)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(
            app,
            handler_cancellation=True,
            auto_decompress=False,
            shutdown_timeout=0.1,
            access_log=None,
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
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
        """Close the server and every connection; further requests are refused."""
        self._closing = True
        if self._runner is not None:
            await self._runner.cleanup()

    async def wait_for(self, predicate: Callable[[], bool], seconds: float = 5.0) -> None:
        """Return once `predicate` holds; it is tried after everything that happens here."""
        async with asyncio.timeout(seconds):
            while not predicate():
                await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        record = Recorded(
            request.method,
            request.raw_path,
            CIMultiDictProxy(CIMultiDict(request.headers)),
            await request.read(),
            chat_path=self.chat_path,
            responses_path=self.responses_path,
        )
        self.requests.append(record)
        self._notify()
        async with self._watched(record):
            return await self._dispatch(request, record)

    @asynccontextmanager
    async def _watched(self, record: Recorded) -> AsyncIterator[None]:
        try:
            yield
            record.outcome.finished = True
        except (asyncio.CancelledError, ConnectionError):
            record.outcome.disconnected = not (record.outcome.finished or self._closing)
            raise
        finally:
            self._notify()

    async def _dispatch(self, request: web.Request, record: Recorded) -> web.StreamResponse:
        if self.key is not None and record.headers.get("Authorization") != f"Bearer {self.key}":
            refusal = openai(
                "key", "Incorrect API key provided.", code="invalid_api_key", status=401
            )
            return await _send(request, record, refusal.status, refusal.body)
        apis = self.summary_apis if record.is_summary else None
        if record.api in (self.apis if apis is None else apis):
            return await self._converse(request, record)
        if record.path.startswith(self.responses_path + "/") and RESPONSES in self.apis:
            status, page = self.stored.page(
                record.method, record.path.removeprefix(self.responses_path + "/"), record.body
            )
            return await _send(request, record, status, page)
        if record.method == "GET" and record.path == "/v1/models":
            return await _send(request, record, 200, self._models())
        if record.path.startswith("/echo/"):
            return await _send(request, record, 200, _echo(request, record))
        text = f"Invalid URL ({record.method} {record.path})"
        return await _send(request, record, 404, openai("url", text).body)

    def _models(self) -> bytes:
        card: JsonObject = {"id": self.model, "object": "model", "created": 1795000000}
        card["owned_by"] = "scripted"
        if self.window is not None and self.advertise_window:
            card["meta"] = {"n_ctx": self.window, "n_ctx_train": 131072}
        return dumps({"object": "list", "data": [card]})

    def refusals(self, record: Recorded) -> list[Rejection]:
        """Return why a request to a model is refused; nothing when it is answered."""
        try:
            if record.api == RESPONSES:
                return responses.check(record.decoded, self, self.stored)
            return check(record.decoded, self)
        except ValueError as error:
            return [openai("json", str(error))]

    def prompt_tokens(self, record: Recorded) -> int:
        """The size of a prompt as this server counts it, with all that it draws on."""
        body = record.json
        if record.api != RESPONSES:
            return prompt_tokens(body)
        return responses.input_tokens(body, responses.whole_input(body, self.stored))

    async def _converse(self, request: web.Request, record: Recorded) -> web.StreamResponse:
        refusals = self.refusals(record)
        if refusals:
            self.rejections += refusals
            first = refusals[0]
            if first.rule == "window" and self.overflow_as is not None:
                status, body = self.overflow_as(self.prompt_tokens(record), self.window or 0)
                return await _send(request, record, status, body)
            streams = record.api == RESPONSES and self.overflow_in_stream
            if streams and first.rule == "window" and record.json.get("stream") is True:
                chunks = responses.failure(record.json, first.error)
                return await self._answer(request, record, Reply(chunks=chunks))
            return await _send(request, record, first.status, first.body)
        peer = request.transport.get_extra_info("peername") if request.transport else None
        is_reused = peer in self._used
        self._used.add(peer)
        if record.body in self._dropped:
            self._dropped.remove(record.body)
            await _cut(request, record)
        reply = self._summary_reply(record) if record.is_summary else self._main_reply(record)
        await asyncio.sleep(reply.delay)
        if reply.hang:
            await asyncio.Event().wait()
        if reply.drop:
            if is_reused:
                # Clients take it for a connection that was being closed, and send it once more.
                self._dropped.append(record.body)
            await _cut(request, record)
        return await self._answer(request, record, reply)

    def _main_reply(self, record: Recorded) -> Reply:
        self._served += 1
        if self.replies:
            return self.replies.popleft()
        return self.reply(record) if self.reply else Reply(text=f"ok {self._served}")

    def _summary_reply(self, record: Recorded) -> Reply:
        if self.summary_replies:
            return self.summary_replies.popleft()
        if self.summary_text is None:
            return Reply(text=plausible_checkpoint(responses.as_messages(record.messages)))
        text = self.summary_text
        return Reply(text=text if isinstance(text, str) else text(record))

    def _spelled(self, record: Recorded, reply: Reply) -> "ChatAnswer | responses.ResponsesAnswer":
        body = record.json
        if record.api == RESPONSES:
            number = self.stored.next_number()
            if not self.keeps_chains:
                body.pop("previous_response_id", None)
            return responses.ResponsesAnswer(number, self.model, body, reply, self.stored)
        return ChatAnswer(self._served, self.model, self.timings, body, reply)

    async def _answer(
        self, request: web.Request, record: Recorded, reply: Reply
    ) -> web.StreamResponse:
        body = record.json
        if reply.chunks is None and reply.raw_body is None and reply.status != 200:
            error = openai("script", reply.text, status=reply.status).body
            return await _send(request, record, reply.status, error, reply.headers)
        streamed = body.get("stream") is True and reply.raw_body is None
        if reply.chunks is None and not streamed:
            data = reply.raw_body
            data = dumps(self._spelled(record, reply).whole()) if data is None else data
            return await _send(request, record, reply.status, data, reply.headers, cut=reply.cut)
        chunks = reply.chunks
        if chunks is None:
            chunks = self._spelled(record, reply).events()
        kind = "text/event-stream" if streamed else "application/json"
        response = _response(reply.status, kind, reply.headers)
        await response.prepare(request)
        record.outcome.status = reply.status
        self._notify()
        half = len(chunks) // 2 or 1
        for chunk in chunks[:half]:
            await response.write(chunk)
        if reply.gate is not None:
            await reply.gate.wait()
        if reply.cut:
            await _cut(request, record)
        for chunk in chunks[half:]:
            await response.write(chunk)
        await response.write_eof()
        return response


def _echo(request: web.Request, record: Recorded) -> bytes:
    pairs: list[Json] = [
        [name.decode("latin-1"), value.decode("latin-1")] for name, value in request.raw_headers
    ]
    return dumps(
        {
            "method": record.method,
            "path_qs": record.path_qs,
            "headers": pairs,
            "length": len(record.body),
            "sha256": hashlib.sha256(record.body).hexdigest(),
        }
    )


def _response(status: int, kind: str, headers: Mapping[str, str]) -> web.StreamResponse:
    merged = CIMultiDict(headers)
    merged.setdefault("Content-Type", kind)
    return web.StreamResponse(status=status, headers=merged)


async def _cut(request: web.Request, record: Recorded) -> None:
    record.outcome.finished = True
    assert request.transport is not None
    request.transport.abort()
    await asyncio.Event().wait()  # until the lost connection cancels this handler


async def _send(
    request: web.Request,
    record: Recorded,
    status: int,
    body: bytes,
    headers: Mapping[str, str] | None = None,
    *,
    cut: bool = False,
) -> web.StreamResponse:
    response = _response(status, "application/json", headers or {})
    response.content_length = len(body)
    await response.prepare(request)
    record.outcome.status = status
    if request.method != "HEAD":
        await response.write(body[: len(body) // 2] if cut else body)
    if cut:
        await _cut(request, record)
    await response.write_eof()
    return response
