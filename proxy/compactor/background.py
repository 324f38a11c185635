"""Finishing, after the reply, what a request could not wait for.

Requests start it, so there is no clock to run: one piece of work at a time for each session. A
summariser that fails is left alone for a growing time, and then asked by one session only.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace

from proxy.compaction.layout import Cut
from proxy.compaction.plan import Compact, Outlook, Question
from proxy.compaction.policy import budget
from proxy.compactor.entries import Found
from proxy.compactor.failing_open import FailingOpen
from proxy.compactor.requests import PreparedRequest, Unfinished
from proxy.compactor.runs import BACKGROUND, JOINED, Landed
from proxy.compactor.turns import Turns
from proxy.transcript import Size

FIRST_PAUSE_SECONDS = 2.0
LONGEST_PAUSE_SECONDS = 60.0
_GROWTH = 1.5
_MAX_NAMES = 1024

_ANSWERED = frozenset(
    {
        "empty",
        "empty_span",
        "error_text",
        "internal",
        "malformed_json",
        "refusal",
        "tool_call",
        "too_short",
        "truncated",
        "unrelated",
    }
)
"""Failures that say something about what was asked, not about who was asked."""


_CRASHED = Landed("failed", "internal")


@dataclass(frozen=True, slots=True)
class _Pause:
    seconds: float
    until: float


class Pauses:
    """Who is left alone for how long."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Take a clock, in seconds, that is never set back."""
        self._now = now
        self._pauses: OrderedDict[Hashable, _Pause] = OrderedDict()
        self._probing = set[Hashable]()

    def allow(self, name: Hashable) -> bool:
        """Tell whether to try; after a failure one at a time, and only when the pause is over."""
        pause = self._pauses.get(name)
        return pause is None or (name not in self._probing and self._now() >= pause.until)

    def begin(self, name: Hashable) -> None:
        """Note that it is being tried."""
        if name in self._pauses:
            self._probing.add(name)

    def end(self, name: Hashable, *, failed: bool | None) -> None:
        """Note how it went; None when that says nothing."""
        self._probing.discard(name)
        if failed is None:
            return
        old = self._pauses.pop(name, None)
        if not failed:
            return
        seconds = FIRST_PAUSE_SECONDS
        if old is not None:
            seconds = min(LONGEST_PAUSE_SECONDS, old.seconds * _GROWTH)
        self._pauses[name] = _Pause(seconds, self._now() + seconds)
        if len(self._pauses) > _MAX_NAMES:
            self._pauses.popitem(last=False)


class Background:
    """Finishes the checkpoints of one process's sessions."""

    def __init__(
        self,
        turns: Turns,
        concurrency: int,
        now: Callable[[], float],
        failing_open: FailingOpen,
    ) -> None:
        """Take what makes compactions.

        Args:
            turns: makes them, one process at a time.
            concurrency: summaries at once; half of them are left to requests, which wait.
            now: a clock in seconds that is never set back.
            failing_open: lets nothing through that goes wrong.
        """
        self._turns = turns
        self._most = max(1, concurrency // 2)
        self._failing_open = failing_open
        self._pauses = Pauses(now)
        self._running: dict[str, asyncio.Task[Landed | None]] = {}
        self._tasks = set[asyncio.Task[Landed | None]]()

    def start(self, unfinished: Unfinished) -> None:
        """Begin, unless that session is at it already or its summariser is to be left alone."""
        session = unfinished.found.session
        names = _names(unfinished)
        if session in self._running or len(self._running) >= self._most:
            return
        if not all(self._pauses.allow(name) for name in names):
            return
        for name in names:
            self._pauses.begin(name)
        task = asyncio.get_running_loop().create_task(self._finish(unfinished))
        self._running[session] = task
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(unfinished, done))

    def stop(self, session: str) -> None:
        """Leave a session to a request that compacts it now; what was read so far is kept."""
        task = self._running.pop(session, None)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Cancel everything."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _finish(self, unfinished: Unfinished) -> Landed | None:
        with self._failing_open:
            return await self._turns.finish(unfinished)
        return _CRASHED

    def _ended(self, unfinished: Unfinished, task: "asyncio.Task[Landed | None]") -> None:
        self._tasks.discard(task)
        route, session = _names(unfinished)
        if self._running.get(unfinished.found.session) is task:
            del self._running[unfinished.found.session]
        # Here and not in the task, which may be cancelled before it begins.
        landed = None if task.cancelled() else task.result()
        if landed is None or landed is JOINED:
            self._pauses.end(route, failed=None)
            self._pauses.end(session, failed=None)
            return
        self._pauses.end(route, failed=bool(landed.detail) and landed.detail not in _ANSWERED)
        self._pauses.end(session, failed=bool(landed.detail))


def _names(unfinished: Unfinished) -> tuple[Hashable, Hashable]:
    route = unfinished.request.handling.summary_route
    # A tenant's credential that is refused, or has used up its rate, says nothing of another's.
    return (route.base.url, route.model, route.tenant), unfinished.found.session


def unfinished(
    question: Question, request: PreparedRequest, found: Found, outlook: Outlook
) -> Unfinished | None:
    """Return what is left to do about the checkpoint in force; usually nothing.

    Args:
        question: what was planned.
        request: the request that it was planned for.
        found: the state with the checkpoint.
        outlook: the sizes with it.
    """
    checkpoint, rules = found.checkpoint, request.handling.rules
    if checkpoint is None or not checkpoint.is_unfinished:
        return None
    if not (rules.background and rules.policy.auto):
        return None
    factor = question.calibration.factor(outlook.after.tokens)
    limits = budget(question.policy, question.window, question.transcript, factor)
    # What takes its place may be larger, but must not make the next request due for compaction.
    spare = max(0, limits.trigger - 1 - outlook.after.tokens)
    limits = replace(
        limits, checkpoint=max(checkpoint.tokens, min(limits.checkpoint, checkpoint.tokens + spare))
    )
    return Unfinished(
        request,
        question.window,
        Compact(
            Outlook(outlook.before, Size(0, checkpoint.tokens_before)),
            Cut(checkpoint.cut_length, checkpoint.kept, checkpoint.front, checkpoint.pinned),
            BACKGROUND,
            limits,
            checkpoint.frontier,
            checkpoint.tokens_after,
            factor=factor,
            joined=question.joined,
        ),
        found,
    )
