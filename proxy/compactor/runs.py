"""Carrying out one compaction: fold, check the gain, commit, report."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from proxy.compaction.checkpoint import Checkpoint
from proxy.compaction.choice import gains
from proxy.compaction.plan import Compact
from proxy.compaction.policy import Window
from proxy.compactor.entries import Found
from proxy.compactor.folding import Folder
from proxy.compactor.material import MAX_CALLS, FoldJob
from proxy.compactor.memory import SessionMemory
from proxy.compactor.ports import Environment, Windows
from proxy.compactor.reports import Reporter
from proxy.compactor.requests import PreparedRequest
from proxy.errors import LeaseLost, SummaryFailed
from proxy.sessions.state import COOL_AFTER_FAILURES, Archived, Change, Lease, Struggle
from proxy.telemetry import COMPACTION_FAILED, COMPACTION_SKIPPED

COOL_SECONDS = 30.0
MAX_COOL_SECONDS = 60.0
"""No longer: a summariser that is well again must not wait for minutes."""

BACKGROUND = "background"
"""Reason word of a compaction that finishes an earlier one, and that nobody waits for."""

BACKGROUND_CALLS = 64
"""Summariser calls of one such compaction; what is left then, the next one does."""


@dataclass(frozen=True, slots=True)
class Landed:
    """How a compaction ended, for everybody who waited for it."""

    outcome: str
    detail: str = ""
    checkpoint: Checkpoint | None = None


JOINED = Landed("joined", "busy")
"""Another process changed the state meanwhile."""


class CompactionRuns:
    """Carries out compactions for the compactor."""

    def __init__(
        self,
        memory: SessionMemory,
        folder: Folder,
        windows: Windows,
        reporter: Reporter,
        environment: Environment,
    ) -> None:
        """Take the ports."""
        self._memory = memory
        self._folder = folder
        self._windows = windows
        self._reporter = reporter
        self._environment = environment

    async def run(
        self,
        request: PreparedRequest,
        window: Window,
        compact: Compact,
        found: Found,
        *,
        lease: Lease | None = None,
        summarise: bool = True,
    ) -> Landed:
        """Make one compaction and store it.

        Args:
            request: the request that needs it.
            window: the window of its model.
            compact: where to cut.
            found: the state until now.
            lease: the right to make it; without one nobody else is known to be at it.
            summarise: False makes an extract instead, when the rules allow one.
        """
        if not summarise:
            compact = replace(compact, extractive_only=True)
        session = found.session or self._environment.new_id()
        anchor, background = request.parsed.transcript.anchor, compact.reason == BACKGROUND
        reporter = self._reporter.of(anchor)
        reporter.started(compact, window, session)
        summary_window = window
        if request.handling.summary_route is not request.handling.route:
            summary_window = await self._windows.window(request.handling.summary_route)
        job = FoldJob(
            request.parsed.transcript,
            compact,
            await self._written_by_a_model(anchor, found.checkpoint),
            found.checkpoint,
            session,
            request.handling.summary_route,
            summary_window,
            request.handling.rules,
            request.dialect.read,
            found.version,
            calls=BACKGROUND_CALLS if background else MAX_CALLS,
            background=background,
            prompt_texts=partial(request.dialect.prompt_texts, request.parsed),
        )
        try:
            folded = await self._folder.fold(job)
        except asyncio.CancelledError:
            reporter.report(COMPACTION_FAILED, session, reason="cancelled", detail="")
            raise
        except SummaryFailed as error:
            reporter.report(COMPACTION_FAILED, session, reason=error.reason, detail=error.detail)
            if not background:
                struggle = self._after(found.struggle, compact)
                await self._note_attempt(request, compact, found, struggle)
            return Landed("failed", error.reason)
        checkpoint = folded.checkpoint
        if folded.failure and folded.failure != "cooldown":
            reporter.report(COMPACTION_FAILED, session, reason=folded.failure, detail=folded.detail)
        if not _is_worth_it(compact, checkpoint):
            reporter.report(COMPACTION_SKIPPED, session, reason="no_gain", rule=compact.reason)
            struggle = self._tried(request, compact, found.struggle)
            await self._note_attempt(request, compact, found, struggle)
            return Landed("skipped", "no_gain")
        try:
            # What covers a part was written by a model that works.
            failed = bool(folded.failure) and checkpoint.extractive
            stored = await self._store_checkpoint(
                request, compact, found, checkpoint, lease, summary_failed=failed
            )
        except LeaseLost:
            reporter.report(COMPACTION_FAILED, session, reason="taken_over", detail="")
            return JOINED
        if stored:
            self._folder.forget(job, folded.spent)
        reporter.completed(checkpoint, compact, stored=stored)
        return Landed("completed", folded.failure, checkpoint)

    async def _written_by_a_model(
        self, anchor: bytes, checkpoint: Checkpoint | None
    ) -> Checkpoint | None:
        while checkpoint is not None and checkpoint.extractive:
            parent = checkpoint.parent
            checkpoint = await self._memory.checkpoint(anchor, parent) if parent else None
        return checkpoint

    async def _store_checkpoint(
        self,
        request: PreparedRequest,
        compact: Compact,
        found: Found,
        checkpoint: Checkpoint,
        lease: Lease | None,
        *,
        summary_failed: bool,
    ) -> bool:
        transcript = request.parsed.transcript
        known = set(range(found.checkpoint.cut_length)) if found.checkpoint else set[int]()
        if found.checkpoint is not None:
            stayed = {*found.checkpoint.kept, *found.checkpoint.front, *found.checkpoint.pinned}
            known -= stayed
        archive = tuple(
            Archived(i, transcript.items[i].raw) for i in compact.cut.replaced() if i not in known
        )
        struggle = self._after(found.struggle, compact) if summary_failed else Struggle()
        struggle = self._tried(request, compact, struggle)
        return await self._memory.commit(
            Change(
                transcript.anchor,
                checkpoint.session,
                self._environment.now(),
                checkpoint=checkpoint,
                struggle=struggle if struggle != found.struggle else None,
                archive=archive,
                archive_id=checkpoint.id,
                lease=lease,
            )
        )

    def _tried(self, request: PreparedRequest, compact: Compact, struggle: Struggle) -> Struggle:
        if compact.reason != "budget":
            return struggle
        return replace(struggle, budget_tried=request.parsed.transcript.items[-1].digest)

    async def _note_attempt(
        self, request: PreparedRequest, compact: Compact, found: Found, struggle: Struggle
    ) -> None:
        struggle = replace(struggle, attempted=compact.frontier)
        anchor, now = request.parsed.transcript.anchor, self._environment.now()
        # Of a session that was deleted meanwhile nothing need be noted.
        with suppress(LeaseLost):
            await self._memory.commit(Change(anchor, found.session, now, struggle=struggle))

    def _after(self, struggle: Struggle, compact: Compact) -> Struggle:
        if compact.extractive_only:
            return struggle
        failures = struggle.failures + 1
        cool_until = struggle.cool_until
        if failures >= COOL_AFTER_FAILURES:
            pause = COOL_SECONDS * 2.0 ** min(failures - COOL_AFTER_FAILURES, 10)
            cool_until = self._environment.now() + min(MAX_COOL_SECONDS, pause)
        return replace(struggle, failures=failures, cool_until=cool_until)


def _is_worth_it(compact: Compact, checkpoint: Checkpoint) -> bool:
    before, after = checkpoint.tokens_before, checkpoint.tokens_after
    if compact.reason == BACKGROUND:
        # It takes an equal's place, and its size was bounded so that the request stays small.
        return True
    if compact.reason == "budget":
        # Whatever brings it nearer to the limit: else it is refused.
        return after < before
    return gains(before, after, compact.limits.fit)
