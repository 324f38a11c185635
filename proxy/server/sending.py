"""Sending a request upstream as it was decided, and relaying the reply."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import aiohttp
from aiohttp import web

from proxy.compactor.chains import Chains, Expansion
from proxy.compactor.requests import Outcome
from proxy.dialects.answers import Answer
from proxy.dialects.continuations import Continuation
from proxy.errors import UpstreamError, UpstreamProtocolError
from proxy.server import error_responses
from proxy.server.relay import MAX_ERROR_BYTES, EarlyStream, relay
from proxy.server.taps import AnswerTap, TailTap, Tap, decoded
from proxy.upstream.client import Exchange as UpstreamExchange
from proxy.upstream.client import UpstreamClient
from proxy.upstream.continuations import Continuations, Refusal, refusal
from proxy.upstream.headers import of_changed_body, readable
from proxy.upstream.ratios import Ratios

_FIRST_ERROR = 400


@dataclass(slots=True)
class Exchange:
    """A request and what was decided about it."""

    request: web.Request
    outcome: Outcome
    early: EarlyStream
    headers: Callable[[Outcome], Mapping[str, str]]
    """Tells what was done in headers of the reply."""
    decide: Callable[[], Awaitable[Outcome]]
    """Decides again, and takes its time to find what the request draws on."""
    record: Callable[[Answer, Outcome], None]
    """Records the response to what was decided."""


class Sender:
    """Sends the requests of one process, and learns from the replies."""

    def __init__(
        self,
        client: UpstreamClient,
        chains: Chains,
        ratios: Ratios,
        continuations: Continuations,
    ) -> None:
        """Take the client and those who learn."""
        self._client = client
        self._chains = chains
        self._ratios = ratios
        self._continuations = continuations

    async def send(self, exchange: Exchange, raw: bytes) -> web.StreamResponse:
        """Send what was decided, and relay the reply.

        Args:
            exchange: the request and what was decided.
            raw: the request's body as it came, for when it goes on like that.

        Raises:
            UpstreamError: when there is no reply, and nothing was sent to the client yet.
        """
        early = exchange.early
        try:
            return await self._send(exchange, raw)
        except UpstreamError as error:
            if early.response is None:
                raise
            return await early.fail(error_responses.envelope(str(error), error.type, error.code))

    async def _send(self, exchange: Exchange, raw: bytes) -> web.StreamResponse:
        outcome = exchange.outcome
        if outcome.rewritten:
            async with self._open(exchange, outcome.body, changed=True) as reply:
                return await self._answer(exchange, reply)
        async with self._open(exchange, raw, changed=False) as reply:
            continuation = outcome.continuation
            if continuation is None or continuation.elsewhere or reply.status < _FIRST_ERROR:
                return await self._answer(exchange, reply, continuation)
            told = await _beginning(reply)
            kind = refusal(
                reply.status,
                decoded(told, reply.headers.get("Content-Encoding", "")),
                continuation,
                lambda call: _holds(outcome.expansion, call),
            )
            if kind is not None:
                response = await self._send_again(exchange, kind)
                if response is not None:
                    return response
            return await _relay(exchange, reply, None, told)

    async def _send_again(self, exchange: Exchange, kind: Refusal) -> web.StreamResponse | None:
        """Send a request written out; None when that is not possible or does not help either."""
        if exchange.outcome.expansion is None and not self._refuses(exchange):
            # It may have been recorded by another process meanwhile, which is now worth a wait.
            exchange.outcome = await exchange.decide()
        outcome = exchange.outcome
        if outcome.expansion is None or outcome.refusal or outcome.route is None:
            return None
        body = outcome.body if outcome.rewritten else outcome.expansion.body
        try:
            async with self._open(exchange, body, changed=True) as reply:
                if reply.status >= _FIRST_ERROR:
                    return None
                self._continuations.helped(outcome.route.base.url, outcome.route.model, kind)
                return await self._answer(exchange, reply)
        except UpstreamError:
            # The error that there is says more.
            return None

    def _refuses(self, exchange: Exchange) -> bool:
        route = exchange.outcome.route
        return route is not None and self._continuations.refuses(route.base.url, route.model)

    def _open(self, exchange: Exchange, body: bytes, *, changed: bool) -> UpstreamExchange:
        route = exchange.outcome.route
        if route is None:
            raise RuntimeError("only a handled request has a route")
        headers = of_changed_body(route.headers) if changed else route.headers
        if exchange.early.response is not None:
            # The head went out without a content encoding, so the reply must have none.
            headers = headers.copy()
            headers["Accept-Encoding"] = "identity"
        elif exchange.outcome.recorded and self._chains.limit_bytes:
            headers = readable(headers)
        return self._client.send("POST", route.base.resolve(route.target), headers, body)

    async def _answer(
        self,
        exchange: Exchange,
        reply: aiohttp.ClientResponse,
        continuation: Continuation | None = None,
    ) -> web.StreamResponse:
        return await _relay(exchange, reply, self._tap(exchange, reply, continuation))

    def _tap(
        self,
        exchange: Exchange,
        reply: aiohttp.ClientResponse,
        continuation: Continuation | None,
    ) -> Tap | None:
        """Return who looks at a reply; `continuation` is what the upstream was left to know."""
        outcome = exchange.outcome
        route = outcome.route
        if reply.status != 200 or route is None:
            return None
        base, model = route.base.url, route.model

        def learn(reported: int | None) -> None:
            if reported is not None and outcome.measured:
                self._ratios.learn(base, model, outcome.measured, reported)

        def note(reported: int | None, answer: Answer | None) -> None:
            learn(reported)
            if answer is not None and continuation is not None:
                self._continuations.answered(
                    base,
                    model,
                    chained=bool(continuation.previous),
                    told=answer.previous == continuation.previous,
                    expected=outcome.measured,
                    reported=reported,
                )

        def record(answer: Answer) -> None:
            exchange.record(answer, outcome)

        if outcome.recorded and self._chains.limit_bytes:
            return AnswerTap(
                reply.headers.get("Content-Encoding", ""),
                streamed=reply.content_type == "text/event-stream",
                limit=self._chains.limit_bytes,
                record=record,
                report=note,
            )
        return TailTap(learn) if outcome.measured else None


async def _relay(
    exchange: Exchange, reply: aiohttp.ClientResponse, tap: Tap | None, already: bytes = b""
) -> web.StreamResponse:
    if exchange.early.response is not None:
        return await exchange.early.finish(reply, tap, already)
    return await relay(exchange.request, reply, exchange.headers(exchange.outcome), tap, already)


def _holds(expansion: Expansion | None, call: str) -> bool:
    if expansion is None:
        return False
    name = call.encode()
    return any(name in raw.lower() for raw in expansion.items[: expansion.kept])


async def _beginning(reply: aiohttp.ClientResponse) -> bytes:
    """Return what an error says, as far as one looks at it."""
    told = b""
    try:
        while len(told) < MAX_ERROR_BYTES and (more := await reply.content.readany()):
            told += more
    except (aiohttp.ClientError, TimeoutError):
        raise UpstreamProtocolError("the upstream broke off its reply") from None
    return told
