"""Requests that need nothing, told without planning."""

from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from proxy.codec import JsonObject
from proxy.compaction.calibration import Calibration
from proxy.compaction.plan import Forward, State, plan
from proxy.compaction.policy import CompactionPolicy, Window
from proxy.compaction.quiet import quiet_size, surely_quiet
from proxy.transcript import total
from tests.strategies import ask, calibrations, conversations, policies, to_request, windows

_ANY = st.tuples(st.booleans(), st.sampled_from([600, 2500, 9000])).flatmap(
    lambda drawn: conversations(odd=drawn[0], max_chars=drawn[1])
)


@given(_ANY, policies(), windows(), calibrations())
def test_what_is_told_to_be_quiet_is_forwarded(
    messages: list[JsonObject],
    policy: CompactionPolicy,
    window: Window,
    calibration: Calibration,
) -> None:
    request = to_request(messages)
    decision = plan(replace(ask(request, policy, window), calibration=calibration), State())
    tokens = quiet_size(request.transcript, policy, window, calibration)
    quiet = isinstance(decision, Forward) and not decision.outlook.reason
    event(f"told: {tokens is not None}, quiet: {quiet}")
    if tokens is not None:
        assert quiet
        assert tokens == decision.outlook.before.tokens


@given(_ANY, policies(), windows())
def test_without_a_calibration_the_short_way_says_just_what_the_plan_says(
    messages: list[JsonObject], policy: CompactionPolicy, window: Window
) -> None:
    request = to_request(messages)
    decision = plan(ask(request, policy, window), State())
    tokens = quiet_size(request.transcript, policy, window, Calibration())
    quiet = isinstance(decision, Forward) and not decision.outlook.reason
    assert (tokens is not None) == quiet


@given(_ANY, policies(), windows(), calibrations(), st.integers(0, 500))
def test_what_is_surely_quiet_is_quiet(
    messages: list[JsonObject],
    policy: CompactionPolicy,
    window: Window,
    calibration: Calibration,
    more: int,
) -> None:
    transcript = to_request(messages).transcript
    full = total(transcript.instructions) + total(transcript.items) + transcript.catalogue
    factor = max(calibration.factor(full.tokens), calibration.careful(full.tokens))
    sure = surely_quiet(policy, window, full.tokens + more, full.chars + more, factor)
    event(f"sure: {sure}")
    if sure:
        question = replace(
            ask(to_request(messages), policy, window),
            calibration=calibration,
        )
        decision = plan(question, State())
        assert isinstance(decision, Forward)
        assert not decision.outlook.reason
