"""Legal cuts, turns, and calls that wait for their results."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.codec import JsonObject
from proxy.compaction import cutpoints
from proxy.compaction.cutpoints import Turn
from proxy.transcript import Item, Kind
from tests.builders import assistant, call, developer, result, user
from tests.strategies import call_pairs, conversations, to_transcript


def _items(*messages: JsonObject) -> tuple[Item, ...]:
    return to_transcript(messages).items


def _calls(*ids: str) -> JsonObject:
    return assistant(None, [call(id, "read_file", "{}") for id in ids])


@given(conversations(odd=True, max_chars=40))
def test_a_cut_is_legal_exactly_when_no_call_is_open_there(messages: list[JsonObject]) -> None:
    items = to_transcript(messages).items
    pairs = call_pairs(items)
    expected = [
        cut
        for cut in range(len(items) + 1)
        if not any(asked < cut and (answer is None or answer >= cut) for asked, answer in pairs)
    ]
    assert [*cutpoints.legal_cuts(items)] == expected


@given(conversations(odd=True, max_chars=40))
def test_only_calls_without_a_result_outside_the_last_group_are_uncertain(
    messages: list[JsonObject],
) -> None:
    items = to_transcript(messages).items
    last = max((index for index, item in enumerate(items) if item.calls), default=-1)
    open_calls = [asked for asked, answer in call_pairs(items) if answer is None and asked != last]
    assert cutpoints.unanswered_call(items) == min(open_calls, default=None)


def test_results_of_parallel_calls_stay_together() -> None:
    items = _items(user("a"), _calls("1", "2"), result("2", "x"), result("1", "y"), user("b"))
    assert cutpoints.legal_cuts(items) == (0, 1, 4, 5)


def test_one_id_used_twice_needs_two_results() -> None:
    items = _items(user("a"), _calls("1", "1"), result("1", "x"), result("1", "y"), user("b"))
    assert cutpoints.legal_cuts(items) == (0, 1, 4, 5)


def test_nothing_after_a_call_that_is_never_answered_is_legal() -> None:
    items = _items(user("a"), _calls("1"), user("b"), assistant("c"), user("d"))
    assert cutpoints.legal_cuts(items) == (0, 1)


def test_a_result_without_a_call_binds_nothing() -> None:
    items = _items(user("a"), result("nobody", "x"), assistant("b"), user("c"))
    assert cutpoints.legal_cuts(items) == (0, 1, 2, 3, 4)


def test_an_id_that_is_used_again_is_a_new_call() -> None:
    items = _items(user("a"), _calls("1"), result("1", "x"), _calls("1"), user("b"))
    assert cutpoints.legal_cuts(items) == (0, 1, 3)
    assert cutpoints.unanswered_call(items) is None
    assert cutpoints.unanswered_call(_items(_calls("1"), user("b"), _calls("2"))) == 0


def test_an_item_that_answers_only_part_of_its_group_is_uncertain() -> None:
    group = [_calls("1", "2"), result("1", "x")]
    assert cutpoints.unanswered_call(_items(*group, user("b"), _calls("3"))) == 0
    assert cutpoints.unanswered_call(_items(*group)) is None


@given(conversations(odd=True, max_chars=40))
def test_turns_cover_everything_and_begin_with_users(messages: list[JsonObject]) -> None:
    items = to_transcript(messages).items
    turns = cutpoints.turns(items)
    assert [index for turn in turns for index in range(turn.start, turn.end)] == [
        *range(len(items))
    ]
    for number, turn in enumerate(turns):
        kinds = [items[index].kind for index in range(turn.start, turn.end)]
        users = turn.body - turn.start
        assert users or number == 0
        assert kinds[:users] == [Kind.USER] * users
        assert Kind.USER not in kinds[users:]


def test_adjacent_user_messages_start_one_turn() -> None:
    items = _items(user("a"), user("b"), assistant("c"), user("d"))
    assert cutpoints.turns(items) == (Turn(0, 2, 3), Turn(3, 4, 4))


def test_what_precedes_the_first_user_message_is_a_turn_without_one() -> None:
    items = _items(assistant("hello"), user("a"))
    assert cutpoints.turns(items) == (Turn(0, 0, 1), Turn(1, 2, 2))
    assert cutpoints.open_user_run(_items(assistant("hello"))) == range(0)


def test_turn_cuts_are_the_legal_starts_of_turns_newest_first() -> None:
    items = _items(
        user("a"), assistant("1"), user("b"), _calls("1"), user("c"), result("1", "x"), user("d")
    )
    assert cutpoints.turn_cuts(items, cutpoints.legal_cuts(items)) == (6, 2)


def test_split_cuts_begin_with_model_output_inside_the_open_turn() -> None:
    steps = [_calls("1"), result("1", "x"), developer("note"), _calls("2"), result("2", "y")]
    items = _items(user("old"), assistant("done"), user("new"), *steps, assistant("so"))
    assert cutpoints.split_cuts(items, cutpoints.legal_cuts(items)) == (6,)
    assert cutpoints.split_cuts(items[:3], (0, 2, 3)) == ()
    assert cutpoints.open_user_run(items) == range(2, 3)


@given(conversations(odd=True, max_chars=40))
def test_split_cuts_keep_the_last_group_and_replace_part_of_the_turn(
    messages: list[JsonObject],
) -> None:
    items = to_transcript(messages).items
    legal = cutpoints.legal_cuts(items)
    last = max((index for index, item in enumerate(items) if item.calls), default=-1)
    for cut in cutpoints.split_cuts(items, legal):
        assert cut in legal
        assert items[cut].kind is Kind.ASSISTANT
        assert cutpoints.open_user_run(items).stop < cut < len(items)
        if last >= cutpoints.open_user_run(items).stop:
            assert cut <= last


def test_without_calls_a_turn_may_be_cut_in_front_of_any_answer() -> None:
    items = _items(user("a"), assistant("b"), developer("note"), assistant("c"), assistant("d"))
    assert cutpoints.split_cuts(items, cutpoints.legal_cuts(items)) == (3, 4)


@given(conversations(odd=True, max_chars=40), st.data())
def test_legal_cuts_of_a_prefix_stay_legal(messages: list[JsonObject], data: st.DataObject) -> None:
    items = to_transcript(messages).items
    length = data.draw(st.integers(0, len(items)))
    shorter = cutpoints.legal_cuts(items[:length])
    longer = cutpoints.legal_cuts(items)
    assert [cut for cut in longer if cut <= length] == [*shorter]


def test_the_frontier_is_the_last_cut_that_leaves_an_item() -> None:
    assert cutpoints.frontier((0, 2, 5), 5) == 2
    assert cutpoints.frontier((0, 2, 5), 6) == 5
    assert cutpoints.frontier((0,), 0) == 0


# --- reasoning goes with what it led to; detached calls bind nothing ---

_SHAPES = {
    "u": Item(Kind.USER, "user", b"", 0, 0),
    "a": Item(Kind.ASSISTANT, "assistant", b"", 0, 0),
    "o": Item(Kind.OPAQUE, "other", b"", 0, 0),
    "s": Item(Kind.INSTRUCTION, "system", b"", 0, 0),
    "r": Item(Kind.ASSISTANT, "model", b"", 0, 0, leads=True),
    "c": Item(Kind.ASSISTANT, "model", b"", 0, 0, calls=("1",)),
    "d": Item(Kind.ASSISTANT, "model", b"", 0, 0, calls=("2",), detached=True),
    "1": Item(Kind.RESULT, "tool", b"", 0, 0, answers="1"),
    "2": Item(Kind.RESULT, "tool", b"", 0, 0, answers="2"),
}


def _shaped(shape: str) -> list[Item]:
    return [_SHAPES[sign] for sign in shape]


@pytest.mark.parametrize(
    ("shape", "cuts"),
    [
        ("urau", (0, 1, 3, 4)),
        ("urrau", (0, 1, 4, 5)),
        ("uraau", (0, 1, 4, 5)),
        ("urarau", (0, 1, 3, 5, 6)),
        ("urc1au", (0, 1, 4, 5, 6)),
        ("urac1u", (0, 1, 5, 6)),
        ("uroau", (0, 1, 4, 5)),
        ("urc1oau", (0, 1, 4, 5, 6, 7)),
        ("uruau", (0, 1, 2, 3, 4, 5)),
        ("ursau", (0, 1, 2, 3, 4, 5)),
        ("ur", (0, 1, 2)),
        ("udau", (0, 1, 2, 3, 4)),
        ("udu2u", (0, 1, 2, 3, 4, 5)),
        ("urdau", (0, 1, 4, 5)),
        ("ucd1u2u", (0, 1, 4, 5, 6, 7)),
    ],
)
def test_a_cut_never_falls_between_reasoning_and_what_it_led_to(
    shape: str, cuts: tuple[int, ...]
) -> None:
    assert cutpoints.legal_cuts(_shaped(shape)) == cuts


@given(st.text(st.sampled_from("uaosrcd12"), max_size=14), st.data())
def test_legal_cuts_inside_a_prefix_stay_legal(shape: str, data: st.DataObject) -> None:
    items = _shaped(shape)
    length = data.draw(st.integers(0, len(items)))
    shorter = [cut for cut in cutpoints.legal_cuts(items[:length]) if cut < length]
    assert [cut for cut in cutpoints.legal_cuts(items) if cut < length] == shorter


def test_runs_begin_with_reasoning_and_end_before_what_is_not_the_models() -> None:
    runs = cutpoints.led_runs(_shaped("uarrac1oraou"))
    assert runs == [None, None, 2, 2, 2, 2, None, None, 8, 8, 8, None]
    assert [n for n in range(12) if cutpoints.goes_on(runs, n)] == [2, 3, 4, 8, 9]


def test_each_result_answers_the_newest_open_call_of_its_id() -> None:
    assert cutpoints.answered_calls(_shaped("uc1cd21")) == [(1, 2), (4, 5), (3, 6)]
    assert cutpoints.answered_calls(_shaped("1c")) == []


def test_detached_calls_are_open_until_they_are_answered_and_never_uncertain() -> None:
    assert cutpoints.open_detached(_shaped("uduc1u")) == [1]
    assert cutpoints.open_detached(_shaped("udud2")) == [1]
    assert cutpoints.open_detached(_shaped("ud2")) == []
    assert cutpoints.unanswered_call(_shaped("uduc1u")) is None
    assert cutpoints.unanswered_call(_shaped("ucudu")) == 1


def test_calls_with_reasoning_between_them_are_one_group() -> None:
    assert cutpoints.unanswered_call(_shaped("urcrc")) is None
    assert cutpoints.unanswered_call(_shaped("urc1rcurc1")) == 5
