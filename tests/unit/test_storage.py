"""Calls to the store are bounded, counted and never fatal; a late answer is still an answer."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from proxy.compactor.breaker import RETRY_SECONDS
from proxy.compactor.storage import DAMAGED, FAILED, StoreCalls
from proxy.errors import LeaseLost, StateCorrupt, StoreUnavailable
from proxy.telemetry import Event
from tests.unit.test_breaker import Clock

PATIENCE = 0.01


class Told(list[tuple[str, str]]):
    """What was reported: operation and reason."""

    def emit(self, event: Event) -> None:
        self.append((str(event.fields["operation"]), str(event.fields["reason"])))
        assert event.type == "store_failed"
        assert event.session == ""
        assert set(event.fields) == {"operation", "reason", "count"}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def calls(told: Told, clock: Clock) -> StoreCalls:
    return StoreCalls(told, clock, PATIENCE)


class Gated:
    """A call that answers when it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.gate = asyncio.Event()
        self.started = 0
        self._error = error

    async def __call__(self) -> str:
        self.started += 1
        await self.gate.wait()
        if self._error is not None:
            raise self._error
        return "answer"


def answers() -> Callable[[], Awaitable[str]]:
    gated = Gated()
    gated.gate.set()
    return gated


def raises(error: Exception) -> Callable[[], Awaitable[str]]:
    gated = Gated(error)
    gated.gate.set()
    return gated


def unavailable(reason: str) -> StoreUnavailable:
    return StoreUnavailable("secret text of a server", reason)


async def test_an_answer_in_time(calls: StoreCalls, told: Told) -> None:
    assert await calls.ask(calls.reads, "find", answers()) == "answer"
    assert told == []
    assert not calls.silent


async def test_an_answer_of_none_is_no_failure(calls: StoreCalls) -> None:
    async def nothing() -> None:
        return None

    assert await calls.ask(calls.reads, "load", nothing) is None


async def test_a_late_answer_is_not_waited_for_but_taken(calls: StoreCalls, told: Told) -> None:
    late = Gated()
    assert await calls.ask(calls.reads, "find", late) is FAILED
    assert told == [("find", "timeout")]
    assert (calls.reads.is_open, calls.writes.is_open, calls.silent) == (True, True, True)
    late.gate.set()
    await calls.settle()
    assert told == [("find", "timeout")]
    assert (calls.reads.is_open, calls.silent) == (False, False)


async def test_who_waits_longer_gets_it(calls: StoreCalls, told: Told) -> None:
    late = Gated()
    asyncio.get_running_loop().call_later(PATIENCE * 3, late.gate.set)
    assert await calls.ask(calls.reads, "find", late, 5.0) == "answer"
    assert told == []


async def test_a_failure_that_comes_late_is_told_too(calls: StoreCalls, told: Told) -> None:
    late = Gated(unavailable("unreachable"))
    assert await calls.ask(calls.reads, "find", late) is FAILED
    late.gate.set()
    await calls.settle()
    assert told == [("find", "timeout"), ("find", "unreachable")]
    assert calls.silent


async def test_a_call_that_never_ends_is_given_up(
    calls: StoreCalls, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.compactor.storage.CALL_SECONDS", PATIENCE * 2)
    assert await calls.ask(calls.reads, "find", Gated()) is FAILED
    async with asyncio.timeout(5):
        await calls.settle()
    assert told == [("find", "timeout")] * 2


@pytest.mark.parametrize("reason", ["timeout", "unreachable"])
async def test_a_silent_store_stops_both_directions(
    calls: StoreCalls, told: Told, reason: str
) -> None:
    assert await calls.ask(calls.reads, "find", raises(unavailable(reason))) is FAILED
    assert (calls.reads.is_open, calls.writes.is_open, calls.silent) == (True, True, True)
    unasked = Gated()
    assert await calls.ask(calls.writes, "lease", unasked) is FAILED
    assert unasked.started == 0
    assert told == [("find", reason)]


@pytest.mark.parametrize("reason", ["read_only", "out_of_memory", "refused", "no_permission"])
async def test_a_store_that_refuses_stops_one_direction(
    calls: StoreCalls, told: Told, reason: str
) -> None:
    assert await calls.ask(calls.writes, "lease", raises(unavailable(reason))) is FAILED
    assert (calls.reads.is_open, calls.writes.is_open, calls.silent) == (False, True, False)
    assert await calls.ask(calls.reads, "find", answers()) == "answer"
    assert calls.writes.is_open
    assert told == [("lease", reason)]


async def test_an_answer_that_cannot_be_read(calls: StoreCalls, told: Told) -> None:
    assert await calls.ask(calls.reads, "find", raises(StateCorrupt("x"))) is DAMAGED
    assert told == [("find", "corrupt_values")]
    assert not calls.reads.is_open


async def test_half_open_lets_one_call_through(calls: StoreCalls, clock: Clock, told: Told) -> None:
    await calls.ask(calls.reads, "find", raises(unavailable("timeout")))
    clock.time += RETRY_SECONDS
    tries = [Gated() for _ in range(5)]
    asking = [calls.start(calls.ask(calls.reads, "find", one, 5.0)) for one in tries]
    await asyncio.wait(asking[1:])
    assert [one.started for one in tries] == [1, 0, 0, 0, 0]
    assert [task.result() for task in asking[1:]] == [FAILED] * 4
    assert told == [("find", "timeout")]
    tries[0].gate.set()
    assert await asking[0] == "answer"
    assert await calls.ask(calls.reads, "find", answers()) == "answer"


async def test_a_clock_set_back_does_not_shut_the_store_out(
    calls: StoreCalls, clock: Clock
) -> None:
    await calls.ask(calls.reads, "find", raises(unavailable("timeout")))
    clock.time -= 3600.0
    assert await calls.ask(calls.reads, "find", answers()) == "answer"
    assert not calls.reads.is_open


@pytest.mark.parametrize("was_down", [False, True])
async def test_a_lost_lease_is_an_answer(
    calls: StoreCalls, told: Told, clock: Clock, was_down: bool
) -> None:
    if was_down:
        await calls.ask(calls.writes, "lease", raises(unavailable("timeout")))
        clock.time += RETRY_SECONDS
        told.clear()
    with pytest.raises(LeaseLost):
        await calls.attempt(calls.writes, "commit", raises(LeaseLost("taken")), 1.0)
    with pytest.raises(LeaseLost):
        await calls.ask(calls.writes, "commit", raises(LeaseLost("taken")))
    assert told == []
    assert (calls.writes.is_open, calls.silent) == (False, False)


async def test_an_attempt_is_made_whatever_the_breaker_says(calls: StoreCalls) -> None:
    await calls.ask(calls.writes, "lease", raises(unavailable("timeout")))
    assert await calls.attempt(calls.writes, "commit", answers(), 1.0) == "answer"
    assert not calls.writes.is_open


async def test_what_runs_goes_on_when_its_caller_is_gone(calls: StoreCalls) -> None:
    late, done = Gated(), []

    async def work() -> str:
        done.append(await late())
        return "done"

    caller = asyncio.get_running_loop().create_task(calls.ask(calls.reads, "find", work, 5.0))
    while not late.started:  # noqa: ASYNC110  -- nothing else tells
        await asyncio.sleep(0)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    late.gate.set()
    await calls.settle()
    assert done == ["answer"]


async def test_no_report_holds_what_the_server_said(told: Told, clock: Clock) -> None:
    kept: list[Event] = []

    class Sink:
        def emit(self, event: Event) -> None:
            kept.append(event)

    calls = StoreCalls(Sink(), clock, PATIENCE)
    await calls.ask(calls.reads, "find", raises(unavailable("refused")))
    assert "secret" not in repr(kept)


async def test_a_bug_in_a_store_reaches_who_asked_and_nobody_else(calls: StoreCalls) -> None:
    with pytest.raises(ZeroDivisionError):
        await calls.ask(calls.reads, "find", raises(ZeroDivisionError()))
    late = Gated(ZeroDivisionError())
    assert await calls.ask(calls.reads, "find", late) is FAILED
    late.gate.set()
    await calls.settle()
