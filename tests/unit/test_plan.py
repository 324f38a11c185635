"""The decision for one request, and the whole pure pipeline around it."""

from dataclasses import replace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from proxy.codec import JsonObject, loads
from proxy.compaction import cutpoints
from proxy.compaction.choice import gains
from proxy.compaction.clip import Clipped
from proxy.compaction.measure import exact_tokens
from proxy.compaction.plan import (
    Attempt,
    Compact,
    Decision,
    Forward,
    Refuse,
    State,
    Substitute,
    plan,
    refusal,
)
from proxy.compaction.policy import CompactionPolicy, Window
from proxy.errors import InvariantBroken
from proxy.transcript import Caps, Carry, Content, Item, Keep, Kind, Size, total
from tests.builders import (
    TASK,
    assistant,
    call,
    catalogue,
    chat_body,
    developer,
    marker,
    prose,
    result,
    system,
    tool_session,
    turn_session,
    user,
)
from tests.strategies import (
    DIALECT,
    ORIGIN,
    Run,
    ask,
    continuations,
    conversations,
    policies,
    problems,
    raw_messages,
    run,
    to_request,
    windows,
)

_ANY = st.tuples(st.booleans(), st.sampled_from([600, 2500, 9000])).flatmap(
    lambda drawn: conversations(odd=drawn[0], max_chars=drawn[1])
)
_ROOMY = CompactionPolicy(max_context_chars=10**9)
_HUGE = Window(2_000_000)


def _run(
    messages: list[JsonObject],
    policy: CompactionPolicy | None = None,
    window: Window | None = None,
    *,
    force: bool = False,
    attempt: Attempt | None = None,
    state: State | None = None,
) -> Run:
    request = to_request(messages)
    return run(request, ask(request, policy, window, force=force, attempt=attempt), state)


def _decide(
    messages: list[JsonObject],
    policy: CompactionPolicy | None = None,
    window: Window | None = None,
    state: State | None = None,
    *,
    force: bool = False,
    attempt: Attempt | None = None,
) -> Decision:
    request = to_request(messages)
    question = ask(request, policy, window, force=force, attempt=attempt)
    return plan(question, state or State())


def _chat(turns: int, chars: int = 200) -> list[JsonObject]:
    """Turns too short to be clipped."""
    return [
        m
        for n in range(turns)
        for m in (user(f"q{n} " + "x " * (chars // 2)), assistant("y " * (chars // 2)))
    ]


def _frontier(messages: list[JsonObject]) -> bytes:
    items = to_request(messages).transcript.items
    cut = cutpoints.frontier(cutpoints.legal_cuts(items), len(items))
    return items[cut - 1].digest


@given(_ANY, policies(), windows(), st.booleans())
def test_every_rewritten_request_keeps_all_rules(
    messages: list[JsonObject], policy: CompactionPolicy, window: Window, force: bool
) -> None:
    done = _run(messages, policy, window, force=force)
    event(" > ".join(type(decision).__name__ for decision in done.decisions))
    assert not isinstance(done.final, Compact)
    if isinstance(done.final, Substitute):
        assert problems(done.request, done.pieces, done.body) == []


@given(_ANY, policies(), windows(), st.booleans())
def test_the_announced_size_is_the_size_that_leaves(
    messages: list[JsonObject], policy: CompactionPolicy, window: Window, force: bool
) -> None:
    done = _run(messages, policy, window, force=force)
    if not isinstance(done.final, Substitute):
        assert isinstance(done.final, Refuse) or done.final.outlook.after == _whole(done)
        return
    sent = DIALECT.parse(done.body, ORIGIN)
    assert sent is not None
    size = total(sent.transcript.instructions) + total(sent.transcript.items)
    # Joined texts are rounded once, and judged as a whole: dense ones cost less among prose.
    assert size.chars == done.final.outlook.after.chars
    announced, most = done.final.outlook.after.tokens, 2 + len(done.state.clips)
    assert 0.8 * announced - most <= size.tokens <= 1.2 * announced + most


def _whole(done: Run) -> Size:
    transcript = done.request.transcript
    return total(transcript.instructions) + total(transcript.items) + transcript.catalogue


@given(_ANY, policies(), windows(), st.booleans())
def test_the_same_question_has_the_same_answer(
    messages: list[JsonObject], policy: CompactionPolicy, window: Window, force: bool
) -> None:
    one = _run(messages, policy, window, force=force)
    two = _run(messages, policy, window, force=force)
    assert one.decisions == two.decisions
    assert one.body == two.body


@given(_ANY, policies(), windows(), st.booleans())
def test_asking_again_with_what_was_stored_changes_nothing(
    messages: list[JsonObject], policy: CompactionPolicy, window: Window, force: bool
) -> None:
    first = _run(messages, policy, window, force=force)
    if not isinstance(first.final, Substitute):
        return
    again = _run(messages, policy, window, state=first.state)
    assert [type(decision) for decision in again.decisions] == [Substitute]
    assert isinstance(again.final, Substitute)
    assert not again.final.new_clips
    assert again.body == first.body


@given(_ANY, policies(), windows())
def test_a_compaction_gives_a_request_that_carries_its_record(
    messages: list[JsonObject], policy: CompactionPolicy, window: Window
) -> None:
    done = _run(messages, policy, window, force=True)
    first = done.decisions[0]
    if not isinstance(first, Compact):
        return
    assert len(done.decisions) > 1
    if isinstance(done.final, Substitute):
        carriers = [piece for piece in done.pieces if isinstance(piece, Carry)]
        assert [carrier.text for carrier in carriers] == [_record(done.state)]
        assert raw_messages(done.body) != raw_messages(chat_body(messages))


def _record(state: State) -> str:
    assert state.checkpoint is not None
    return state.checkpoint.rendered


@given(st.data(), _ANY, policies(), windows())
def test_a_rewritten_prefix_stays_byte_identical_as_the_conversation_goes_on(
    data: st.DataObject, messages: list[JsonObject], policy: CompactionPolicy, window: Window
) -> None:
    first = _run(messages, policy, window, force=True)
    if not isinstance(first.final, Substitute):
        return
    longer = [*messages, *data.draw(continuations(messages))]
    later = _run(longer, _ROOMY, _HUGE, state=first.state)
    assert isinstance(later.final, Substitute)
    before, after = raw_messages(first.body), raw_messages(later.body)
    assert after[: len(before)] == before
    assert after[len(before) :] == raw_messages(chat_body(longer[len(messages) :]))
    assert problems(later.request, later.pieces, later.body) == []


@given(conversations(odd=True, max_chars=200), st.booleans())
def test_a_small_request_goes_as_it_came(messages: list[JsonObject], auto: bool) -> None:
    decision = _decide(messages, CompactionPolicy(auto=auto), Window(1_000_000))
    assert isinstance(decision, Forward)
    assert (decision.outlook.reason, decision.outlook.skipped) == ("", "")
    assert decision.outlook.before == decision.outlook.after


@given(_ANY, policies(), windows(), st.booleans())
def test_a_compaction_is_due_legal_new_and_worth_it(
    messages: list[JsonObject], policy: CompactionPolicy, window: Window, force: bool
) -> None:
    decision = _decide(messages, policy, window, force=force)
    if not isinstance(decision, Compact):
        return
    items = to_request(messages).transcript.items
    legal = cutpoints.legal_cuts(items)
    assert decision.cut.length in legal
    assert decision.frontier == _frontier(messages)
    limits, before = decision.limits, decision.outlook.before.tokens
    if decision.reason != "budget":
        assert gains(before, decision.expected_tokens, limits.fit)
    if decision.reason in {"threshold", "unknown_window"}:
        assert before >= limits.trigger
    if decision.reason == "characters":
        assert decision.outlook.before.chars >= limits.char_trigger
    complete = [t for t in cutpoints.turns(items)[:-1] if t.start >= decision.cut.length]
    if not any(turn.start not in legal for turn in complete):
        assert len(complete) <= policy.keep_turns


@given(_ANY, policies(), windows(), st.booleans())
def test_what_leaves_is_never_over_the_hard_limit(
    messages: list[JsonObject], policy: CompactionPolicy, window: Window, force: bool
) -> None:
    final = _run(messages, policy, window, force=force).final
    binds = window.trusted is None or policy.hard_limit_explicit
    over = final.outlook.after.chars > policy.max_context_chars
    assert isinstance(final, Refuse) is (binds and over)


@given(_ANY, policies(), windows())
def test_without_a_checkpoint_a_rewrite_is_smaller_by_a_tenth_or_fits(
    messages: list[JsonObject], policy: CompactionPolicy, window: Window
) -> None:
    decision = _decide(messages, replace(policy, auto=False), window)
    assert not isinstance(decision, Compact)
    if isinstance(decision, Substitute):
        before, after = decision.outlook.before, decision.outlook.after
        fits_now = window.trusted is not None and after.tokens <= window.trusted
        hard = policy.max_context_chars
        assert gains(before.tokens, after.tokens, None) or fits_now or after.chars <= hard
        assert after.chars < before.chars


def test_exact_threshold_of_a_known_window() -> None:
    messages = _chat(40)
    size = total(to_request(messages).transcript.items).tokens
    window = int(size / 0.85)
    assert int(0.85 * window) <= size < int(0.85 * (window + 3))
    due = _decide(messages, None, Window(window))
    assert isinstance(due, Compact)
    assert due.reason == "threshold"
    assert isinstance(_decide(messages, None, Window(window + 3)), Forward)


@pytest.mark.parametrize("window", [Window(), Window(2_000_001)])
def test_an_unknown_or_absurd_window_is_judged_by_the_character_budget(window: Window) -> None:
    messages = _chat(40)
    size = total(to_request(messages).transcript.items).tokens
    high = CompactionPolicy(threshold=0.99, max_context_chars=4 * size + 4)
    assert isinstance(_decide(messages, high, window), Forward)
    due = _decide(messages, replace(high, max_context_chars=4 * size), window)
    assert isinstance(due, Compact)
    assert due.reason == "unknown_window"


def test_the_catalogue_counts_for_tokens_and_not_for_characters() -> None:
    request = to_request(_chat(40), catalogue(10, 1000))
    policy = CompactionPolicy(max_context_chars=27_000)
    due = plan(ask(request, policy, Window()), State())
    assert isinstance(due, Compact)
    assert due.reason == "unknown_window"
    assert isinstance(plan(ask(request, policy, Window(1_000_000)), State()), Forward)


def test_the_character_rule_holds_for_every_window() -> None:
    messages = _chat(40)
    chars = total(to_request(messages).transcript.items).chars
    policy = CompactionPolicy(threshold=0.5, max_context_chars=2 * chars)
    due = _decide(messages, policy, Window(1_000_000))
    assert isinstance(due, Compact)
    assert due.reason == "characters"
    roomier = replace(policy, max_context_chars=2 * chars + 2)
    assert isinstance(_decide(messages, roomier, Window(1_000_000)), Forward)


def test_a_compaction_that_saves_less_than_a_tenth_is_not_made() -> None:
    messages = [user("old " * 50), assistant("b"), user("new " * 8600)]
    decision = _decide(messages, None, Window(10_000))
    assert isinstance(decision, Forward)
    assert (decision.outlook.reason, decision.outlook.skipped) == ("threshold", "no_gain")


def test_next_to_what_is_clipped_a_compaction_is_worth_while_at_once() -> None:
    """Not only when the same request comes again, which would change what it began with."""
    messages = tool_session(8, result_chars=1000)
    messages[-1]["content"] = prose(60_000, 3)
    decision = _decide(messages, None, Window(3000))
    assert isinstance(decision, Compact)
    assert decision.clipped


def test_a_request_that_is_all_instructions_is_left_alone() -> None:
    messages = [system("rule " * 7600), *_chat(10)]
    decision = _decide(messages, None, Window(10_000))
    assert isinstance(decision, Forward)
    assert decision.outlook.skipped == "fixed_overhead"
    assert decision.outlook.after.tokens > 10_000


def test_no_second_compaction_until_history_moves_on() -> None:
    messages = _chat(40)
    policy = CompactionPolicy(keep_turns=20, max_context_chars=12_000)
    tried = State(attempted=_frontier(messages))
    decision = _decide(messages, policy, _HUGE, tried)
    assert decision.outlook.skipped == "not_enough_history"
    assert isinstance(_decide([*messages, user("next")], policy, _HUGE, tried), Compact)


def test_no_second_compaction_right_after_the_first() -> None:
    messages = [user(TASK), *tool_session(12, result_chars=4000, system=None)[1:]]
    policy = CompactionPolicy(threshold=0.1, target=0.8, max_context_chars=20_000)
    first = _run(messages, policy, _HUGE)
    assert [type(decision) for decision in first.decisions] == [Compact, Substitute]
    again = _decide(messages, policy, _HUGE, first.state)
    assert isinstance(again, Substitute)
    assert again.outlook.skipped == "not_enough_history"


def test_the_record_itself_says_how_far_history_was_complete() -> None:
    loose = CompactionPolicy(keep_turns=20)
    tight = CompactionPolicy(keep_turns=0, max_context_chars=8000)
    first = _run(_chat(60), loose, _HUGE, force=True)
    assert first.state.checkpoint is not None
    assert first.state.checkpoint.cut_length == 78
    again = _decide(_chat(60), tight, _HUGE, first.state)
    assert (again.outlook.reason, again.outlook.skipped) == ("characters", "not_enough_history")
    assert isinstance(_decide(_chat(61), tight, _HUGE, first.state), Compact)


def test_a_forced_compaction_asks_for_no_new_history() -> None:
    messages = _chat(10)
    tried = State(attempted=_frontier(messages), cooling=True)
    for policy in (CompactionPolicy(target=0.1), CompactionPolicy(target=0.1, auto=False)):
        limits = replace(policy, max_context_chars=8000)
        decision = _decide(messages, limits, _HUGE, tried, force=True)
        assert isinstance(decision, Compact)
        assert decision.reason == "force"


def test_nothing_is_compacted_when_switched_off_but_stored_state_applies() -> None:
    messages = _chat(80)
    off = CompactionPolicy(auto=False)
    assert isinstance(_decide(messages, off, Window(4000)), Forward)
    stored = _run(messages, None, Window(4000)).state
    assert stored.checkpoint is not None
    applied = _decide(messages, off, Window(1_000_000), stored)
    assert isinstance(applied, Substitute)
    assert applied.outlook.after.tokens < applied.outlook.before.tokens


def test_nothing_is_cut_behind_an_uncertain_result() -> None:
    open_call = assistant(None, [call("lost", "write_file", "{}")])
    first = [user("go"), open_call, *tool_session(30, system=None)]
    for force in (False, True):
        decision = _decide(first, None, Window(4000), force=force)
        assert decision.outlook.skipped == "uncertain_tool_results"
    later = [*_chat(30), open_call, *tool_session(3, system=None)]
    decision = _decide(later, None, Window(4000))
    assert isinstance(decision, Compact)
    assert decision.cut.length <= later.index(open_call)
    answered = [first[0], open_call, result("lost", "ok"), *tool_session(30, system=None)]
    assert isinstance(_decide(answered, None, Window(4000)), Compact)


def test_calls_that_still_run_do_not_block() -> None:
    messages = [*_chat(60), user("go"), assistant(None, [call("1", "run", "{}")])]
    assert isinstance(_decide(messages, None, Window(4000)), Compact)


def test_a_cooling_session_compacts_only_to_fit_and_without_a_model() -> None:
    messages = _chat(40)
    size = total(to_request(messages).transcript.items).tokens
    cooling = State(cooling=True)
    waits = _decide(messages, None, Window(int(size / 0.86)), cooling)
    assert waits.outlook.skipped == "cooldown"
    acts = _decide(messages, None, Window(size), cooling)
    assert isinstance(acts, Compact)
    assert acts.extractive_only
    usual = _decide(messages, None, Window(size))
    assert isinstance(usual, Compact)
    assert not usual.extractive_only


def test_a_stored_checkpoint_that_leaves_nothing_is_an_error() -> None:
    messages = _chat(40)
    done = _run(messages, None, Window(4000))
    assert done.state.checkpoint is not None
    shorter = messages[: done.state.checkpoint.cut_length]
    with pytest.raises(InvariantBroken):
        _decide(shorter, None, Window(4000), done.state)


def test_a_stored_record_that_would_part_a_call_from_its_result_is_an_error() -> None:
    messages = [*_chat(40), *tool_session(2, system=None)]
    done = _run(messages, None, Window(4000))
    assert done.state.checkpoint is not None
    broken = replace(done.state.checkpoint, cut_length=len(messages) - 1, kept=(80,))
    with pytest.raises(InvariantBroken, match="separated"):
        _decide(messages, None, Window(1_000_000), State(broken))


def test_what_a_record_covers_is_not_compacted_again() -> None:
    policy = CompactionPolicy(keep_turns=0, target=0.1, max_context_chars=8000)
    first = _run(_chat(10), policy, _HUGE, force=True)
    assert first.state.checkpoint is not None
    assert first.state.checkpoint.cut_length == 18
    again = _decide(_chat(10), policy, _HUGE, first.state, force=True)
    assert again.outlook.skipped == "not_enough_history"


def test_a_long_task_is_compacted_again_and_again_without_losing_the_task() -> None:
    policy, window = CompactionPolicy(), Window(16_000)
    state, cuts = State(), list[int]()
    for steps in range(1, 60):
        messages = tool_session(steps, result_chars=3000)
        request = to_request(messages)
        done = run(request, ask(request, policy, window), state)
        state = done.state
        assert done.final.outlook.after.tokens <= 14_000
        body = done.body or chat_body(messages)
        assert TASK.encode() in body
        assert marker(0, steps - 1).encode() in body
        if state.checkpoint and state.checkpoint.cut_length not in cuts:
            cuts.append(state.checkpoint.cut_length)
    assert len(cuts) >= 4
    assert cuts == sorted(cuts)


def test_a_chat_is_compacted_between_its_turns() -> None:
    messages = turn_session(8, result_chars=2000)
    done = _run(messages, CompactionPolicy(keep_turns=2, target=0.8), Window(10_000))
    items = done.request.transcript.items
    first = done.decisions[0]
    assert isinstance(first, Compact)
    assert items[first.cut.length].kind is Kind.USER
    assert isinstance(done.pieces[0], Carry)
    assert [kept.index for kept in done.pieces[0].onto] == [first.cut.length]
    text = done.body.decode()
    for turn in range(8):
        assert f"turn-0-{turn}-question" in text
        assert (f"turn-0-{turn}-answer" in text) is (turn >= 5)


def test_pinned_instructions_and_their_place_are_taken_from_the_record() -> None:
    messages = [system("s"), user("a"), developer("rule"), assistant("b"), *_chat(60), user("c")]
    done = _run(messages, None, Window(4000))
    assert done.state.checkpoint is not None
    assert done.state.checkpoint.front == (1,)
    roles = [loads(raw) for raw in raw_messages(done.body)[:2]]
    assert roles == [system("s"), developer("rule")]


def _one_big_result(chars: int) -> list[JsonObject]:
    return [user("look"), assistant(None, [call("1", "read", "{}")]), result("1", prose(chars))]


def test_a_result_too_large_for_the_window_is_clipped() -> None:
    decision = _decide(_one_big_result(40_000), None, Window(4000))
    assert isinstance(decision, Substitute)
    assert decision.outlook.skipped == "not_enough_history"
    assert {i: c.caps for i, c in decision.clips.items()} == {2: Caps(text=8000)}
    assert decision.new_clips
    assert decision.outlook.after.chars == decision.outlook.before.chars - 32_000
    kept = [piece for piece in decision.pieces if isinstance(piece, Keep)]
    assert [piece.caps for piece in kept] == [Caps(), Caps(), Caps(8000)]


def test_clipping_that_neither_fits_nor_saves_a_tenth_is_not_done() -> None:
    messages = [user("word " * 400), *[user("word " * 40) for _ in range(80)]]
    decision = _decide(messages, None, Window(4000))
    assert isinstance(decision, Forward)
    assert decision.outlook.after == decision.outlook.before
    assert isinstance(_decide(messages, None, Window(5400)), Substitute)


def test_an_item_that_nobody_understands_does_not_stop_compaction() -> None:
    strange: JsonObject = {"role": "observer", "content": "?"}
    messages = [*_chat(3), strange, *_chat(60)]
    done = _run(messages, None, Window(4000))
    assert [type(decision) for decision in done.decisions] == [Compact, Substitute]
    assert loads(raw_messages(done.body)[1]) == strange
    assert problems(done.request, done.pieces, done.body) == []


def test_stored_clips_apply_and_are_tightened_never_undone() -> None:
    messages = _one_big_result(40_000)
    stored = State(clips={2: Clipped(Caps(4096), Size(4096, 1028))})
    same = _decide(messages, None, Window(1_000_000), stored)
    assert isinstance(same, Substitute)
    assert (same.new_clips, same.clips) == (False, stored.clips)
    tighter = _decide(messages, None, Window(1000), stored)
    assert isinstance(tighter, Substitute)
    assert tighter.new_clips
    assert tighter.clips[2].caps == Caps(2048)


def test_clipping_for_the_window_needs_room_for_the_transcript() -> None:
    messages = [system("rule " * 2400), *_one_big_result(40_000)]
    decision = _decide(messages, None, Window(4000))
    assert isinstance(decision, Forward)
    assert decision.outlook.skipped == "fixed_overhead"


def test_instructions_are_never_clipped() -> None:
    messages = [
        system("s " * 1500),
        user("look"),
        developer("d " * 3000),
        assistant(None, [call("1", "read", '{"path":"' + "p " * 2000 + '"}')]),
        result("1", "r " * 3000),
    ]
    policy = CompactionPolicy(auto=False, max_context_chars=10_600)
    decision = _decide(messages, policy)
    assert isinstance(decision, Substitute)
    assert {i: c.caps for i, c in decision.clips.items()} == {
        2: Caps(arguments=1024),
        3: Caps(text=512),
    }


def test_arguments_of_an_open_call_are_not_clipped() -> None:
    arguments = '{"text":"' + "p " * 20_000 + '"}'
    messages = [user("look"), assistant(None, [call("1", "write", arguments)])]
    policy = CompactionPolicy(max_context_chars=8000)
    assert isinstance(_decide(messages, policy), Refuse)
    decision = _decide([*messages, result("1", "ok")], policy)
    assert isinstance(decision, Substitute)
    assert decision.clips[1].caps == Caps(arguments=1024)


def test_the_hard_limit_refuses_only_without_a_window_or_when_it_was_set() -> None:
    messages = [user("x " * 100) for _ in range(50)]
    policy = CompactionPolicy(max_context_chars=8000)
    assert isinstance(_decide(messages, policy, Window()), Refuse)
    assert isinstance(_decide(messages, policy, Window(2_000_001)), Refuse)
    assert isinstance(_decide(messages, policy, Window(1_000_000)), Forward)
    explicit = replace(policy, hard_limit_explicit=True)
    assert isinstance(_decide(messages, explicit, Window(1_000_000)), Refuse)
    exact = replace(explicit, max_context_chars=10_000)
    assert isinstance(_decide(messages, exact, Window(1_000_000)), Forward)
    under = replace(explicit, max_context_chars=9_999)
    assert isinstance(_decide(messages, under, Window(1_000_000)), Refuse)


def test_the_floor_of_the_transcript_does_not_lift_the_hard_limit() -> None:
    messages = [system("s " * 3500), *[user("x " * 100) for _ in range(10)]]
    policy = CompactionPolicy(auto=False, max_context_chars=8000)
    decision = _decide(messages, policy)
    assert isinstance(decision, Refuse)
    assert (decision.new_clips, decision.outlook.after.chars) == (False, 9000)


_WORDS = (
    "Context budget exceeded (approximately 9000 characters of conversation; limit 8000). "
    "Automatic compaction {}. Shorten large tool outputs or instructions, start a new session, "
    "or raise limits.max_context_chars."
)


@pytest.mark.parametrize(
    ("auto", "attempt", "detail", "what"),
    [
        (True, Attempt("completed"), "", "ran but could not reduce it enough"),
        (True, Attempt("completed"), "not_enough_history", "ran but could not reduce it enough"),
        (True, Attempt(), "", "was skipped because there is no safe boundary to summarize"),
        (
            True,
            Attempt(),
            "no_safe_boundary",
            "was skipped because there is no safe boundary to summarize",
        ),
        (
            True,
            Attempt("skipped", "uncertain_tool_results"),
            "uncertain_tool_results",
            "was skipped because a tool result is uncertain",
        ),
        (True, Attempt("failed", "timeout"), "timeout", "failed (timeout)"),
        (True, Attempt(), "cooldown", "failed (cooldown)"),
        (False, Attempt(), "", "is disabled"),
        (False, Attempt("completed"), "", "is disabled"),
    ],
)
def test_the_words_of_a_refusal(auto: bool, attempt: Attempt, detail: str, what: str) -> None:
    assert refusal(9000, 8000, auto, attempt, detail) == _WORDS.format(what)


def _refused(decision: Decision) -> str:
    assert isinstance(decision, Refuse)
    return decision.message.partition("Automatic compaction ")[2].partition(". Shorten")[0]


def test_a_refusal_names_the_size_after_clipping() -> None:
    messages = [user("x " * 100) for _ in range(50)]
    messages[0] = user("x " * 10_000)
    decision = _decide(messages, CompactionPolicy(max_context_chars=8000))
    assert isinstance(decision, Refuse)
    assert decision.new_clips
    size = 49 * 200 + 1024
    assert decision.outlook.after.chars == size
    assert f"(approximately {size} characters of conversation; limit 8000)" in decision.message


def test_why_a_request_is_refused() -> None:
    users = [user("x " * 100) for _ in range(50)]
    small = CompactionPolicy(max_context_chars=8000)
    lost = [user("a"), assistant(None, [call("1", "x", "{}")]), *_chat(50), *tool_session(1)[1:]]
    nowhere = "was skipped because there is no safe boundary to summarize"
    assert _refused(_decide(users, small)) == nowhere
    assert _refused(_decide(users, replace(small, auto=False))) == "is disabled"
    assert _refused(_decide(lost, small)) == "was skipped because a tool result is uncertain"
    failed = Attempt("failed", "timeout", by_budget=True)
    assert _refused(_decide(users, small, attempt=failed)) == "failed (timeout)"
    done = Attempt("completed", by_budget=True)
    assert _refused(_decide(users, small, attempt=done)) == "ran but could not reduce it enough"
    cooling = State(cooling=True)
    question = replace(ask(to_request(_chat(50)), small), may_extract=False)
    assert _refused(plan(question, cooling)) == "failed (cooldown)"
    assert isinstance(_decide(_chat(50), small, state=cooling), Compact)


def test_over_the_hard_limit_one_compaction_by_budget_is_tried() -> None:
    messages = _chat(50)
    small = CompactionPolicy(max_context_chars=8000)
    skipped = _decide(messages, small, attempt=Attempt("skipped", "no_gain"))
    assert isinstance(skipped, Compact)
    assert skipped.reason == "budget"
    tried = _decide(messages, small, attempt=Attempt("failed", "timeout", by_budget=True))
    assert _refused(tried) == "failed (timeout)"
    last = to_request(messages).transcript.items[-1].digest
    assert isinstance(
        _decide(messages, small, state=State(budget_tried=last), attempt=Attempt("skipped")), Refuse
    )


@pytest.mark.parametrize(("failure", "extract"), [("", False), ("timeout", True)])
def test_after_a_failure_the_budget_is_tried_without_the_summariser(
    failure: str, extract: bool
) -> None:
    """It would be waited for twice as long otherwise."""
    small = CompactionPolicy(max_context_chars=8000)
    decision = _decide(_chat(50), small, attempt=Attempt("completed", failure))
    assert isinstance(decision, Compact)
    assert (decision.reason, decision.extractive_only) == ("budget", extract)


def test_a_compaction_by_budget_asks_for_no_new_history() -> None:
    messages = _chat(50)
    small = CompactionPolicy(max_context_chars=8000)
    decision = _decide(messages, small, state=State(attempted=_frontier(messages)))
    assert isinstance(decision, Compact)
    assert decision.reason == "budget"
    assert decision.cut.length == len(messages) - 2


def test_a_compaction_by_budget_that_is_not_enough_is_refused() -> None:
    messages = [*_chat(5), *[user("x " * 100) for _ in range(50)]]
    done = _run(messages, CompactionPolicy(max_context_chars=8000))
    assert [type(decision) for decision in done.decisions] == [Compact, Refuse]
    assert _refused(done.final) == "ran but could not reduce it enough"


def test_the_record_counts_in_what_is_measured() -> None:
    done = _run(_chat(80), None, Window(4000))
    assert isinstance(done.final, Substitute)
    assert done.state.checkpoint is not None
    record = done.state.checkpoint
    kept = total(done.request.transcript.items[record.cut_length :])
    assert done.final.outlook.after == kept + Size(record.chars, exact_tokens(record.rendered))


def test_items_are_decoded_again_only_when_something_is_clipped() -> None:
    seen: list[int] = []

    def read(item: Item) -> Content:
        seen.append(item.chars)
        return DIALECT.read(item)

    small, large = to_request(_chat(5)), to_request(_one_big_result(40_000))
    assert isinstance(plan(replace(ask(small), read=read), State()), Forward)
    assert seen == []
    assert isinstance(plan(replace(ask(large, None, Window(4000)), read=read), State()), Substitute)
    assert seen == [40_000]
