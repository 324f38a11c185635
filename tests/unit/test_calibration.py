"""From estimates to what a model counts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.calibration import (
    MARGIN,
    MAX_FACTOR,
    MIN_FACTOR,
    Calibration,
)
from tests.strategies import calibrations

SIZES = st.integers(1, 200_000)


@pytest.mark.parametrize(
    ("calibration", "estimate", "tokens"),
    [
        (Calibration(), 1000, 1000),
        (Calibration(), 0, 0),
        (Calibration(1.5), 1000, 1500),
        (Calibration(0.8), 1001, 801),
        (Calibration(1.0, 1000, 1400), 1000, 1400),
        (Calibration(2.0, 1000, 1400), 1100, 1600),
        (Calibration(1.0, 1000, 800), 900, 700),
        # Far more than it can be: bounded.
        (Calibration(1.0, 10, 20_000), 1000, 6000),
        (Calibration(1.0, 10_000, 1), 10_000, 500),
        (Calibration(0.02), 1000, 50),
    ],
)
def test_tokens(calibration: Calibration, estimate: int, tokens: int) -> None:
    assert calibration.tokens(estimate) == tokens


@given(SIZES, st.integers(1, 10**6), st.floats(0.5, 4.0))
def test_at_the_anchor_the_upstream_is_believed(size: int, reported: int, ratio: float) -> None:
    tokens = Calibration(ratio, size, reported).tokens(size)
    least, most = math.ceil(MIN_FACTOR * size), MAX_FACTOR * size
    assert tokens == min(most, max(least, reported))


@given(calibrations(), SIZES)
def test_factors_are_bounded_and_the_careful_one_is_no_less(
    calibration: Calibration, size: int
) -> None:
    factor, careful = calibration.factor(size), calibration.careful(size)
    least = MIN_FACTOR
    assert least <= factor <= careful <= MAX_FACTOR
    if not calibration.reported:
        assert careful <= MARGIN * factor


@given(calibrations(), SIZES, SIZES)
def test_more_text_is_more_tokens(calibration: Calibration, one: int, other: int) -> None:
    less, more = sorted((one, other))
    assert calibration.tokens(less) <= calibration.tokens(more)


@given(calibrations(), SIZES)
def test_in_another_form_only_the_ratio_counts(calibration: Calibration, size: int) -> None:
    assert calibration.elsewhere(size) == Calibration(calibration.ratio).tokens(size)


@pytest.mark.parametrize(
    ("calibration", "share"),
    [
        (Calibration(), 1.0),
        (Calibration(1.0, 1000, 1200), 0.0),
        (Calibration(1.0, 900, 1200), 0.1),
        (Calibration(1.0, 1100, 1200), 0.1),
        (Calibration(1.0, 9000, 12_000), 1.0),
    ],
)
def test_the_share_that_is_only_estimated(calibration: Calibration, share: float) -> None:
    assert calibration.new_share(1000) == pytest.approx(share)


def test_nothing_is_added_where_nothing_was_learned() -> None:
    assert Calibration().careful(1000) == 1.0


@given(calibrations(), SIZES, SIZES)
def test_what_is_settled_is_read_the_same_at_every_size(
    calibration: Calibration, size: int, other: int
) -> None:
    settled = calibration.settle(size)
    factors = {settled.factor(n) for n in (size, other)} | {settled.settle(other).factor(size)}
    assert factors == {calibration.factor(size)}
    assert settled.careful(other) == calibration.careful(size)
    assert settled.new_share(other) == 0
