"""A breaker leaves a failing store alone and lets one call a second find out how it is."""

import pytest

from proxy.compactor.breaker import RETRY_SECONDS, Breaker


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.time = 1_800_000_000.0

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock: Clock) -> Breaker:
    return Breaker(clock)


def test_a_new_one_is_closed(breaker: Breaker) -> None:
    assert not breaker.is_open
    assert [breaker.allows() for _ in range(3)] == [True] * 3


def test_after_a_failure_nothing_is_allowed_for_a_while(breaker: Breaker, clock: Clock) -> None:
    breaker.failed()
    assert breaker.is_open
    assert not breaker.allows()
    clock.time += RETRY_SECONDS * 0.99
    assert not breaker.allows()


def test_half_open_lets_one_through(breaker: Breaker, clock: Clock) -> None:
    breaker.failed()
    clock.time += RETRY_SECONDS
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    assert breaker.is_open
    clock.time += RETRY_SECONDS
    assert [breaker.allows() for _ in range(3)] == [True, False, False]


def test_a_failed_try_begins_the_pause_anew(breaker: Breaker, clock: Clock) -> None:
    breaker.failed()
    clock.time += RETRY_SECONDS
    assert breaker.allows()
    clock.time += RETRY_SECONDS / 2
    breaker.failed()
    clock.time += RETRY_SECONDS / 2
    assert not breaker.allows()
    clock.time += RETRY_SECONDS / 2
    assert breaker.allows()


def test_a_success_closes_it(breaker: Breaker, clock: Clock) -> None:
    breaker.failed()
    clock.time += RETRY_SECONDS
    assert breaker.allows()
    breaker.succeeded()
    assert not breaker.is_open
    assert [breaker.allows() for _ in range(3)] == [True] * 3


@pytest.mark.parametrize("back", [RETRY_SECONDS * 2, 3600.0, 1e9])
def test_a_clock_set_back_does_not_keep_it_shut(
    breaker: Breaker, clock: Clock, back: float
) -> None:
    breaker.failed()
    clock.time -= back
    assert [breaker.allows() for _ in range(2)] == [True, False]
    clock.time += RETRY_SECONDS
    assert breaker.allows()


def test_a_clock_set_forward_only_ends_the_pause(breaker: Breaker, clock: Clock) -> None:
    breaker.failed()
    clock.time += 1e9
    assert [breaker.allows() for _ in range(2)] == [True, False]
