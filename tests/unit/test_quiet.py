"""Requests that need nothing, told without planning."""

from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st

from proxy.codec import JsonObject
from proxy.compaction.plan import Forward, State, plan
from proxy.compaction.policy import CompactionPolicy, Window
from proxy.compaction.quiet import quiet_size, surely_quiet
from proxy.transcript import total
from tests.strategies import ask, conversations, policies, to_request, windows

_ANY = st.tuples(st.booleans(), st.sampled_from([600, 2500, 9000])).flatmap(
    lambda drawn: conversations(odd=drawn[0], max_chars=drawn[1])
)
_ROOMY = CompactionPolicy(max_context_chars=10**9)
_HUGE = Window(2_000_000)


@given(_ANY, policies(), windows(), st.sampled_from([1.0, 1.3]))
def test_the_short_way_for_quiet_requests_says_what_the_plan_says(
    messages: list[JsonObject], policy: CompactionPolicy, window: Window, factor: float
) -> None:
    request = to_request(messages)
    decision = plan(replace(ask(request, policy, window), factor=factor), State())
    tokens = quiet_size(request.transcript, policy, window, factor)
    quiet = isinstance(decision, Forward) and not decision.outlook.reason
    assert (tokens is not None) == quiet
    if tokens is not None:
        assert tokens == decision.outlook.before.tokens


@given(_ANY, policies(), windows(), st.sampled_from([1.0, 1.3]), st.integers(0, 500))
def test_what_is_surely_quiet_is_quiet(
    messages: list[JsonObject],
    policy: CompactionPolicy,
    window: Window,
    factor: float,
    more: int,
) -> None:
    transcript = to_request(messages).transcript
    full = total(transcript.instructions) + total(transcript.items) + transcript.catalogue
    sure = surely_quiet(policy, window, full.tokens + more, full.chars + more, factor)
    event(f"sure: {sure}")
    if sure:
        assert quiet_size(transcript, policy, window, factor) is not None
