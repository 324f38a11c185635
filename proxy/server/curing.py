"""What is tried when an upstream refuses a request (design section 9).

Each cure makes another body, or says that it knows none. Whatever is tried, a client gets either a
good reply or the upstream's first error.
"""

from dataclasses import dataclass, field

from msgspec.structs import replace

from proxy.compaction.policy import reserve
from proxy.dialects.limits import MIN_OUTPUT, output_limit, with_output_limit
from proxy.server.exchange import Exchange, Sent
from proxy.upstream.calibrations import Calibrations
from proxy.upstream.continuations import Continuations, Refusal, refusal
from proxy.upstream.effective import EffectiveWindows
from proxy.upstream.learned import LearnedWindows, Undo
from proxy.upstream.overflow import Overflow
from proxy.upstream.templates import Templates

MARGIN_TOKENS = 64
MARGIN_SHARE = 0.02
"""What is left free when an output limit is lowered: the estimate may be off."""

MIN_TOKENS = 1024
"""A smaller request is not looked at more closely."""

MIN_SHARE = 0.5
"""An error that may mean something else is not taken for an overflow below this share of a window
that is known."""

EXCESS_SHARE = 0.9
"""How much of an estimate is believed when only the excess over a limit was told."""

UNREPORTED_SHARE = 0.93
"""How much of an estimate that was accepted is believed to have been accepted."""

MAX_GUESSES = 2
PROBE_TARGET = 0.7
"""To which share of the trigger a request is made smaller for the first guess."""

_DOUBTFUL = (b"bytes", b"request_too_large")
"""Servers have limits on bytes, too, and say them in much the same words."""

_LOWER = 4
"""An output limit is lowered to this part of it, where no number is told."""

_BAD_REQUEST = 400


@dataclass(slots=True)
class Tries:
    """What was tried for one request."""

    overflowed: bool = False
    written_out: Refusal | None = None
    original: bool = False
    joined: bool = False
    """Whether the other layout was asked for, since the model's template objected."""
    guesses: list[Undo] = field(default_factory=list)
    """How to take back what was guessed, if it did not help."""
    refused: int = 0
    """Estimated tokens of the smallest prompt that was refused."""
    unsure: bool = False
    """Whether a limit was worked out of an excess that was most of the request."""
    lowered: int = 0
    limit: int | None = None
    """What the output limit was lowered to, for the rest of the tries."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A refusal, as far as it was read."""

    status: int
    text: bytes = field(repr=False)
    """Decoded from its content encoding."""
    overflow: Overflow | None
    template: bool = False
    """Whether the model's chat template objects."""


class Cures:
    """Finds the next body to try; learns from what is refused."""

    def __init__(
        self,
        continuations: Continuations,
        learned: LearnedWindows,
        calibrations: Calibrations,
        windows: EffectiveWindows,
        templates: Templates,
    ) -> None:
        """Take what learns."""
        self._templates = templates
        self._continuations = continuations
        self._learned = learned
        self._calibrations = calibrations
        self._windows = windows

    async def cure(
        self, exchange: Exchange, raw: bytes, sent: Sent, trouble: Trouble, tries: Tries
    ) -> Sent | None:
        """Return what to send next; None when nothing is left to try.

        Args:
            exchange: the request and what was decided about it, which may be decided anew.
            raw: the body as the client sent it.
            sent: what was refused.
            trouble: how.
            tries: what was tried before; it is brought up to date.
        """
        if not sent.changed and tries.written_out is None:
            tries.written_out = self._refusal(exchange, trouble)
            if tries.written_out is not None:
                return await self._written_out(exchange)
        overflow = trouble.overflow
        if overflow is not None:
            tries.overflowed = True
            following = None
            if overflow.kind == "total":
                following = self._lowered(exchange, sent, overflow, tries)
            if following is None:
                following = await self._smaller(exchange, sent, trouble, overflow, tries)
            if following is None and overflow.kind == "total":
                following = self._lowered(exchange, sent, overflow, tries, last=True)
            return following
        if sent.rewritten and trouble.template and not tries.joined:
            tries.joined = True
            following = await self._joined(exchange, sent, tries)
            if following is not None:
                return following
        is_bad = trouble.template or trouble.status == _BAD_REQUEST
        if sent.rewritten and is_bad and not tries.original:
            tries.original = True
            return self._original(exchange, raw)
        return None

    def window(self, exchange: Exchange) -> int | None:
        """Return the window that a request is believed to have, in tokens; None when unknown."""
        known = self._windows.remembered(exchange.route)
        return known.tokens if known is not None else None

    def failed(self, tries: Tries) -> None:
        """Note that nothing helped: what was guessed on the way is not to be believed."""
        for undo in reversed(tries.guesses):
            undo()

    def helped(self, exchange: Exchange, tries: Tries) -> None:
        """Note that the last thing that was tried worked."""
        route = exchange.route
        if tries.written_out is not None:
            self._continuations.helped(route.base.url, route.model, tries.written_out)
        if tries.joined and not tries.original:
            self._templates.helped(route.base.url, route.model)
        if tries.guesses or tries.unsure:
            # Its report is still to come.
            accepted = int(UNREPORTED_SHARE * exchange.outcome.after)
            base, model = route.base.url, route.model
            self._learned.settle(base, model, route.tenant, accepted, tries.refused)

    def _refusal(self, exchange: Exchange, trouble: Trouble) -> Refusal | None:
        continuation, expansion = exchange.outcome.continuation, exchange.outcome.expansion
        if continuation is None or continuation.elsewhere:
            return None

        def holds(call: str) -> bool:
            kept = expansion.items[: expansion.kept] if expansion is not None else ()
            return any(call.encode() in raw.lower() for raw in kept)

        return refusal(trouble.status, trouble.text, continuation, holds)

    async def _written_out(self, exchange: Exchange) -> Sent | None:
        route = exchange.route
        known = exchange.outcome.expansion is not None
        if not known and not self._continuations.refuses(route.base.url, route.model):
            # It may have been recorded by another process meanwhile, which is now worth a wait.
            exchange.outcome = await exchange.decide(overflowed=False)
        outcome = exchange.outcome
        if outcome.expansion is None or outcome.refusal:
            return None
        if outcome.rewritten:
            return Sent(outcome.body, changed=True, rewritten=not outcome.is_expanded)
        return Sent(outcome.expansion.body, changed=True)

    async def _joined(self, exchange: Exchange, sent: Sent, tries: Tries) -> Sent | None:
        """Return the request laid out for a strict template; None when it is so already."""
        # What was forced is done by now.
        exchange.inbound = replace(exchange.inbound, joined=True, force=False)
        outcome = await exchange.decide(overflowed=False)
        body = outcome.body
        if tries.limit is not None:
            body = with_output_limit(body, exchange.dialect.output_fields, tries.limit) or body
        if not outcome.rewritten or outcome.refusal or body == sent.body:
            return None
        # The same was done to it, only laid out otherwise.
        exchange.outcome = replace(outcome, marks=exchange.outcome.marks)
        return Sent(body, changed=True, rewritten=not outcome.is_expanded)

    async def _smaller(
        self,
        exchange: Exchange,
        sent: Sent,
        trouble: Trouble,
        overflow: Overflow,
        tries: Tries,
    ) -> Sent | None:
        route, before = exchange.route, exchange.outcome
        if not before.after:
            # Nobody has measured it, so nobody can tell what would fit.
            return None
        base, model, tenant = route.base.url, route.model, route.tenant
        tries.refused = min(tries.refused or before.after, before.after)
        told = _told(overflow, before.after)
        if told is not None:
            # What is worked out of an excess is as wrong as the estimate.
            self._learned.learn(
                base,
                model,
                tenant,
                told,
                exact=overflow.limit is not None,
                input_only=overflow.input_only,
            )
            tries.unsure = overflow.limit is None and EXCESS_SHARE * before.after > 2 * told
            self._windows.refresh(route)
        elif not await self._may_guess(exchange, trouble, tries):
            return None
        counted = overflow.prompt or 0
        if overflow.kind == "input":
            # It was more than the limit, whatever it was.
            counted = max(counted, overflow.limit or 0)
        if counted:
            exact = overflow.kind == "input" and counted == overflow.prompt
            self._calibrations.told(
                base,
                model,
                tenant,
                before.measured,
                counted,
                exact=exact and not overflow.at_least,
            )
        # What is accepted after a guess says where the limit is at least: the more the better.
        probing = told is None and len(tries.guesses) == 1
        target = PROBE_TARGET if probing else None
        exchange.outcome = outcome = await exchange.decide(overflowed=True, target=target)
        body = outcome.body
        if not outcome.rewritten or outcome.refusal or body == sent.body:
            exchange.outcome = before
            return None
        if tries.limit is not None:
            body = with_output_limit(body, exchange.dialect.output_fields, tries.limit) or body
        return Sent(body, changed=True, rewritten=True)

    async def _may_guess(self, exchange: Exchange, trouble: Trouble, tries: Tries) -> bool:
        """Find a limit that no error told; tell whether to go on."""
        window, tokens = self.window(exchange), exchange.outcome.after
        if _is_doubtful(trouble) and not tries.guesses:
            if tokens < (MIN_TOKENS if window is None else MIN_SHARE * window):
                return False
            if window is not None:
                # Not to be doubted for that; only this conversation is made smaller.
                return True
        elif await self._explained(exchange):
            return True
        if len(tries.guesses) == MAX_GUESSES:
            return False
        route = exchange.route
        tries.guesses.append(self._learned.guess(route.base.url, route.model, route.tenant, tokens))
        return True

    async def _explained(self, exchange: Exchange) -> bool:
        """Ask the server again; tell whether it says a window that the request is too long for."""
        known = self.window(exchange)
        if known is None:
            # It was asked for this request already.
            return False
        now = (await self._windows.refreshed(exchange.route)).tokens
        return now is not None and now != known and exchange.outcome.after >= now

    def _lowered(
        self,
        exchange: Exchange,
        sent: Sent,
        overflow: Overflow,
        tries: Tries,
        *,
        last: bool = False,
    ) -> Sent | None:
        """Return the request with a lower output limit; None when that leaves too little.

        With `last` nothing else is left to try, and little is better than nothing.
        """
        names = exchange.dialect.output_fields
        asked = output_limit(sent.body, names)
        if asked is None:
            return None
        limit, least = overflow.limit, MIN_OUTPUT
        if limit is None:
            if asked <= exchange.outcome.after and tries.lowered and not last:
                return None
            tries.lowered += 1
            room = asked // _LOWER
        else:
            prompt = overflow.prompt or 0
            if overflow.prompt is None or overflow.at_least:
                prompt = max(prompt, exchange.outcome.after)
            room = limit - prompt - max(MARGIN_TOKENS, int(MARGIN_SHARE * limit))
            if tries.limit is not None and (overflow.prompt is None or overflow.at_least):
                room = min(room, asked // _LOWER)
            # Rather than answers that end in the middle: a shorter conversation.
            least = least if last else max(least, reserve(limit, asked))
        if room < least:
            return None
        body = with_output_limit(sent.body, names, room)
        if body is None:
            return None
        tries.limit = room
        return Sent(body, changed=True, rewritten=sent.rewritten)

    def _original(self, exchange: Exchange, raw: bytes) -> Sent | None:
        """Return the request as it came, if it may fit: our rewriting may be what is wrong."""
        outcome = exchange.outcome
        limit = self.window(exchange)
        if limit is not None and outcome.before > limit:
            return None
        route = exchange.route
        # What it reports is not to be compared with what we made of it.
        exchange.outcome = replace(
            outcome, rewritten=False, marks=(), measured=None, after=outcome.before
        )
        if outcome.expansion is not None and self._continuations.refuses(
            route.base.url, route.model
        ):
            return Sent(outcome.expansion.body, changed=True)
        return Sent(raw, changed=False)


def _is_doubtful(trouble: Trouble) -> bool:
    """Whether an error that tells no numbers may be about something else than tokens."""
    text = trouble.text.lower()
    return not text.strip() or any(word in text for word in _DOUBTFUL)


def _told(overflow: Overflow, estimate: int) -> int | None:
    if overflow.limit is not None:
        return overflow.limit
    if overflow.excess is not None and EXCESS_SHARE * estimate > overflow.excess:
        return int(EXCESS_SHARE * estimate) - overflow.excess
    return None
