"""Whose turn it is: one compaction at a time, taken over when its maker is gone."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
from multidict import CIMultiDict

from proxy.compaction.plan import Compact, State, plan
from proxy.compaction.policy import CompactionPolicy, Window
from proxy.compactor import memory as memory_module
from proxy.compactor import turns as module
from proxy.compactor.entries import NOTHING, Found
from proxy.compactor.memory import SessionMemory
from proxy.compactor.ports import Rules
from proxy.compactor.requests import Handling, PreparedRequest, Unfinished
from proxy.compactor.runs import JOINED, CompactionRuns, Landed
from proxy.compactor.turns import Turns
from proxy.sessions.state import Lease
from proxy.upstream.routes import Base, Route
from tests import builders as b
from tests.strategies import DIALECT, ask, to_request
from tests.unit.test_breaker import Clock
from tests.unit.test_memory import FakeStore, change_of, checkpoint_of
from tests.unit.test_storage import Told

WINDOW = Window(8192)
PARSED = to_request(b.tool_session(18, result_chars=2000))
TRANSCRIPT = PARSED.transcript
DONE = Landed("completed")


def planned() -> Compact:
    decision = plan(ask(PARSED, CompactionPolicy(), WINDOW), State())
    assert isinstance(decision, Compact)
    return decision


COMPACT = planned()
CUT = TRANSCRIPT.items[COMPACT.cut.length - 1].digest


def request(*, deadline: float = 5.0, fallback: str = "extractive") -> PreparedRequest:
    route = Route(Base.of("http://h"), "m", CIMultiDict())
    rules = Rules(CompactionPolicy(), fallback, deadline)
    return PreparedRequest(DIALECT, b"", PARSED, Handling(route, route, rules), False, False, None)


@dataclass
class FakeRuns:
    """What makes compactions; here it only notes how it was asked to."""

    store: FakeStore
    made: list[tuple[Lease | None, bool]] = field(default_factory=list)
    """The lease, and whether a model was to write it."""
    held: list[int] = field(default_factory=list)
    """How many leases were held meanwhile."""
    gate: asyncio.Event | None = None
    error: Exception | None = None

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
        self.made.append((lease, summarise))
        self.held.append(len(self.store.held))
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return DONE


class Rig:
    """Turns over a memory over a store in this process."""

    def __init__(self, store: FakeStore | None = None, *, shared: bool = True) -> None:
        self.store = store or FakeStore()
        self.clock = Clock()
        self.memory = SessionMemory(
            self.store.port, Told(), self.clock, patience=0.05, shared=shared
        )
        self.runs = FakeRuns(self.store)
        self.turns = Turns(self.memory, cast(CompactionRuns, self.runs))

    def start(self, asked: PreparedRequest | None = None) -> "asyncio.Task[Landed]":
        work = self.turns.run(asked or request(), WINDOW, COMPACT, NOTHING)
        return asyncio.get_running_loop().create_task(work)

    async def settle(self) -> None:
        async with asyncio.timeout(5):
            await self.memory.calls.settle()


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(module, "LONGEST_PAUSE_SECONDS", 0.002)
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.001)
    monkeypatch.setattr(memory_module, "WORTHWHILE_SECONDS", 0.2)


async def until(rig: Rig, what: str, count: int = 1) -> None:
    """Return once the store was called this often."""
    async with asyncio.timeout(5):
        while rig.store.log.count(what) < count:  # noqa: ASYNC110  -- nothing else tells
            await asyncio.sleep(0)


async def test_the_first_to_ask_makes_it_under_a_lease() -> None:
    rig = Rig()
    assert await rig.start() is DONE
    (lease, summarise), *more = rig.runs.made
    assert isinstance(lease, Lease)
    assert (lease.anchor, lease.cut_digest, summarise, more) == (TRANSCRIPT.anchor, CUT, True, [])
    assert rig.runs.held[0] > 0
    await rig.settle()
    assert rig.store.held == {}


async def test_a_lease_is_kept_while_it_lasts() -> None:
    rig = Rig()
    rig.runs.gate = asyncio.Event()
    task = rig.start()
    await until(rig, "renew", 5)
    rig.runs.gate.set()
    assert await task is DONE
    await rig.settle()
    # Nothing goes on renewing it.
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert rig.store.held == {}


async def test_whoever_does_not_get_it_waits_and_uses_what_was_made() -> None:
    rig = Rig()
    rig.store.held[TRANSCRIPT.anchor, CUT] = 1000
    task = rig.start()
    await until(rig, "acquire", 3)
    assert rig.runs.made == []
    await rig.store.commit(change_of(TRANSCRIPT, COMPACT.cut.length))
    rig.store.held.clear()
    assert await task is JOINED
    assert rig.runs.made == []
    await rig.settle()
    assert rig.store.held == {}


async def test_whoever_waits_takes_over_when_the_maker_is_gone() -> None:
    rig = Rig()
    rig.store.held[TRANSCRIPT.anchor, CUT] = 1000
    task = rig.start()
    await until(rig, "acquire", 3)
    rig.store.held.clear()
    assert await task is DONE
    assert [(lease is not None, how) for lease, how in rig.runs.made] == [(True, True)]


async def test_two_processes_make_one_at_a_time() -> None:
    store = FakeStore()
    one, two = Rig(store), Rig(store)
    one.runs.gate = asyncio.Event()
    tasks = [one.start(), two.start()]
    await until(one, "acquire", 6)
    assert (len(one.runs.made), two.runs.made) == (1, [])
    await store.commit(change_of(TRANSCRIPT, COMPACT.cut.length))
    one.runs.gate.set()
    assert await tasks[0] is DONE
    assert await tasks[1] is JOINED
    assert two.runs.made == []


async def test_a_change_by_another_process_is_seen_before_anything_is_made() -> None:
    """It was made and its lease given back before this one asked."""
    rig = Rig()
    await rig.memory.find(TRANSCRIPT)
    await rig.store.commit(change_of(TRANSCRIPT, COMPACT.cut.length))
    assert await rig.start() is JOINED
    assert rig.runs.made == []


@pytest.mark.parametrize(("shared", "summarise"), [(True, False), (False, True)])
@pytest.mark.parametrize("failure", ["unreachable", "read_only"])
async def test_a_store_that_is_down(shared: bool, summarise: bool, failure: str) -> None:
    """Nobody can say who else is at it, unless nobody else there is."""
    rig = Rig(shared=shared)
    rig.store.failure = failure
    assert await rig.start() is DONE
    assert rig.runs.made == [(None, summarise)]


async def test_a_store_that_goes_down_while_one_waits() -> None:
    rig = Rig()
    rig.store.held[TRANSCRIPT.anchor, CUT] = 1000
    task = rig.start()
    await until(rig, "acquire", 2)
    rig.store.failure = "unreachable"
    assert await task is DONE
    assert rig.runs.made == [(None, False)]


async def test_a_hanging_store_is_not_waited_for() -> None:
    rig = Rig()
    rig.store.gate = asyncio.Event()
    async with asyncio.timeout(2):
        assert await rig.start() is DONE
    assert rig.runs.made == [(None, False)]
    # The lease comes late, and goes back.
    rig.store.gate.set()
    await rig.settle()
    assert rig.store.held == {}


@pytest.mark.parametrize("fallback", ["extractive", "none"])
async def test_nobody_waits_beyond_the_deadline(fallback: str) -> None:
    rig = Rig()
    rig.store.held[TRANSCRIPT.anchor, CUT] = 1000
    landed = await rig.start(request(deadline=0.02, fallback=fallback))
    if fallback == "extractive":
        assert (landed, rig.runs.made) == (DONE, [(None, False)])
    else:
        assert (landed.outcome, rig.runs.made) == ("failed", [])
    assert rig.store.held == {(TRANSCRIPT.anchor, CUT): 1000}


@pytest.mark.parametrize("waiting", [False, True])
async def test_who_leaves_gives_its_lease_back(waiting: bool) -> None:
    rig = Rig()
    rig.runs.gate = asyncio.Event()
    if waiting:
        rig.store.held[TRANSCRIPT.anchor, CUT] = 1000
    task = rig.start()
    await until(rig, "acquire" if waiting else "renew", 2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await rig.settle()
    assert rig.store.held == ({(TRANSCRIPT.anchor, CUT): 1000} if waiting else {})


async def test_a_failed_compaction_gives_its_lease_back() -> None:
    rig = Rig()
    rig.runs.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        await rig.start()
    await rig.settle()
    assert rig.store.held == {}


async def finish(rig: Rig, *, checkpoint: str = "") -> Landed | None:
    """Finish what was made up to the cut."""
    found = replace(NOTHING, checkpoint=checkpoint_of(TRANSCRIPT, COMPACT.cut.length, checkpoint))
    return await rig.turns.finish(Unfinished(request(), WINDOW, COMPACT, found))


async def test_the_background_makes_it_under_a_lease() -> None:
    rig = Rig()
    await rig.store.commit(change_of(TRANSCRIPT, COMPACT.cut.length))
    assert await finish(rig) is DONE
    assert [(lease is not None, how) for lease, how in rig.runs.made] == [(True, True)]
    await rig.settle()
    assert rig.store.held == {}


async def test_the_background_waits_for_nobody() -> None:
    rig = Rig()
    await rig.store.commit(change_of(TRANSCRIPT, COMPACT.cut.length))
    rig.store.held[TRANSCRIPT.anchor, b"background:" + CUT] = 1000
    assert await finish(rig) is None
    assert rig.runs.made == []


async def test_nobody_waits_for_the_background() -> None:
    rig = Rig()
    rig.runs.gate = asyncio.Event()
    await rig.store.commit(change_of(TRANSCRIPT, COMPACT.cut.length))
    background = asyncio.get_running_loop().create_task(finish(rig))
    await until(rig, "renew")
    # Who knew nothing of the checkpoint yet learns of it.
    async with asyncio.timeout(4):
        assert await rig.start() is JOINED
    assert not background.done()
    rig.runs.gate.set()
    assert await background is DONE


async def test_what_is_no_longer_in_force_is_not_finished() -> None:
    rig = Rig()
    await rig.store.commit(change_of(TRANSCRIPT, COMPACT.cut.length, "another"))
    assert await finish(rig, checkpoint="before") is None
    deleted = Rig()
    assert await finish(deleted) is None
    assert rig.runs.made == deleted.runs.made == []


@pytest.mark.parametrize("shared", [True, False])
async def test_without_a_store_only_who_is_alone_finishes_anything(shared: bool) -> None:
    rig = Rig(shared=shared)
    rig.store.failure = "unreachable"
    assert await finish(rig) is (None if shared else DONE)
    assert rig.runs.made == ([] if shared else [(None, True)])
