"""What happens to an HTTP request: ours, compacted, or passed through."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

from aiohttp import web
from multidict import CIMultiDict

from proxy.compactor.chains import Chains
from proxy.compactor.compactor import Compactor
from proxy.compactor.memory import SessionMemory
from proxy.compactor.requests import Inbound, Outcome
from proxy.dialects.bodies import Dialect
from proxy.dialects.chat_completions import ChatCompletions
from proxy.dialects.responses import Responses
from proxy.errors import ContextBudgetExceeded, UpstreamError
from proxy.server import error_responses, health
from proxy.server.bodies import Body, read_body, stream_body
from proxy.server.exchange import Exchange
from proxy.server.gate import Gate
from proxy.server.hints import BadHint, Hints, read_hints
from proxy.server.relay import EarlyStream, relay
from proxy.server.sending import Sender
from proxy.server.tenancy import Tenancy
from proxy.upstream.client import UpstreamClient
from proxy.upstream.headers import request_headers

OWN_PAGES = "/_foldgate/"
_OFF = frozenset({"", "0", "false", "no", "off"})
_NO_HEADERS: Mapping[str, str] = {}
_CHAT_PATH = "/chat/completions"
_RESPONSES_PATH = "/responses"
_SLASHES = re.compile("/{2,}")
_MODEL_PATHS = (_CHAT_PATH, _RESPONSES_PATH)
_DELETED = frozenset({200, 202, 204, 404, 410})


@dataclass(slots=True)
class Totals:
    """What one process has done since it started."""

    requests: int = 0
    """Requests to a model: Chat Completions and Responses."""
    tokens_kept_out: int = 0
    """By how much what was forwarded is smaller than what came, estimated tokens."""


class Gateway:
    """Handles every request; one per process."""

    def __init__(
        self,
        gate: Gate,
        chat: ChatCompletions,
        responses: Responses,
        client: UpstreamClient,
        compactor: Compactor,
        memory: SessionMemory,
        chains: Chains,
        tenancy: Tenancy,
        sender: Sender,
    ) -> None:
        """Take the parts; `gate` is replaced on a reload."""
        self.gate = gate
        self.draining = False
        self.running = 0
        self.totals = Totals()
        self._idle = asyncio.Event()
        self._chat_dialect = chat
        self._responses_dialect = responses
        self._client = client
        self._compactor = compactor
        self._memory = memory
        self._chains = chains
        self._tenancy = tenancy
        self._sender = sender

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request."""
        path = request.rel_url.raw_path
        if path.startswith(OWN_PAGES):
            return health.page(self.gate.settings, self._memory, path, draining=self.draining)
        if self.draining:
            return error_responses.error_response(
                503,
                "Foldgate is shutting down; send the request again.",
                "server_error",
                "shutting_down",
                {"Retry-After": "5", "Connection": "close"},
            )
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return error_responses.error_response(
                426,
                "WebSocket is not supported here; use HTTP.",
                "invalid_request_error",
                "upgrade_not_supported",
                error_responses.NO_RETRY,
            )
        self.running += 1
        path = path.rstrip("/")
        if request.method == "POST" and path.endswith(_MODEL_PATHS):
            self.totals.requests += 1
        try:
            if request.method == "POST" and path.endswith(_CHAT_PATH):
                return await self._converse(request, self._chat_dialect)
            if request.method == "POST" and path.endswith(_RESPONSES_PATH):
                return await self._converse(request, self._responses_dialect)
            body = stream_body(request) if request.body_exists else None
            return await self._pass(request, body)
        except UpstreamError as error:
            return error_responses.of_error(error)
        finally:
            self.running -= 1
            if not self.running:
                self._idle.set()

    async def drain(self) -> None:
        """Refuse new requests and wait until the running ones are done."""
        self.draining = True
        while self.running:
            self._idle.clear()
            await self._idle.wait()

    async def _pass(
        self,
        request: web.Request,
        body: bytes | AsyncIterator[bytes] | None,
        extra: Mapping[str, str] = _NO_HEADERS,
    ) -> web.StreamResponse:
        gate = self.gate
        headers = gate.default_headers(request_headers(request.headers))
        if isinstance(body, bytes):
            headers.popall("Content-Length", None)
        url = gate.base.resolve(_target(request))
        async with self._client.send(request.method, url, headers, body) as reply:
            if request.method == "DELETE" and reply.status in _DELETED:
                self._note_deleted(request)
            return await relay(request, reply, extra)

    async def _converse(self, request: web.Request, dialect: Dialect) -> web.StreamResponse:
        gate = self.gate
        settings = gate.settings.server
        body = await read_body(request, settings.max_body_bytes)
        if not isinstance(body, Body):
            return await self._pass(request, body)
        asked = request.headers.get("x-foldgate-bypass", "").lower()
        bypassed = "bypass" in settings.request_headers and asked not in _OFF
        if body.decoded is None:
            return await self._pass(request, body.raw)
        headers = request_headers(request.headers)
        headers.popall("Content-Length", None)
        failure = error_responses.chat_stream_error
        if dialect is self._responses_dialect:
            failure = error_responses.responses_stream_error
        early = EarlyStream(request, settings.keepalive_seconds, failure)
        try:
            hints = read_hints(request.headers, settings.request_headers)
        except BadHint as error:
            return error_responses.error_response(
                400,
                str(error),
                "invalid_request_error",
                "invalid_header",
                error_responses.NO_RETRY,
            )
        inbound = self._inbound(
            request, dialect, body.decoded, headers, early, hints, bypass=bypassed
        )
        outcome = await self._compactor.handle(inbound)
        if outcome.route is None:
            return await self._pass(request, body.raw, self._reply_headers(outcome))
        early.model = outcome.route.model
        if outcome.refusal:
            return await self._refuse(request, outcome, early)
        if outcome.rewritten:
            self.totals.tokens_kept_out += max(outcome.before - outcome.after, 0)
        exchange = Exchange(
            request,
            inbound,
            outcome,
            early,
            self._reply_headers,
            self._compactor,
            rules=gate.settings.upstream.overflow_rules,
            curable=not (bypassed or settings.shadow),
        )
        response = await self._sender.send(exchange, body.raw)
        self._compactor.relayed(exchange.outcome)
        return response

    def _inbound(
        self,
        request: web.Request,
        dialect: Dialect,
        body: bytes,
        headers: CIMultiDict[str],
        early: EarlyStream,
        hints: Hints,
        *,
        bypass: bool,
    ) -> Inbound:
        gate = self.gate
        settings = gate.settings.server
        asked = request.headers.get("x-foldgate-compact", "").lower()
        origin, tenant = self._tenancy.origins(request.headers, request.remote, dialect.name)
        target = _chat_target(request)
        return Inbound(
            dialect,
            body,
            origin,
            lambda model, output_field: gate.handling(
                model, headers, output_field, target, tenant, hints
            ),
            force="compact" in settings.request_headers and asked == "force",
            shadow=settings.shadow,
            bypass=bypass,
            patience=early,
        )

    def _note_deleted(self, request: web.Request) -> None:
        """Let go of a response that the client deleted, whether or not the upstream had it."""
        parent, _, name = request.path.rstrip("/").rpartition("/")
        if parent.endswith(_RESPONSES_PATH):
            kind = self._responses_dialect.name
            origin, _ = self._tenancy.origins(request.headers, request.remote, kind)
            self._chains.forget(origin, name)

    async def _refuse(
        self, request: web.Request, outcome: Outcome, early: EarlyStream
    ) -> web.StreamResponse:
        error = ContextBudgetExceeded(outcome.refusal)
        if early.response is not None:
            return await early.fail(error_responses.envelope(str(error), error.type, error.code))
        headers = {**error_responses.NO_RETRY, **self._reply_headers(outcome)}
        return error_responses.of_error(error, headers)

    def _reply_headers(self, outcome: Outcome) -> dict[str, str]:
        measured = bool(outcome.before)
        if not self.gate.settings.server.reply_headers or not (measured or outcome.marks):
            return {}
        headers = {"x-foldgate-compaction": ", ".join(outcome.marks) or "none"}
        if measured:
            headers["x-foldgate-tokens"] = f"before={outcome.before}, after={outcome.after}"
        if outcome.session:
            headers["x-foldgate-session"] = outcome.session
        return headers


def _chat_target(request: web.Request) -> str:
    """Return path and query of a Chat Completions request, without slashes too many.

    A base URL that ends in a slash makes two of one; servers answer that with 404, or with a
    redirect that would lead the client past us.
    """
    target = _target(request)
    path, mark, query = target.partition("?")
    if "//" not in path and not path.endswith("/"):
        return target
    return f"{_SLASHES.sub('/', path).rstrip('/')}{mark}{query}"


def _target(request: web.Request) -> str:
    """Return path and query as they were sent.

    A client may send the absolute form (RFC 9112 section 3.2.2); its host is us, and must not
    become part of the upstream's.
    """
    raw = request.raw_path
    if raw.startswith("/"):
        return raw
    rest = raw.partition("://")[2]
    return rest[rest.find("/") :] if "/" in rest else "/"
