"""Who is left alone in the background, and for how long."""

import pytest

from proxy.compactor import background as module
from proxy.compactor.background import Pauses
from tests.unit.test_breaker import Clock


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
