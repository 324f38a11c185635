"""The budget of a request: exact numbers of design section 4."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.policy import (
    MAX_LEDGER_TOKENS,
    Budget,
    CompactionPolicy,
    LedgerPolicy,
    Window,
    budget,
    reserve,
    trigger_reason,
    worst_budget,
)
from proxy.transcript import Item, Kind, Size, Transcript, total
from tests import strategies
from tests.builders import assistant, catalogue, system, user

EMPTY = Transcript((), ())
DEFAULT = CompactionPolicy()


def _fixed(instructions: int, tools: int, output: int | None = None) -> Transcript:
    item = Item(Kind.INSTRUCTION, "system", b"", 4 * instructions, instructions)
    return Transcript((item,), (), Size(4 * tools, tools), output)


def test_defaults_are_those_of_the_design() -> None:
    assert CompactionPolicy(True, 0.85, 2, 0.4, 16_000, 800_000, False) == DEFAULT


@pytest.mark.parametrize(
    ("window", "requested", "kept"),
    [
        (100_000, None, 4096),
        (8192, None, 1024),
        (100_000, 1000, 1000),
        (100_000, 60_000, 25_000),
        (32_768, None, 4096),
        (32_767, None, 4095),
        (8192, 0, 0),
    ],
)
def test_reserve(window: int, requested: int | None, kept: int) -> None:
    assert reserve(window, requested) == kept


def test_budget_of_a_known_window() -> None:
    assert budget(DEFAULT, Window(100_000), _fixed(2000, 3000)) == Budget(
        trigger=85_000,
        char_trigger=680_000,
        fit=95_904,
        hard_chars=None,
        aim=5000 + 32_000,
        checkpoint=19_200,
        ledger=12_800,
        essentials=15_360,
        overhead=False,
        reason="threshold",
    )


def test_budget_of_an_unknown_window() -> None:
    assert budget(DEFAULT, Window(), EMPTY) == Budget(
        trigger=200_000,
        char_trigger=680_000,
        fit=None,
        hard_chars=800_000,
        aim=int(0.4 * 170_000),
        checkpoint=int(0.6 * 0.4 * 170_000),
        ledger=MAX_LEDGER_TOKENS,
        essentials=MAX_LEDGER_TOKENS,
        overhead=False,
        reason="unknown_window",
    )


def test_the_reserve_lowers_the_trigger_when_it_is_larger_than_what_is_left() -> None:
    limits = budget(DEFAULT, Window(100_000), _fixed(0, 0, 20_000))
    assert (limits.trigger, limits.fit) == (80_001, 80_000)
    assert budget(DEFAULT, Window(100_000), _fixed(0, 0, 10_000)).trigger == 85_000


def test_the_operator_bounds_the_ledger() -> None:
    policy = CompactionPolicy(ledger=LedgerPolicy(max_tokens=500))
    limits = budget(policy, Window(100_000), EMPTY)
    assert limits.ledger == limits.essentials == 500


@pytest.mark.parametrize("tokens", [2_000_001, 10**12])
def test_an_absurd_window_counts_as_unknown(tokens: int) -> None:
    assert budget(DEFAULT, Window(tokens), EMPTY) == budget(DEFAULT, Window(), EMPTY)
    assert Window(tokens).trusted is None


def test_two_million_is_still_believed() -> None:
    assert Window(2_000_000).trusted == 2_000_000
    assert budget(DEFAULT, Window(2_000_000), EMPTY).trigger == 1_700_000


def test_a_limit_of_the_input_keeps_no_reserve() -> None:
    window = Window(100_000, "models", input_only=True)
    limits = budget(DEFAULT, window, _fixed(0, 0, 60_000))
    assert (limits.trigger, limits.fit, limits.hard_chars) == (85_000, 100_000, None)
    assert limits.reason == "threshold"
    assert budget(DEFAULT, window, _fixed(0, 0, 60_000), 2.0).fit == 50_000


@pytest.mark.parametrize(
    ("factor", "careful", "trigger", "fit"),
    [
        (1.0, None, 85_000, 95_904),
        (2.0, None, 42_500, 47_952),
        (0.5, None, 170_000, 191_808),
        (0.5, 1.0, 95_905, 95_904),
        (1.0, 1.1, 85_000, 87_185),
    ],
)
def test_windows_are_in_counted_tokens_and_budgets_in_estimated_ones(
    factor: float, careful: float | None, trigger: int, fit: int
) -> None:
    limits = budget(DEFAULT, Window(100_000), EMPTY, factor, careful)
    assert (limits.trigger, limits.fit) == (trigger, fit)


@pytest.mark.parametrize(
    ("factor", "checkpoint"), [(2.0, 10_200), (1.0, 20_400), (0.8, 20_400), (0.5, 20_400)]
)
def test_a_checkpoint_may_cost_all_that_is_estimated_however_little_the_rest_does(
    factor: float, checkpoint: int
) -> None:
    """Of cheap text there fit more estimated tokens into a window, but not of the checkpoint."""
    policy = CompactionPolicy(max_context_chars=10**7)
    assert budget(policy, Window(100_000), EMPTY, factor).checkpoint == pytest.approx(
        checkpoint, abs=1
    )


def test_without_a_window_the_trigger_is_of_characters_and_so_estimated() -> None:
    assert budget(DEFAULT, Window(), EMPTY, 2.0) == budget(DEFAULT, Window(), EMPTY)


@pytest.mark.parametrize(
    ("limit", "trigger", "fit"),
    [
        (50_000, 42_500, 50_000),
        (80_000, 68_000, 75_000),
        (200_000, 75_001, 75_000),
    ],
)
def test_of_a_window_and_a_limit_of_the_input_the_tighter_holds(
    limit: int, trigger: int, fit: int
) -> None:
    window = Window(100_000, "tgi", input_limit=limit)
    limits = budget(DEFAULT, window, _fixed(0, 0, 60_000))
    assert (limits.trigger, limits.fit) == (trigger, fit)
    assert worst_budget(DEFAULT, window) == limits


@pytest.mark.parametrize(
    ("window", "total", "limit", "trusted"),
    [
        (Window(), None, None, None),
        (Window(9000), 9000, None, 9000),
        (Window(9000, input_only=True), None, 9000, 9000),
        (Window(9000, input_limit=8000), 9000, 8000, 8000),
        (Window(9000, input_only=True, input_limit=8000), None, 8000, 8000),
        (Window(10**9, input_limit=8000), None, 8000, 8000),
        (Window(9000, input_limit=10**9), 9000, None, 9000),
    ],
)
def test_the_limits_of_a_window(
    window: Window, total: int | None, limit: int | None, trusted: int | None
) -> None:
    assert (window.total, window.input, window.trusted) == (total, limit, trusted)


def test_the_aim_of_a_huge_window_follows_the_character_rule() -> None:
    limits = budget(DEFAULT, Window(1_000_000), _fixed(1000, 5000))
    assert limits.trigger == 850_000
    assert limits.aim == 6000 + int(0.4 * (170_000 + 5000 - 6000))


@pytest.mark.parametrize(
    ("tokens", "explicit", "hard"),
    [
        (None, False, 50_000),
        (None, True, 50_000),
        (100_000, False, None),
        (100_000, True, 50_000),
        (3_000_000, False, 50_000),
    ],
)
def test_the_hard_limit_binds_without_a_window_or_when_set(
    tokens: int | None, explicit: bool, hard: int | None
) -> None:
    policy = CompactionPolicy(max_context_chars=50_000, hard_limit_explicit=explicit)
    assert budget(policy, Window(tokens), EMPTY).hard_chars == hard


def test_fixed_parts_over_the_trigger_move_it_to_the_window_less_the_reserve() -> None:
    assert budget(DEFAULT, Window(100_000), _fixed(84_000, 0)).trigger == 85_000
    limits = budget(DEFAULT, Window(100_000), _fixed(84_001, 0))
    assert (limits.trigger, limits.fit, limits.overhead) == (95_905, 95_904, False)


def test_fixed_parts_over_that_too_are_fixed_overhead() -> None:
    assert not budget(DEFAULT, Window(100_000), _fixed(94_000, 904)).overhead
    assert budget(DEFAULT, Window(100_000), _fixed(94_000, 905)).overhead


def test_the_floor_of_a_small_window_is_a_quarter_of_it() -> None:
    window = Window(2000)
    assert not budget(DEFAULT, window, _fixed(1250, 0)).overhead
    assert budget(DEFAULT, window, _fixed(1251, 0)).overhead


def test_fixed_overhead_without_a_window_is_measured_against_its_trigger() -> None:
    policy = CompactionPolicy(max_context_chars=8000)
    assert not budget(policy, Window(), _fixed(900, 100)).overhead
    assert budget(policy, Window(), _fixed(900, 101)).overhead


@pytest.mark.parametrize(
    ("tokens", "chars", "reason"),
    [
        (84_999, 679_999, None),
        (85_000, 0, "threshold"),
        (0, 680_000, "characters"),
        (85_000, 680_000, "threshold"),
    ],
)
def test_either_rule_fires(tokens: int, chars: int, reason: str | None) -> None:
    limits = budget(DEFAULT, Window(100_000), EMPTY)
    assert trigger_reason(limits, Size(999_999, tokens), chars) == reason


def test_the_unknown_window_has_its_own_reason() -> None:
    limits = budget(DEFAULT, Window(), EMPTY)
    assert trigger_reason(limits, Size(0, 200_000), 0) == "unknown_window"
    assert trigger_reason(limits, Size(0, 199_999), 0) is None


def test_instructions_and_catalogue_are_measured_from_the_request() -> None:
    tools = catalogue(3)
    transcript = strategies.to_transcript([system("s" * 400), user("a"), assistant("b")], tools)
    small = strategies.to_transcript([user("a"), assistant("b")])
    base = total(transcript.instructions).tokens + transcript.catalogue.tokens
    assert base > 104
    with_base, without = (budget(DEFAULT, Window(50_000), t) for t in (transcript, small))
    assert with_base.aim == base + int(0.4 * (with_base.trigger - base))
    assert without.aim == int(0.4 * without.trigger)


@given(
    strategies.policies(),
    st.none() | st.integers(256, 4_000_000),
    st.integers(0, 30_000),
    st.none() | st.integers(1, 100_000),
    st.booleans(),
)
def test_budgets_are_consistent(
    policy: CompactionPolicy, tokens: int | None, base: int, output: int | None, input_only: bool
) -> None:
    window = Window(tokens, input_only=input_only)
    limits = budget(policy, window, _fixed(base, 0, output))
    assert 0 <= limits.ledger <= min(MAX_LEDGER_TOKENS, limits.checkpoint * 2 / 3)
    room = max(0, limits.trigger - base)
    assert limits.checkpoint <= 0.6 * policy.target * room
    assert base <= limits.aim <= base + policy.target * room
    if window.trusted is None:
        assert limits.fit is None
        assert limits.trigger == math.ceil(policy.max_context_chars / 4)
    else:
        kept = 0 if input_only else reserve(window.trusted, output)
        assert limits.fit == window.trusted - kept
        assert limits.trigger <= limits.fit + 1
    if not limits.overhead and window.trusted is not None:
        assert base < limits.trigger


@pytest.mark.parametrize(
    ("instruction_chars", "trigger", "overhead"),
    [
        (0, 34_000, False),
        (30_000, 34_000, False),
        (30_001, 40_001, False),
        (36_001, 40_001, False),
        (36_002, 40_001, True),
        (90_000, 40_001, True),
    ],
)
def test_instructions_move_the_trigger_of_characters_to_the_last_moment(
    instruction_chars: int, trigger: int, overhead: bool
) -> None:
    """And past that no compaction helps against characters."""
    policy = CompactionPolicy(max_context_chars=40_000)
    limits = budget(policy, Window(1_000_000), _fixed_chars(instruction_chars))
    assert (limits.char_trigger, limits.char_overhead) == (trigger, overhead)


def test_the_room_above_instructions_is_what_characters_leave() -> None:
    """Also where a character costs more tokens than a fourth; without any left, the window's."""
    policy = CompactionPolicy(max_context_chars=400_000)
    dense = Item(Kind.INSTRUCTION, "system", b"", 100_000, 100_000)
    limits = budget(policy, Window(1_000_000), Transcript((dense,), ()))
    assert limits.aim == 100_000 + int(0.4 * 60_000)
    over = budget(policy, Window(1_000_000), _fixed_chars(500_000))
    assert over.aim == 125_000 + int(0.4 * (850_000 - 125_000))


def _fixed_chars(chars: int) -> Transcript:
    return Transcript((Item(Kind.INSTRUCTION, "system", b"", chars, chars // 4),), ())
