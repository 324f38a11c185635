"""Sending a request upstream as it was decided, and relaying the reply."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from proxy.compactor.chains import Chains
from proxy.compactor.requests import Outcome
from proxy.dialects.answers import Answer
from proxy.dialects.continuations import Continuation
from proxy.dialects.sse import EventReader
from proxy.errors import UpstreamError, UpstreamProtocolError
from proxy.server import error_responses
from proxy.server.curing import MIN_TOKENS, Cures, Tries, Trouble
from proxy.server.exchange import Exchange, Sent
from proxy.server.relay import MAX_ERROR_BYTES, relay
from proxy.server.taps import UNREADABLE, AnswerTap, TailTap, Tap, decoded, decoder
from proxy.upstream.calibrations import Calibrations
from proxy.upstream.client import Exchange as UpstreamExchange
from proxy.upstream.client import UpstreamClient
from proxy.upstream.continuations import Continuations
from proxy.upstream.headers import of_changed_body, readable
from proxy.upstream.overflow import classify, classify_event
from proxy.upstream.templates import is_template_error, is_template_event

MAX_CALLS = 3
"""How often one request is sent at most."""

HOLD_SECONDS = 10.0
"""So long a stream that has said nothing yet is held back, to see whether it fails."""

MAX_PRELUDE_BYTES = 4 * 1024 * 1024
"""The events with which a stream begins repeat instructions and tools."""

_FIRST_ERROR = 400
_SERVER_ERROR = 500
_NEVER = frozenset({401, 402, 403, 407, 408, 425, 429, 529})
"""Statuses that are about something else, whatever the text: relayed unread."""

_MARK_BYTES = 256
_PRELUDE = (b'"response.created"', b'"response.in_progress"', b'"response.queued"')


@dataclass(frozen=True, slots=True)
class _Refused:
    """A reply that was not what the client asked for, as far as it was read."""

    reply: aiohttp.ClientResponse
    already: bytes = field(repr=False)


class Sender:
    """Sends the requests of one process, and learns from the replies."""

    def __init__(
        self,
        client: UpstreamClient,
        chains: Chains,
        calibrations: Calibrations,
        continuations: Continuations,
        cures: Cures,
    ) -> None:
        """Take the client, those who learn, and what can be tried when a request is refused."""
        self._client = client
        self._chains = chains
        self._calibrations = calibrations
        self._continuations = continuations
        self._cures = cures

    async def send(self, exchange: Exchange, raw: bytes) -> web.StreamResponse:
        """Send what was decided, and relay the reply.

        Args:
            exchange: the request and what was decided.
            raw: the request's body as it came, for when it goes on like that.

        Raises:
            UpstreamError: when there is no reply, and nothing was sent to the client yet.
        """
        outcome = exchange.outcome
        changed = outcome.rewritten
        body = outcome.body if changed else raw
        try:
            async with self._open(exchange, body, changed=changed) as reply:
                trouble, already = None, b""
                if reply.status >= _FIRST_ERROR or _is_watched(outcome):
                    trouble, already = await self._look(exchange, reply)
                if trouble is None:
                    continuation = None if changed else outcome.continuation
                    tap = self._tap(exchange, reply, continuation)
                    return await _relay(exchange, reply, tap, already)
                sent = Sent(body, changed, rewritten=changed and not outcome.is_expanded)
                async with AsyncExitStack() as replies:
                    refused = _Refused(reply, already)
                    return await self._cured(exchange, raw, sent, refused, trouble, replies)
        except UpstreamError as error:
            early = exchange.early
            if early.response is None:
                raise
            return await early.fail(error_responses.envelope(str(error), error.type, error.code))

    async def _cured(
        self,
        exchange: Exchange,
        raw: bytes,
        sent: Sent,
        first: _Refused,
        trouble: Trouble,
        replies: AsyncExitStack,
    ) -> web.StreamResponse:
        """Try what may help after a refusal, and relay the best reply."""
        tries = Tries()
        for calls in range(1, MAX_CALLS + 1):
            # The last refusal is not cured any more, but still learned from.
            following = await self._cures.cure(exchange, raw, sent, trouble, tries)
            if following is None or calls == MAX_CALLS:
                break
            sent = following
            call = self._open(exchange, sent.body, changed=sent.changed)
            try:
                reply = await replies.enter_async_context(call)
                found, already = await self._look(exchange, reply, again=True)
            except UpstreamError:
                if tries.overflowed:
                    # An overflow is final for clients; that the upstream is gone is not.
                    raise
                break
            if found is None or _is_passing(found):
                if reply.status < _FIRST_ERROR:
                    self._cures.helped(exchange, tries)
                continuation = None if sent.changed else exchange.outcome.continuation
                tap = self._tap(exchange, reply, continuation)
                return await _relay(exchange, reply, tap, already)
            trouble = found
            if tries.original:
                # What is said of the client's own body is for the client.
                first = _Refused(reply, already)
        self._cures.failed(tries)
        return await _relay(exchange, first.reply, None, first.already)

    async def _look(
        self, exchange: Exchange, reply: aiohttp.ClientResponse, *, again: bool = False
    ) -> tuple[Trouble | None, bytes]:
        """Return what is wrong with a reply that something may be done about, and what was read.

        Args:
            exchange: what the reply is to.
            reply: the reply.
            again: whether something was refused before, so that a stream is looked at too.
        """
        if not exchange.curable or reply.status in _NEVER:
            return None, b""
        coding, may_cure = reply.headers.get("Content-Encoding", ""), exchange.outcome.auto
        rewritten = exchange.outcome.rewritten
        if reply.status >= _FIRST_ERROR:
            already = await _beginning(reply)
            text = decoded(already, coding)
            if text is None:
                return Trouble(reply.status, b"", None), already
            overflow = classify(reply.status, text, exchange.rules) if may_cure else None
            template = rewritten and overflow is None and is_template_error(reply.status, text)
            return Trouble(reply.status, text, overflow, template), already
        watched = again or _is_watched(exchange.outcome)
        if reply.content_type != "text/event-stream" or not watched or not may_cure:
            return None, b""
        already, event = await _first_event(reply, coding, patient=exchange.dialect.has_prelude)
        overflow = classify_event(event, exchange.rules)
        template = rewritten and overflow is None and is_template_event(event)
        if overflow is None and not template:
            return None, already
        return Trouble(reply.status, event, overflow, template), already

    def _open(self, exchange: Exchange, body: bytes, *, changed: bool) -> UpstreamExchange:
        route = exchange.route
        headers = of_changed_body(route.headers) if changed else route.headers
        if exchange.early.response is not None:
            # The head went out without a content encoding, so the reply must have none.
            headers = headers.copy()
            headers["Accept-Encoding"] = "identity"
        elif _is_watched(exchange.outcome) or (
            exchange.outcome.recorded and self._chains.limit_bytes
        ):
            headers = readable(headers)
        return self._client.send("POST", route.base.resolve(route.target), headers, body)

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
            if reported is not None and outcome.measured is not None:
                self._calibrations.reported(base, model, route.tenant, outcome.measured, reported)

        def note(reported: int | None, answer: Answer | None) -> None:
            learn(reported)
            if answer is not None and continuation is not None:
                self._continuations.answered(
                    base,
                    model,
                    chained=bool(continuation.previous),
                    told=answer.previous == continuation.previous,
                    expected=outcome.measured.comparable if outcome.measured else 0,
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
        if outcome.measured is None:
            return None
        return TailTap(reply.headers.get("Content-Encoding", ""), learn)


async def _relay(
    exchange: Exchange, reply: aiohttp.ClientResponse, tap: Tap | None, already: bytes = b""
) -> web.StreamResponse:
    if exchange.early.response is not None:
        return await exchange.early.finish(reply, tap, already)
    return await relay(exchange.request, reply, exchange.headers(exchange.outcome), tap, already)


async def _beginning(reply: aiohttp.ClientResponse) -> bytes:
    """Return what an error says, as far as one looks at it."""
    told = b""
    try:
        while len(told) < MAX_ERROR_BYTES and (more := await reply.content.readany()):
            told += more
    except (aiohttp.ClientError, TimeoutError):
        raise UpstreamProtocolError("the upstream broke off its reply") from None
    return told


async def _first_event(
    reply: aiohttp.ClientResponse, coding: str, *, patient: bool
) -> tuple[bytes, bytes]:
    """Return what came of a stream, and the first event that says more than that it began.

    The event is empty when the stream takes its time, or says something that is no event.

    Args:
        reply: the stream.
        coding: its content encoding.
        patient: whether such streams begin with events that say nothing, which are waited out.
    """
    already, kept, reader, decode = b"", 0, EventReader(), decoder(coding)
    try:
        async with asyncio.timeout(HOLD_SECONDS):
            while decode is not None and (more := await reply.content.readany()):
                already += more
                for event in reader.feed(decode(more)):
                    if not patient or not any(mark in event[:_MARK_BYTES] for mark in _PRELUDE):
                        return already, event
                    kept = len(already)
                if not patient or len(already) - kept > MAX_ERROR_BYTES:
                    break
                if len(already) > MAX_PRELUDE_BYTES:
                    break
    except TimeoutError:
        pass
    except UNREADABLE:
        pass
    except aiohttp.ClientError:
        raise UpstreamProtocolError("the upstream broke off its reply") from None
    return already, b""


def _is_watched(outcome: Outcome) -> bool:
    """Whether the begin of a stream is looked at: there may be something to cure."""
    return outcome.rewritten or outcome.after >= MIN_TOKENS


def _is_passing(trouble: Trouble) -> bool:
    """Whether an error will pass: clients try again then, and must not hear of an older one."""
    known = trouble.overflow is not None or trouble.template
    return trouble.status >= _SERVER_ERROR and not known
