"""Which cut is taken: preference order, the aim, the gain rule."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.codec import JsonObject
from proxy.compaction import cutpoints
from proxy.compaction.checkpoint import render
from proxy.compaction.choice import Candidate, choose, gains, why_none
from proxy.compaction.layout import arrange, size_of_layout, validate
from proxy.compaction.ledger import ledger as ledgers
from proxy.compaction.measure import exact_tokens
from proxy.compaction.policy import Budget, CompactionPolicy
from proxy.transcript import Kind, Size, Transcript, total
from tests.builders import assistant, call, prose, result, system, turn_session, user
from tests.strategies import DIALECT, conversations, to_request, to_transcript

LIMITS = Budget(
    trigger=10_000,
    char_trigger=10**6,
    fit=None,
    hard_chars=None,
    aim=4000,
    checkpoint=300,
    ledger=200,
    essentials=240,
    overhead=False,
    reason="threshold",
)


def _choose(
    transcript: Transcript,
    aim: int,
    *,
    keep_turns: int = 2,
    after_cut: int = 0,
    smallest: bool = False,
) -> Candidate | None:
    policy = CompactionPolicy(keep_turns=keep_turns)
    limits = replace(LIMITS, aim=aim)
    return choose(transcript, policy, limits, after_cut=after_cut, smallest=smallest)


def _length(candidate: Candidate | None) -> int | None:
    return candidate.cut.length if candidate else None


def _turns(count: int, chars: int = 400) -> Transcript:
    """Turns of a short question and an answer of `chars` characters."""
    return to_transcript(
        [m for n in range(count) for m in (user(f"q{n}"), assistant("a " * (chars // 2)))]
    )


def _steps(count: int, chars: int = 4000) -> list[JsonObject]:
    return [
        message
        for n in range(count)
        for message in (
            assistant(None, [call(f"{n}", "read", "{}")]),
            result(f"{n}", "r " * (chars // 2)),
        )
    ]


@pytest.mark.parametrize(
    ("before", "after", "fit", "worth"),
    [
        (1000, 900, None, True),
        (1000, 901, None, False),
        (1000, 1000, None, False),
        (1000, 950, 950, True),
        (1000, 951, 950, False),
        (1000, 990, 1000, False),
        (1000, 900, 100, True),
        (0, 0, None, True),
    ],
)
def test_a_rewrite_must_save_a_tenth_or_make_it_fit(
    before: int, after: int, fit: int | None, worth: bool
) -> None:
    assert gains(before, after, fit) is worth


def test_all_turns_that_may_stay_do_when_the_aim_is_reached() -> None:
    transcript = _turns(6)
    assert _length(_choose(transcript, 4000)) == 6
    assert _length(_choose(transcript, 4000, keep_turns=0)) == 10
    assert _length(_choose(transcript, 4000, keep_turns=5)) == 2


def test_fewer_turns_stay_for_a_lower_aim() -> None:
    transcript = _turns(6)
    each = total(transcript.items[:2]).tokens
    assert each == 110
    assert _length(_choose(transcript, 300 + 3 * each)) == 6
    assert _length(_choose(transcript, 300 + 3 * each - 1)) == 8
    assert _length(_choose(transcript, 300 + 2 * each - 1)) == 10


def test_the_smallest_is_taken_when_nothing_reaches_the_aim() -> None:
    transcript = _turns(6)
    assert _length(_choose(transcript, 10)) == 10
    assert _length(_choose(transcript, 4000, smallest=True)) == 10


def test_the_estimate_is_base_record_and_what_stays() -> None:
    transcript = to_transcript([system("sand " * 80), *[user("q"), assistant("a" * 40)] * 3])
    found = _choose(transcript, 4000, keep_turns=0)
    assert found is not None
    assert found.tokens == 104 + 300 + 5 + 14


def test_the_record_is_estimated_from_what_the_replaced_users_said() -> None:
    quote = user("q " * 200)
    transcript = to_transcript([quote, assistant("a"), quote, assistant("a"), quote])
    limits = replace(LIMITS, checkpoint=5000, ledger=150)
    # Two messages of 104 tokens are quoted, and a fiftieth of all is taken for facts.
    for ledger, quoted in ((5000, 208 + 4), (150, 150)):
        found = choose(
            transcript,
            CompactionPolicy(keep_turns=0),
            replace(limits, ledger=ledger),
            after_cut=0,
        )
        assert found is not None
        assert found.tokens == quoted + 700 + 130 + 104


def test_a_cut_that_would_replace_nothing_is_none() -> None:
    assert _choose(to_transcript([{"role": "observer"}, user("a")]), 4000) is None


def test_the_open_turn_is_cut_through_when_whole_turns_are_not_enough() -> None:
    transcript = to_transcript([user("old"), assistant("b"), user("task"), *_steps(5)])
    group = total(transcript.items[3:5]).tokens
    task = transcript.items[2].tokens
    found = _choose(transcript, 300 + task + 2 * group)
    assert found is not None
    assert (found.cut.length, found.cut.kept) == (9, (2,))
    assert found.tokens == 300 + task + 2 * group
    assert _length(_choose(transcript, 300 + task + 2 * group - 1)) == 11
    assert _length(_choose(transcript, 1)) == 11


def test_a_cut_that_is_covered_already_is_not_made_again() -> None:
    transcript = _turns(6)
    assert _length(_choose(transcript, 4000, after_cut=5)) == 6
    assert _length(_choose(transcript, 4000, after_cut=6)) == 8
    assert _choose(transcript, 4000, after_cut=10) is None


def test_an_empty_request_has_no_cut() -> None:
    assert _choose(to_transcript([system("s")]), 4000) is None


@pytest.mark.parametrize(
    ("messages", "after_cut", "reason"),
    [
        ([user("a")], 0, "not_enough_history"),
        ([user("a"), *_steps(1)], 0, "not_enough_history"),
        (turn_session(3, system=None), 15, "not_enough_history"),
        ([user("a"), assistant(None, [call("1", "x", "{}")]), user("b")], 0, "no_safe_boundary"),
        (
            [user("a"), assistant(None, [call("1", "x", "{}")]), user("b"), *_steps(1)],
            0,
            "uncertain_tool_results",
        ),
    ],
)
def test_the_reason_when_there_is_no_cut(
    messages: list[JsonObject], after_cut: int, reason: str
) -> None:
    transcript = to_transcript(messages)
    assert why_none(transcript, after_cut) == reason


@given(
    conversations(odd=True, max_chars=1500),
    st.integers(0, 4000),
    st.integers(0, 4),
    st.integers(0, 10),
    st.booleans(),
)
def test_what_is_chosen_is_legal_new_and_valid(
    messages: list[JsonObject], aim: int, keep_turns: int, after_cut: int, smallest: bool
) -> None:
    transcript = to_transcript(messages)
    found = _choose(transcript, aim, keep_turns=keep_turns, after_cut=after_cut, smallest=smallest)
    if found is None:
        return
    cut = found.cut
    assert cut.length in cutpoints.legal_cuts(transcript.items)
    assert after_cut < cut.length < len(transcript.items)
    assert cut.replaced()
    validate(transcript, arrange(transcript.items, cut, "RECORD"))


@given(conversations(max_chars=1500), st.integers(0, 4000), st.integers(0, 4))
def test_keep_turns_is_a_maximum(messages: list[JsonObject], aim: int, keep_turns: int) -> None:
    transcript = to_transcript(messages)
    found = _choose(transcript, aim, keep_turns=keep_turns)
    if found is not None:
        kept_whole = [
            turn for turn in cutpoints.turns(transcript.items) if turn.start >= found.cut.length
        ]
        assert len(kept_whole) - 1 <= keep_turns


@given(conversations(max_chars=1500), st.integers(0, 4), st.booleans())
def test_a_lower_aim_never_keeps_more(
    messages: list[JsonObject], keep_turns: int, smallest: bool
) -> None:
    transcript = to_transcript(messages)
    found = [
        _length(_choose(transcript, aim, keep_turns=keep_turns, smallest=smallest)) or 0
        for aim in (100_000, 2000, 1000, 500)
    ]
    reached = [
        length
        for aim, length in zip((100_000, 2000, 1000, 500), found, strict=True)
        if (c := _choose(transcript, aim, keep_turns=keep_turns)) and c.tokens <= aim
    ]
    if not smallest:
        assert all(a <= b for a, b in itertools.pairwise(reached))
    else:
        assert len(set(found)) == 1


@given(conversations(max_chars=1500), st.integers(0, 4000), st.integers(0, 4))
def test_without_pins_the_choice_reaches_the_aim_or_is_the_smallest(
    messages: list[JsonObject], aim: int, keep_turns: int
) -> None:
    transcript = to_transcript(messages)
    items = transcript.items
    found = _choose(transcript, aim, keep_turns=keep_turns)
    least = _choose(transcript, aim, keep_turns=keep_turns, smallest=True)
    assert (found is None) is (least is None)
    if found is None or least is None:
        return
    if least.tokens <= aim or not any(i.kind is Kind.INSTRUCTION or i.has_image for i in items):
        assert found.tokens <= aim or found.tokens == least.tokens


@given(conversations(max_chars=600), st.sampled_from([0, 120, 400, 3000]), st.integers(0, 2))
def test_a_wary_estimate_is_never_exceeded(
    messages: list[JsonObject], checkpoint: int, keep_turns: int
) -> None:
    """Whatever the summariser writes: the result is no larger than what was expected."""
    request = to_request(messages)
    limits = replace(LIMITS, aim=0, checkpoint=checkpoint, ledger=checkpoint * 2 // 3)
    policy = CompactionPolicy(keep_turns=keep_turns)
    plain = choose(request.transcript, policy, limits, after_cut=0)
    wary = choose(request.transcript, policy, limits, after_cut=0, wary=True)
    if plain is None or wary is None:
        assert plain is wary
        return
    items, cut = request.transcript.items, wary.cut
    book = ledgers.build([DIALECT.read(item) for item in items[: cut.length]], cut.replaced())
    quoted, _ = ledgers.render(book, limits.ledger)
    text, _ = render(
        nonce="0123456789abcdef",
        body=prose(20_000, 1),
        ledger=quoted,
        replaced=len(cut.replaced()),
        tokens=limits.checkpoint,
    )
    pieces = arrange(items, cut, text)
    fixed = total(request.transcript.instructions) + request.transcript.catalogue
    size = fixed + size_of_layout(pieces, Size(len(text), exact_tokens(text)), {})
    assert size.tokens <= wary.tokens
