"""Who is left alone in the background, and for how long."""

import asyncio
from dataclasses import replace
from typing import cast

import pytest
from msgspec import structs

from proxy.compactor import background as module
from proxy.compactor.background import Background, Pauses
from proxy.compactor.entries import NOTHING
from proxy.compactor.failing_open import FailingOpen
from proxy.compactor.reports import Reporter
from proxy.compactor.requests import Unfinished
from proxy.compactor.runs import Landed
from proxy.compactor.turns import Turns
from tests.unit.test_breaker import Clock
from tests.unit.test_storage import Told
from tests.unit.test_turns import COMPACT, WINDOW, request


def test_who_never_failed_is_asked_by_everybody() -> None:
    pauses = Pauses(Clock())
    for _ in range(3):
        assert pauses.allow("route")
        pauses.begin("route")
    pauses.end("route", failed=False)
    assert pauses.allow("route")


def test_a_failure_is_followed_by_growing_pauses_and_one_probe_after_each() -> None:
    clock = Clock()
    pauses = Pauses(clock)
    waited = []
    for _ in range(12):
        pauses.begin("route")
        pauses.end("route", failed=True)
        assert not pauses.allow("route")
        start = clock.time
        while not pauses.allow("route"):
            clock.time += 0.25
        waited.append(clock.time - start)
        pauses.begin("route")
        assert not pauses.allow("route")
    assert waited[0] == module.FIRST_PAUSE_SECONDS
    assert waited == sorted(waited)
    assert waited[-1] == module.LONGEST_PAUSE_SECONDS


def test_a_success_ends_it() -> None:
    clock = Clock()
    pauses = Pauses(clock)
    pauses.end("route", failed=True)
    clock.time += module.FIRST_PAUSE_SECONDS
    pauses.begin("route")
    pauses.end("route", failed=False)
    assert pauses.allow("route")
    pauses.begin("route")
    assert pauses.allow("route")


@pytest.mark.parametrize("ended", [None, True])
def test_a_probe_that_said_nothing_frees_the_place(ended: bool | None) -> None:
    clock = Clock()
    pauses = Pauses(clock)
    pauses.end("route", failed=True)
    clock.time += module.FIRST_PAUSE_SECONDS
    pauses.begin("route")
    assert not pauses.allow("route")
    pauses.end("route", failed=ended)
    clock.time += 0.0 if ended is None else 2 * module.FIRST_PAUSE_SECONDS
    assert pauses.allow("route")


def test_one_failing_is_no_reason_to_leave_another_alone() -> None:
    pauses = Pauses(Clock())
    pauses.end("route", failed=True)
    assert pauses.allow("other")


def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_NAMES", 2)
    pauses = Pauses(Clock())
    for name in "abc":
        pauses.end(name, failed=True)
    assert [pauses.allow(name) for name in "abc"] == [True, False, False]


class FailingTurns:
    """Makes nothing; notes for which session it was asked to."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def finish(self, unfinished: Unfinished) -> Landed:
        self.asked.append(unfinished.found.session)
        return Landed("failed", "http_401")


async def test_what_one_tenant_is_refused_does_not_stop_another() -> None:
    turns, clock = FailingTurns(), Clock()
    reporter = Reporter(Told(), clock)
    background = Background(cast(Turns, turns), 4, clock, FailingOpen(reporter))

    async def begin(tenant: bytes, session: str) -> None:
        asked = request()
        route = structs.replace(asked.handling.route, tenant=tenant)
        asked = structs.replace(
            asked, handling=structs.replace(asked.handling, route=route, summary_route=route)
        )
        found = replace(NOTHING, session=session)
        background.start(Unfinished(asked, WINDOW, COMPACT, found))
        running = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*running)

    await begin(b"one", "a")
    await begin(b"one", "b")
    await begin(b"other", "c")
    assert turns.asked == ["a", "c"]
