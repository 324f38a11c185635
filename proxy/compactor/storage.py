"""Calls to the store: bounded, counted, never fatal.

A request waits a short time for an answer; a call that takes longer goes on without it, and what
it brings is used by the next request. After a failure the store is left alone for a second:
reads and writes each have a breaker of their own, since a store may well answer reads and refuse
writes. A store that does not answer at all stops both.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from typing import Final, TypeVar

from proxy.codec import JsonObject
from proxy.compactor.breaker import RETRY_SECONDS, Breaker
from proxy.errors import LeaseLost, StoreError, StoreUnavailable
from proxy.telemetry import STORE_FAILED, Event, EventSink

CALL_SECONDS = 3.0
"""A call is given up after this long, whoever waits for it."""

COMMIT_SECONDS = 60.0
"""The same for a commit, which may carry a large archive."""

_YIELDS = 10
_SILENT = frozenset({"timeout", "unreachable"})
_PASSING = frozenset({"slot_moving"})
"""Concerns one key for a moment; no reason to leave the store alone."""

_T = TypeVar("_T")


class NoAnswer(Enum):
    """What stands for the answer of a call that brought none."""

    FAILED = "failed"
    """It failed, is late, or was not worth making."""
    DAMAGED = "damaged"
    """The store works, but has something unreadable there; asking again does not help."""


FAILED: Final = NoAnswer.FAILED
DAMAGED: Final = NoAnswer.DAMAGED


class StoreCalls:
    """Makes calls to the store for one process."""

    def __init__(self, sink: EventSink, now: Callable[[], float], patience: float) -> None:
        """Take where to report failures, the clock and how long a request waits, in seconds."""
        self._sink = sink
        self._now = now
        self.patience = patience
        self.reads = Breaker(now)
        self.writes = Breaker(now)
        self.late = Breaker(now)
        """For writes that failed before."""
        self.silent = False
        """Whether the last call got no answer at all."""
        self.recovered_at = 0.0
        """When the store came back from a longer silence: what was read before may be old."""
        self._trouble_since = 0.0
        self._running: set[asyncio.Task[object]] = set()

    async def ask(
        self,
        breaker: Breaker,
        what: str,
        call: Callable[[], Awaitable[_T]],
        patience: float | None = None,
        *,
        anyway: bool = False,
    ) -> _T | NoAnswer:
        """Return the answer of a call; unless `anyway`, the breaker may say not to make it."""
        if not anyway and not breaker.allows():
            return FAILED
        task = self.start(self.attempt(breaker, what, call, CALL_SECONDS))
        if await self.within(task, self.patience if patience is None else patience):
            return task.result()
        self.failed(breaker, what, "timeout")
        return FAILED

    async def attempt(
        self, breaker: Breaker, what: str, call: Callable[[], Awaitable[_T]], seconds: float
    ) -> _T | NoAnswer:
        """Make a call whatever the breaker says.

        Raises:
            LeaseLost: as the call does; that is an answer, not a failure.
        """
        try:
            async with asyncio.timeout(seconds):
                result = await call()
        except LeaseLost:
            self._answered(breaker)
            raise
        except StoreUnavailable as error:
            self.failed(breaker, what, error.reason)
            return FAILED
        except StoreError:
            # The data of one conversation, not the store.
            self._answered(breaker)
            self.report(what, "corrupt_values")
            return DAMAGED
        except TimeoutError:
            self.failed(breaker, what, "timeout")
            return FAILED
        self._answered(breaker)
        return result

    def start(self, work: Coroutine[None, None, _T]) -> "asyncio.Task[_T]":
        """Run something that goes on when its caller is gone."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def within(self, task: "asyncio.Task[_T]", seconds: float) -> bool:
        """Wait for a task for a time; tell whether it ended."""
        await asyncio.wait({task}, timeout=seconds)
        for _ in range(_YIELDS):
            if task.done():
                break
            # When this process was busy the answer may be here but not read yet.
            await asyncio.sleep(0)
        return task.done()

    def failed(self, breaker: Breaker, operation: str, reason: str, count: int = 1) -> None:
        """Count a failure, and leave the store alone for a while."""
        self.report(operation, reason, count)
        if reason in _PASSING:
            return
        if not self.silent:
            self._trouble_since = self._now()
        self.silent = reason in _SILENT
        for one in (self.reads, self.writes) if self.silent else (breaker,):
            one.failed()

    def _answered(self, breaker: Breaker) -> None:
        # An answer to either ends a silence that stopped both.
        for one in (self.reads, self.writes) if self.silent else (breaker,):
            one.succeeded()
        if self.silent and self._now() - self._trouble_since >= RETRY_SECONDS:
            self.recovered_at = self._now()
        self.silent = False

    def report(self, operation: str, reason: str, count: int = 1) -> None:
        """Emit a `store_failed` event."""
        fields: JsonObject = {"operation": operation, "reason": reason, "count": count}
        self._sink.emit(Event(STORE_FAILED, self._now(), "", fields))

    async def settle(self) -> None:
        """Wait for everything that still runs."""
        while self._running:
            await asyncio.wait(set(self._running))

    def _ended(self, task: "asyncio.Task[object]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            # Whoever waited has seen it; if nobody did, there is nothing more to do.
            task.exception()
