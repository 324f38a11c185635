"""From an inbound request to the body that goes upstream.

Find what is known of its prefix, plan, compact when a compaction is due, plan again with the
result. Whatever goes wrong in here, the request goes on.
"""

import asyncio
from contextlib import suppress

from msgspec.structs import replace

from proxy.compaction.calibration import Calibration
from proxy.compaction.clip import clip_arguments, clip_texts
from proxy.compaction.plan import (
    Attempt,
    Compact,
    Forward,
    Question,
    Refuse,
    State,
    Substitute,
    plan,
)
from proxy.compaction.policy import Window
from proxy.compactor.background import Background, unfinished
from proxy.compactor.chains import Chains
from proxy.compactor.counts import Counts
from proxy.compactor.entries import Found
from proxy.compactor.failing_open import FailingOpen
from proxy.compactor.flights import Flights
from proxy.compactor.folding import Folder
from proxy.compactor.memory import SessionMemory
from proxy.compactor.outcomes import forwarded, marks, measured, shadow, told
from proxy.compactor.ports import Environment, Templates, Upstreams, Windows
from proxy.compactor.reports import Reporter
from proxy.compactor.requests import Handling, Inbound, Outcome, PreparedRequest
from proxy.compactor.runs import JOINED, CompactionRuns, Landed
from proxy.compactor.turns import Turns
from proxy.dialects.answers import Answer
from proxy.dialects.bodies import ParsedRequest
from proxy.dialects.memo import Match
from proxy.errors import LeaseLost
from proxy.sessions.state import Archived, Change, ClipSet
from proxy.telemetry import (
    COMPACTION_SKIPPED,
    CONTEXT_REDUCED,
    EventSink,
)
from proxy.upstream.routes import Route

SMALL_REQUEST_TOKENS = 512
"""A request this small fits any window, so it does not wait for the window to be known."""

_MAX_JOINED = 2
_MAX_STEPS = 4 + _MAX_JOINED


class Compactor:
    """Handles the requests of one process."""

    def __init__(
        self,
        memory: SessionMemory,
        folder: Folder,
        windows: Windows,
        counts: Counts,
        chains: Chains,
        upstreams: Upstreams,
        templates: Templates,
        sink: EventSink,
        environment: Environment,
    ) -> None:
        """Take the ports; the application chooses what stands behind them."""
        self._memory = memory
        self._chains = chains
        self._upstreams = upstreams
        self._templates = templates
        self._windows = windows
        self._counts = counts
        self._environment = environment
        self._reporter = Reporter(sink, environment.now)
        self._turns = Turns(
            memory, CompactionRuns(memory, folder, windows, self._reporter, environment)
        )
        self._flights: Flights[Landed] = Flights()
        self._failing_open = FailingOpen(self._reporter)
        self._background = Background(
            self._turns,
            folder.concurrency,
            lambda: asyncio.get_running_loop().time(),
            self._failing_open,
        )

    async def handle(self, inbound: Inbound) -> Outcome:
        """Return what to do with a request. Never raises except when cancelled."""
        route: Route | None = None
        with self._failing_open:
            known = inbound.dialect.recall(inbound.body, inbound.origin)
            if known is not None:
                outcome = self._at_a_glance(inbound, known)
                if outcome is not None:
                    return outcome
            parsed = inbound.dialect.parse(inbound.body, inbound.origin, known)
            if parsed is None:
                return Outcome(inbound.body)
            handling = inbound.resolve(parsed.model, parsed.output_field)
            if inbound.target is not None:
                handling = handling.aiming_at(inbound.target)
            route = handling.route
            outcome = await self._routed(inbound, parsed, handling)
            auto = handling.rules.policy.auto
            return outcome if auto else replace(outcome, auto=False)
        return Outcome(
            inbound.body, route, marks=("failed-open",), recorded=inbound.dialect.can_record
        )

    def record(self, inbound: Inbound, outcome: Outcome, answer: Answer) -> None:
        """Record a response that was relayed. Never raises."""
        with self._failing_open:
            self._chains.record(
                inbound.dialect, inbound.body, inbound.origin, outcome.expansion, answer
            )

    def relayed(self, outcome: Outcome) -> None:
        """Finish what a request could not wait for, now that it has its reply. Never raises."""
        if outcome.unfinished is not None:
            with self._failing_open:
                self._background.start(outcome.unfinished)

    async def _routed(self, inbound: Inbound, parsed: ParsedRequest, handling: Handling) -> Outcome:
        route, expansion = handling.route, None
        if inbound.bypass:
            return Outcome(inbound.body, route, recorded=parsed.stored)
        refuses, continuation = False, parsed.continues
        if continuation is not None:
            refuses = self._upstreams.refuses(route.base.url, route.model)
            insist = refuses or inbound.insist
            expansion = await self._chains.expand(parsed, inbound.origin, insist=insist)
            if expansion is None:
                return self._untouched(inbound, parsed, route)
            parsed = inbound.dialect.parse(expansion.body, inbound.origin) or parsed
        if inbound.overflowed and not handling.rules.policy.auto:
            return Outcome(inbound.body, route)
        request = PreparedRequest(
            inbound.dialect,
            inbound.body,
            parsed,
            handling,
            inbound.force or inbound.overflowed,
            inbound.shadow,
            # Only a stream can be kept alive with comments.
            inbound.patience if parsed.stream else None,
            # In shadow mode nothing is sent again either.
            None if inbound.shadow else continuation,
            expansion,
            inbound.overflowed,
            refuses,
            inbound.joined,
        )
        if not (request.force or inbound.shadow):
            found = self._quiet(parsed, handling)
            if found is not None:
                return forwarded(request, *found)
        outcome = await self._handle(request)
        if expansion is None and not parsed.stored:
            return outcome
        return replace(
            outcome,
            continuation=request.continuation,
            expansion=expansion,
            recorded=parsed.stored,
        )

    async def close(self) -> None:
        """Cancel what is under way."""
        await self._flights.close()
        await self._background.close()

    async def _handle(self, request: PreparedRequest) -> Outcome:
        window = await self._window(request)
        attempt = Attempt()
        landed: Landed | None = None
        joined = 0
        for step in range(_MAX_STEPS):
            found = await self._memory.find(request.parsed.transcript)
            state = self._state(found)
            question = self._question(request, window, attempt, found)
            decision = plan(question, state)
            if not step and await self._counts.counted(request, question, state, decision):
                question = self._question(request, window, attempt, found)
                decision = plan(question, state)
            if not isinstance(decision, Compact):
                settled = await self._settle(request, question, decision, found, landed)
                if found.checkpoint is None or not found.checkpoint.is_unfinished:
                    return settled
                left = unfinished(question, request, found, decision.outlook)
                return replace(settled, unfinished=left)
            if request.shadow:
                self._reporter.started(decision, window, "", shadow=True)
                return shadow(request, decision.outlook, question.calibration)
            landed = await self._compact(request, window, decision, found)
            if landed is JOINED and joined < _MAX_JOINED:
                joined += 1
                continue
            outcome = "failed" if landed is JOINED else landed.outcome
            attempt = Attempt(
                outcome, landed.detail, attempt.by_budget or decision.reason == "budget"
            )
        raise AssertionError("a decision must come after the last attempt")

    def _untouched(self, inbound: Inbound, parsed: ParsedRequest, route: Route) -> Outcome:
        """Return the outcome of a request that draws on what only the upstream may know."""
        continuation = None if inbound.shadow else parsed.continues
        outcome = Outcome(inbound.body, route, continuation=continuation, recorded=parsed.stored)
        if inbound.insist:
            # It was told before.
            return outcome
        tokens = parsed.transcript.catalogue.tokens + sum(
            item.tokens for item in (*parsed.transcript.instructions, *parsed.transcript.items)
        )
        self._reporter.of(parsed.transcript.anchor).report(
            COMPACTION_SKIPPED, "", reason="server_side_state", rule="", tokens=tokens
        )
        return outcome

    def _at_a_glance(self, inbound: Inbound, known: Match) -> Outcome | None:
        """Return the outcome of a request that fits whatever the little is that is new in it."""
        if inbound.force or inbound.shadow or inbound.bypass or inbound.overflowed:
            return None
        glance = inbound.dialect.glance(inbound.body, known)
        if glance is None or not self._memory.knows_nothing_of(glance.anchor):
            return None
        handling = inbound.resolve(glance.model, inbound.dialect.output_fields[-1])
        route = handling.route
        window = self._windows.remembered(route)
        if window is None:
            return None
        found = self._counts.glanced(glance, known, handling, window)
        if found is None:
            return None
        tokens, sent = found
        return Outcome(
            inbound.body,
            route,
            measured=sent,
            before=tokens,
            after=tokens,
            recorded=glance.stored,
            auto=handling.rules.policy.auto,
        )

    def _quiet(self, parsed: ParsedRequest, handling: Handling) -> tuple[int, Calibration] | None:
        """Return the size of a request that plainly needs nothing; most are like that."""
        route = handling.route
        window = self._windows.remembered(route)
        if window is None or not self._memory.knows_nothing_of(parsed.transcript.anchor):
            return None
        return self._counts.quiet(parsed.transcript, handling, window)

    async def _window(self, request: PreparedRequest) -> Window:
        known = self._windows.remembered(request.handling.route)
        if known is not None:
            return known
        transcript = request.parsed.transcript
        tokens = transcript.catalogue.tokens + sum(i.tokens for i in transcript.items)
        if tokens + sum(i.tokens for i in transcript.instructions) <= SMALL_REQUEST_TOKENS:
            self._windows.ask_soon(request.handling.route)
            return Window()
        return await self._windows.window(request.handling.route)

    def _question(
        self, request: PreparedRequest, window: Window, attempt: Attempt, found: Found
    ) -> Question:
        route = request.handling.route
        return Question(
            request.parsed.transcript,
            request.handling.rules.policy,
            window,
            request.dialect.read,
            self._counts.calibration(route, request.parsed.transcript, found.checkpoint),
            force=request.force,
            forced_by="overflow" if request.overflowed else "force",
            may_extract=request.handling.rules.fallback == "extractive",
            attempt=attempt,
            joined=request.joined or self._templates.joins(route.base.url, route.model),
        )

    def _state(self, found: Found) -> State:
        struggle = found.struggle
        return State(
            found.checkpoint,
            found.clips,
            struggle.attempted,
            struggle.budget_tried,
            cooling=struggle.cool_until > self._environment.now(),
        )

    async def _settle(
        self,
        request: PreparedRequest,
        question: Question,
        decision: Forward | Substitute | Refuse,
        found: Found,
        landed: Landed | None,
    ) -> Outcome:
        outlook = decision.outlook
        reporter = self._reporter.of(request.parsed.transcript.anchor)
        form = found.checkpoint.id if found.checkpoint is not None else ""
        before, after = told(outlook, question.calibration, form)
        if outlook.skipped:
            reporter.report(
                COMPACTION_SKIPPED,
                found.session,
                reason=outlook.skipped,
                rule=outlook.reason,
                tokens=before,
            )
        if request.shadow:
            return shadow(request, outlook, question.calibration)
        if isinstance(decision, Forward):
            return forwarded(request, outlook.before.tokens, question.calibration)
        session = found.session or self._environment.new_id()
        if decision.new_clips:
            await self._store_clips(request, decision, found, session, (before, after))
        if isinstance(decision, Refuse):
            return Outcome(
                request.body,
                request.handling.route,
                session=session,
                marks=marks(found, decision, landed),
                before=before,
                after=after,
                refusal=decision.message,
            )
        body = request.dialect.rebuild(request.parsed, decision.pieces, clip_texts, clip_arguments)
        return Outcome(
            body,
            request.handling.route,
            rewritten=True,
            session=session,
            marks=marks(found, decision, landed),
            measured=measured(
                request.parsed.transcript,
                outlook.after.tokens,
                question.calibration,
                outlook.calibration,
                form,
            ),
            before=before,
            after=after,
        )

    async def _store_clips(
        self,
        request: PreparedRequest,
        decision: Substitute | Refuse,
        found: Found,
        session: str,
        tokens: tuple[int, int],
    ) -> None:
        items = request.parsed.transcript.items
        digest = items[-1].digest
        changed = [i for i, c in decision.clips.items() if found.clips.get(i) != c]
        self._reporter.of(request.parsed.transcript.anchor).report(
            CONTEXT_REDUCED,
            session,
            messages=len(changed),
            tokens_before=tokens[0],
            tokens_after=tokens[1],
        )
        in_force = found.checkpoint.id if found.checkpoint else ""
        change = Change(
            request.parsed.transcript.anchor,
            session,
            self._environment.now(),
            clip_set=ClipSet(digest, in_force, session, dict(decision.clips)),
            archive=tuple(Archived(i, items[i].raw) for i in sorted(changed)),
            archive_id=digest.hex(),
        )
        # A session that was deleted meanwhile: this request still goes as planned.
        with suppress(LeaseLost):
            await self._memory.commit(change)

    async def _compact(
        self, request: PreparedRequest, window: Window, compact: Compact, found: Found
    ) -> Landed:
        self._background.stop(found.session)
        # The key is the cut, so requests that differ only behind it share one summary.
        cut_digest = request.parsed.transcript.items[compact.cut.length - 1].digest
        work = self._flights.join(
            cut_digest, lambda: self._turns.run(request, window, compact, found)
        )
        return await (request.patience(work) if request.patience else work)
