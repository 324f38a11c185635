"""How a compacted request is laid out, and what the validator refuses."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import codec
from proxy.codec import JsonObject
from proxy.compaction import cutpoints
from proxy.compaction.layout import (
    Cut,
    arrange,
    kept_of,
    pin,
    size_of_layout,
    validate,
    whole,
)
from proxy.dialects.writing import SYSTEM_SAID
from proxy.errors import InvariantBroken
from proxy.transcript import Caps, Carry, Item, Keep, Kind, Piece, Size, Transcript
from tests import items as b
from tests import response_strategies
from tests.builders import assistant, call, developer, result, system, text_part, user
from tests.response_strategies import inputs
from tests.strategies import (
    IMAGE,
    conversations,
    problems,
    raw_messages,
    rewrite,
    to_request,
    to_transcript,
)

OPAQUE: JsonObject = {"role": "observer", "content": "who knows"}
TRIGGER = 10_000


def _calls(*ids: str) -> JsonObject:
    return assistant(None, [call(id, "read_file", "{}") for id in ids])


def _outline(pieces: Sequence[Piece]) -> list[object]:
    """Indexes of kept items; a carrier is the list of what it is merged onto."""
    return [p.index if isinstance(p, Keep) else [k.index for k in p.onto] for p in pieces]


def _cuts(messages: Sequence[JsonObject], trigger: int = TRIGGER) -> list[Cut]:
    items = to_transcript(messages).items
    legal = cutpoints.legal_cuts(items)
    run = [*cutpoints.open_user_run(items)]
    by_turn = [pin(items, cut, (), trigger) for cut in cutpoints.turn_cuts(items, legal)]
    return by_turn + [pin(items, cut, run, trigger) for cut in cutpoints.split_cuts(items, legal)]


@given(conversations(odd=True, max_chars=300), st.sampled_from([400, TRIGGER]))
def test_every_cut_that_passes_the_validator_keeps_all_rules(
    messages: list[JsonObject], trigger: int
) -> None:
    request = to_request(messages)
    for cut in _cuts(messages, trigger):
        pieces = arrange(request.transcript.items, cut, "RECORD")
        try:
            validate(request.transcript, pieces)
        except InvariantBroken:
            continue
        assert problems(request, pieces, rewrite(request, pieces)) == []


@given(conversations(max_chars=300))
def test_every_cut_of_a_well_formed_conversation_is_valid(messages: list[JsonObject]) -> None:
    request = to_request(messages)
    for cut in _cuts(messages):
        validate(request.transcript, arrange(request.transcript.items, cut, "RECORD"))


@given(conversations(odd=True, max_chars=300))
def test_each_item_is_replaced_or_kept_never_both(messages: list[JsonObject]) -> None:
    items = to_transcript(messages).items
    for cut in _cuts(messages):
        stay = [kept.index for kept in kept_of(arrange(items, cut, "RECORD"))]
        assert sorted([*cut.replaced(), *stay]) == [*range(len(items))]


@given(conversations(odd=True, max_chars=300))
def test_a_request_without_checkpoint_is_laid_out_as_it_came(messages: list[JsonObject]) -> None:
    request = to_request(messages)
    pieces = whole(request.transcript.items)
    validate(request.transcript, pieces)
    assert raw_messages(rewrite(request, pieces)) == [
        item.raw for item in (*request.transcript.instructions, *request.transcript.items)
    ]


def test_a_cut_between_turns_puts_the_record_in_front_of_the_next_user_message() -> None:
    request = to_request([system("s"), user("a"), assistant("b"), user("c"), assistant("d")])
    pieces = arrange(request.transcript.items, Cut(2), "RECORD ")
    assert _outline(pieces) == [[2], 3]
    assert raw_messages(rewrite(request, pieces)) == [
        b'{"role":"system","content":"s"}',
        b'{"role":"user","content":"RECORD c"}',
        b'{"role":"assistant","content":"d"}',
    ]


def test_a_user_message_of_parts_gets_the_record_as_one_more_part() -> None:
    request = to_request([user("a"), assistant("b"), user([text_part("c"), IMAGE])])
    raws = raw_messages(rewrite(request, arrange(request.transcript.items, Cut(2), "RECORD")))
    carried = to_request([user([text_part("RECORD"), text_part("c"), IMAGE])])
    assert raws == [carried.transcript.items[0].raw]


def test_a_cut_through_a_turn_keeps_its_user_messages_in_front() -> None:
    messages = [user("a"), assistant("b"), user("c"), user("d")]
    steps = [_calls("1"), result("1", "x"), _calls("2"), result("2", "y")]
    items = to_transcript([*messages, *steps]).items
    assert _outline(arrange(items, pin(items, 6, (2, 3), TRIGGER), "R")) == [[2], 3, 6, 7]


def test_a_record_that_no_user_message_follows_is_a_message_of_its_own() -> None:
    items = to_transcript([assistant("a"), _calls("1"), result("1", "x"), assistant("b")]).items
    pieces = arrange(items, Cut(1), "R")
    assert _outline(pieces) == [[], 1, 2, 3]
    assert pieces[0] == Carry("R", ())


def test_a_branch_that_goes_on_with_a_user_message_is_joined_to_the_kept_one() -> None:
    request = to_request([user("a"), _calls("1"), result("1", "x"), user("b")])
    pieces = arrange(request.transcript.items, Cut(3, (0,)), "R ")
    validate(request.transcript, pieces)
    assert _outline(pieces) == [[0, 3]]
    assert raw_messages(rewrite(request, pieces)) == [b'{"role":"user","content":"R a\\n\\nb"}']


def test_pinned_system_items_stand_first_and_other_pins_behind_the_carrier() -> None:
    messages = [user("a"), developer("rule"), OPAQUE, assistant("b"), user("c"), assistant("d")]
    items = to_transcript(messages).items
    cut = pin(items, 4, (), TRIGGER)
    assert cut == Cut(4, (), (1,), (2,))
    pieces = arrange(items, cut, "R")
    validate(to_transcript(messages), pieces)
    assert _outline(pieces) == [1, [], 2, 4, 5]
    # So that the last message stays the last one.
    assert _outline(arrange(items[:5], cut, "R")) == [1, [], 2, 4]
    assert cut.replaced() == (0, 3)


def test_system_items_beyond_a_tenth_of_the_trigger_are_replaced_oldest_first() -> None:
    note = developer("x " * 100)
    items = to_transcript([user("a"), note, note, note, user("b")]).items
    assert items[1].tokens == 54
    assert pin(items, 4, (), 1080).front == (2, 3)
    assert pin(items, 4, (), 1079).front == (3,)
    assert pin(items, 4, (), 539).front == ()


def test_images_of_the_open_turn_stay_with_their_whole_group_as_far_as_they_fit() -> None:
    def shot(id: str) -> list[JsonObject]:
        return [_calls(id), result(id, [text_part("shot"), IMAGE])]

    messages = [user("a"), *shot("1"), _calls("2"), result("2", "x"), *shot("3"), _calls("4")]
    items = to_transcript(messages).items
    group = items[1].tokens + items[2].tokens
    assert pin(items, 7, (0,), 8 * group).pinned == (1, 2, 5, 6)
    assert pin(items, 7, (0,), 8 * group - 4).pinned == (5, 6)
    assert pin(items, 7, (), 8 * group).pinned == ()


def test_a_system_item_behind_an_image_group_is_pinned_once() -> None:
    messages = [
        user("a"),
        _calls("1"),
        result("1", [text_part("shot"), IMAGE]),
        developer("rule"),
        _calls("2"),
        result("2", "x"),
    ]
    transcript = to_transcript(messages)
    cut = pin(transcript.items, 4, (0,), TRIGGER)
    assert (cut.front, cut.pinned) == ((3,), (1, 2))


def test_clip_caps_reach_the_pieces_they_belong_to() -> None:
    items = to_transcript([user("a"), assistant("b"), user("c"), assistant("d")]).items
    caps = {2: Caps(text=512), 3: Caps(text=1024)}
    assert [k.caps for k in kept_of(arrange(items, Cut(2), "R", caps))] == [caps[2], caps[3]]
    assert [k.caps for k in kept_of(whole(items, caps))] == [Caps(), Caps(), caps[2], caps[3]]


def test_a_cut_that_keeps_nothing_is_refused() -> None:
    items = to_transcript([user("a"), assistant("b")]).items
    with pytest.raises(InvariantBroken, match="nothing is kept"):
        arrange(items, Cut(2), "R")


def test_size_of_a_layout_counts_record_clips_and_one_message_more() -> None:
    items = to_transcript([assistant("a" * 40), user("b" * 40), assistant("c" * 80)]).items
    assert [item.tokens for item in items] == [14, 14, 24]
    record = Size(400, 100)
    merged = arrange(items, Cut(1), "R")
    assert size_of_layout(merged, record, {}) == Size(400 + 120, 100 + 38)
    assert size_of_layout(merged, record, {1: Size(4, 5)}) == Size(400 + 84, 100 + 29)
    own = arrange(items, Cut(2), "R")
    assert size_of_layout(own, record, {2: Size(4, 5)}) == Size(404, 100 + 5 + 4)
    assert size_of_layout(whole(items), Size(), {}) == Size(160, 52)


_MESSAGES = [
    user("a"),
    _calls("1"),
    result("1", "x"),
    assistant("b"),
    developer("note"),
    user("c"),
    assistant("d"),
    user("e"),
]


@pytest.mark.parametrize(
    ("indexes", "rule"),
    [
        ([0, 1, 2, 3, 4, 5, 6], "last message"),
        ([], "last message"),
        ([0, 2, 1, 3, 4, 5, 6, 7], "order"),
        ([0, 0, 3, 5, 6, 7], "order"),
        ([4, 4, 5, 6, 7], "order"),
        ([0, 1, 3, 5, 6, 7], "separated"),
        ([0, 2, 3, 5, 6, 7], "separated"),
        ([3, 4, 5, 6, 7], "first message"),
        ([0, 5, 6, 7], "neighbours"),
        ([0, 3, 6, 7], "neighbours"),
    ],
)
def test_the_validator_names_the_broken_rule(indexes: list[int], rule: str) -> None:
    transcript = to_transcript(_MESSAGES)
    pieces = [Keep(transcript.items[index], index) for index in indexes]
    with pytest.raises(InvariantBroken, match=rule):
        validate(transcript, pieces)


def test_the_validator_refuses_a_record_next_to_a_user_message() -> None:
    transcript = to_transcript(_MESSAGES)
    kept = Keep(transcript.items[7], 7)
    with pytest.raises(InvariantBroken, match="neighbours"):
        validate(transcript, [Carry("R"), kept])
    validate(transcript, [Carry("R", (kept,))])


def test_the_validator_accepts_what_the_client_itself_sent() -> None:
    messages = [assistant("hi"), assistant("there"), user("a"), user("b"), system("s"), user("c")]
    transcript = to_transcript(messages)
    validate(transcript, whole(transcript.items))


def test_a_message_of_errors_never_quotes_content() -> None:
    transcript = to_transcript([user("SECRET"), assistant("SECRET")])
    with pytest.raises(InvariantBroken) as caught:
        validate(transcript, [Keep(transcript.items[0], 0)])
    assert "SECRET" not in str(caught.value)


# --- reasoning, and calls that nobody waits for ---

_SHAPES = {
    "u": Item(Kind.USER, "user", b"", 0, 1),
    "a": Item(Kind.ASSISTANT, "assistant", b"", 0, 1),
    "o": Item(Kind.OPAQUE, "other", b"", 0, 1),
    "r": Item(Kind.ASSISTANT, "model", b"", 0, 1, leads=True),
    "c": Item(Kind.ASSISTANT, "model", b"", 0, 1, calls=("1",)),
    "d": Item(Kind.ASSISTANT, "model", b"", 0, 1, calls=("2",), detached=True),
    "1": Item(Kind.RESULT, "tool", b"", 0, 1, answers="1"),
    "i": Item(Kind.RESULT, "tool", b"", 0, 1, answers="1", has_image=True),
    "2": Item(Kind.RESULT, "tool", b"", 0, 1, answers="2"),
}


def _shaped(shape: str) -> list[Item]:
    return [_SHAPES[sign] for sign in shape]


@pytest.mark.parametrize(
    ("shape", "length", "kept", "pinned"),
    [
        # What cannot be interpreted keeps the reasoning in front of it,
        ("urouau", 3, (), (1, 2)),
        ("urrouau", 4, (), (1, 2, 3)),
        # and what was said and called between, with the results,
        ("uraouau", 4, (), (1, 2, 3)),
        ("urco1uau", 5, (), (1, 2, 3, 4)),
        # but neither what followed, nor another run.
        ("uroac1uau", 6, (), (1, 2)),
        ("urc1rouau", 6, (), (4, 5)),
        ("uaouau", 3, (), (2,)),
        # An open call stays that nobody waits for, and what led to it.
        ("urdauau", 4, (), (1, 2)),
        ("urda2uau", 5, (), ()),
        ("urdau2au", 4, (), (1, 2)),
        # Images keep their group, reasoning included.
        ("urcirc1rc1", 7, (0,), (1, 2, 3)),
        ("urciarc1", 5, (0,), (1, 2, 3)),
    ],
)
def test_what_is_pinned_keeps_what_it_cannot_be_without(
    shape: str, length: int, kept: tuple[int, ...], pinned: tuple[int, ...]
) -> None:
    items = _shaped(shape)
    cut = pin(items, length, kept, TRIGGER)
    assert cut.pinned == pinned
    validate(Transcript((), tuple(items)), arrange(items, cut, "R"))


def test_what_was_said_before_the_kept_users_stays_before_them() -> None:
    items = _shaped("urouaurc1rc1")
    by_turn = arrange(items, pin(items, 3, (), TRIGGER), "R")
    assert _outline(by_turn) == [[], 1, 2, 3, *range(4, 12)]
    through = arrange(items, pin(items, 9, (5,), TRIGGER), "R")
    assert _outline(through) == [[], 1, 2, 5, 9, 10, 11]
    both = arrange(_shaped("urouuoau"), Cut(6, (3, 4), (), (1, 2, 5)), "R")
    assert _outline(both) == [[], 1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("shape", "stay"), [("urau", (0, 1, 3)), ("urau", (0, 2, 3)), ("uraau", (0, 3, 4))]
)
def test_the_validator_refuses_reasoning_apart_from_what_it_led_to(
    shape: str, stay: tuple[int, ...]
) -> None:
    items = _shaped(shape)
    with pytest.raises(InvariantBroken, match="reasoning"):
        validate(Transcript((), tuple(items)), [Keep(items[index], index) for index in stay])


def test_the_validator_allows_the_end_of_a_run_to_go() -> None:
    items = _shaped("uracu")
    validate(Transcript((), tuple(items)), [Keep(items[index], index) for index in (0, 1, 2, 4)])


# For strict templates, where nothing may stand beside the record.


def _spoken(raws: Sequence[bytes]) -> list[str]:
    """Roles of what templates see, the leading system messages aside."""
    roles = [str(_loaded(raw).get("role", "")) for raw in raws]
    while roles and roles[0] in {"system", "developer"}:
        del roles[0]
    return roles


def _loaded(raw: bytes) -> JsonObject:
    value = codec.loads(raw)
    assert isinstance(value, dict)
    return value


@given(conversations(max_chars=300), st.sampled_from([400, TRIGGER]))
def test_joined_nothing_stands_beside_the_record(messages: list[JsonObject], trigger: int) -> None:
    request = to_request(messages)
    items = request.transcript.items
    head = len(request.transcript.instructions)
    for cut in _cuts(messages, trigger):
        pieces = arrange(items, cut, "RECORD", joined=True)
        validate(request.transcript, pieces)
        assert problems(request, pieces, rewrite(request, pieces)) == []
        raws = raw_messages(rewrite(request, pieces))[head:]
        # Nothing but the record and what it stands with comes before the conversation.
        assert _loaded(raws[0])["role"] == "user"
        assert "RECORD" in str(_loaded(raws[0])["content"])
        assert _spoken(raws)[1:2] != ["user"]
        kept = [k.index for k in kept_of(pieces)]
        assert sorted([*cut.replaced(), *kept]) == [*range(len(items))]


@given(inputs(max_chars=300), st.sampled_from([400, TRIGGER]))
def test_joined_items_of_the_other_api_follow_the_same_rules(
    items: list[JsonObject], trigger: int
) -> None:
    request = response_strategies.to_request(items)
    listed = request.transcript.items
    legal = cutpoints.legal_cuts(listed)
    run = [*cutpoints.open_user_run(listed)]
    cuts = [pin(listed, cut, (), trigger) for cut in cutpoints.turn_cuts(listed, legal)]
    cuts += [pin(listed, cut, run, trigger) for cut in cutpoints.split_cuts(listed, legal)]
    for cut in cuts:
        pieces = arrange(listed, cut, "RECORD", joined=True)
        try:
            validate(request.transcript, arrange(listed, cut, "RECORD"))
        except InvariantBroken:
            continue
        validate(request.transcript, pieces)
        carrier = next(n for n, p in enumerate(pieces) if isinstance(p, Carry))
        assert all(p.item.kind is Kind.OPAQUE for p in pieces[:carrier] if isinstance(p, Keep))
        if carrier + 1 < len(pieces):
            after = pieces[carrier + 1]
            assert isinstance(after, Keep)
            assert after.item.kind is not Kind.USER


def test_joined_a_system_message_is_told_in_front_of_what_the_user_says() -> None:
    request = to_request(
        [
            system("s"),
            user("a"),
            system("answer in French"),
            assistant("b"),
            user("c"),
            user([text_part("d"), text_part("e")]),
            assistant("f"),
        ]
    )
    cut = pin(request.transcript.items, 3, (), TRIGGER)
    assert cut.front == (1,)
    pieces = arrange(request.transcript.items, cut, "RECORD\n\n", joined=True)
    assert _outline(pieces) == [[1, 3, 4], 5]
    carrier = _loaded(raw_messages(rewrite(request, pieces))[1])
    assert carrier == user(f"RECORD\n\n{SYSTEM_SAID}\nanswer in French\n\nc\n\nd\n\ne")


def test_joined_a_record_of_its_own_tells_the_system_message_too() -> None:
    request = to_request([assistant("a"), system("rule"), _calls("1"), result("1", "x")])
    cut = Cut(2, front=(1,))
    pieces = arrange(request.transcript.items, cut, "RECORD\n\n", joined=True)
    carrier = _loaded(raw_messages(rewrite(request, pieces))[0])
    assert carrier == user(f"RECORD\n\n{SYSTEM_SAID}\nrule")


def test_joined_what_nobody_said_stands_in_front_of_the_record() -> None:
    items = response_strategies.to_request(
        [b.user("a"), *b.DEFINITIONS, b.answer("b"), b.user("c")]
    ).transcript.items
    length = len(items) - 1
    cut = pin(items, length, (), TRIGGER)
    assert cut.pinned
    apart = arrange(items, cut, "R")
    joined = arrange(items, cut, "R", joined=True)
    assert _outline(apart) == [[], *cut.pinned, length]
    assert _outline(joined) == [*cut.pinned, [length]]
