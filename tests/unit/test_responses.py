"""Responses bodies through the pure floor: read, compacted, written back."""

from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.compaction import cutpoints, fingerprint
from proxy.compaction.choice import why_none
from proxy.compaction.layout import arrange, pin, validate
from proxy.compaction.measure import size_of
from proxy.compaction.plan import Compact, Substitute
from proxy.compaction.policy import CompactionPolicy, Window
from proxy.dialects import bodies
from proxy.dialects.bodies import ParsedRequest
from proxy.dialects.memo import PrefixMemo
from proxy.dialects.responses import Responses
from proxy.errors import InvariantBroken
from proxy.transcript import Caps, Carry, Content, Keep, Kind, Piece, total
from tests import builders
from tests import items as b
from tests.response_strategies import (
    ANNOTATORS,
    DIALECT,
    ORIGIN,
    Items,
    continuations,
    inputs,
    problems,
    raw_items,
    run,
    to_request,
    to_transcript,
)
from tests.strategies import policies, rewrite, windows

_ANY = st.tuples(st.booleans(), st.sampled_from([600, 2500, 9000])).flatmap(
    lambda drawn: inputs(odd=drawn[0], max_chars=drawn[1])
)
_ROOMY = CompactionPolicy(max_context_chars=10**9)
_HUGE = Window(2_000_000)


# --- the rules of the design ---


@given(_ANY, policies(), windows(), st.booleans())
def test_every_rewritten_request_keeps_all_rules(
    items: Items, policy: CompactionPolicy, window: Window, force: bool
) -> None:
    done = run(items, policy, window, force=force)
    event(" > ".join(type(decision).__name__ for decision in done.decisions))
    assert not isinstance(done.final, Compact)
    if isinstance(done.final, Substitute):
        assert problems(done.request, done.pieces, done.body) == []


@given(_ANY, policies(), windows(), st.booleans())
def test_the_announced_size_is_the_size_that_leaves(
    items: Items, policy: CompactionPolicy, window: Window, force: bool
) -> None:
    done = run(items, policy, window, force=force)
    if not isinstance(done.final, Substitute):
        return
    sent = DIALECT.parse(done.body, ORIGIN)
    assert sent is not None
    size = total(sent.transcript.instructions) + total(sent.transcript.items)
    assert size.chars == done.final.outlook.after.chars
    announced, most = done.final.outlook.after.tokens, 2 + len(done.state.clips)
    assert 0.8 * announced - most <= size.tokens <= 1.2 * announced + most


@given(_ANY, policies(), windows(), st.booleans())
def test_asking_again_with_what_was_stored_changes_nothing(
    items: Items, policy: CompactionPolicy, window: Window, force: bool
) -> None:
    first = run(items, policy, window, force=force)
    if isinstance(first.final, Substitute):
        again = run(items, policy, window, state=first.state)
        assert [type(decision) for decision in again.decisions] == [Substitute]
        assert again.body == first.body


@given(st.data(), _ANY, policies(), windows())
def test_a_rewritten_prefix_stays_byte_identical_as_the_conversation_goes_on(
    data: st.DataObject, items: Items, policy: CompactionPolicy, window: Window
) -> None:
    first = run(items, policy, window, force=True)
    if not isinstance(first.final, Substitute):
        return
    longer = [*items, *data.draw(continuations(items))]
    later = run(longer, _ROOMY, _HUGE, state=first.state)
    assert isinstance(later.final, Substitute)
    before, after = raw_items(first.body), raw_items(later.body)
    assert after[: len(before)] == before
    assert after[len(before) :] == raw_items(b.body(longer[len(items) :]))
    assert problems(later.request, later.pieces, later.body) == []


@given(st.booleans().flatmap(lambda odd: inputs(odd=odd, max_chars=200)))
def test_every_legal_cut_keeps_all_rules(items: Items) -> None:
    request = to_request(items)
    held = request.transcript.items
    users = tuple(cutpoints.open_user_run(held))
    for length in cutpoints.legal_cuts(held):
        if length == len(held):
            continue
        kept = users if users and users[-1] < length else ()
        pieces = arrange(held, pin(held, length, kept, 10_000), "RECORD")
        objection = _objection(request, pieces)
        event(f"objection: {objection}")
        # Nothing else may be wrong with a legal cut.
        assert objection in {
            "",
            "two messages of one role became neighbours",
            "the first message is not a user message",
        }
        if not objection:
            assert problems(request, pieces, rewrite(request, pieces, DIALECT)) == []


def _objection(request: ParsedRequest, pieces: Sequence[Piece]) -> str:
    try:
        validate(request.transcript, pieces)
    except InvariantBroken as error:
        return str(error)
    return ""


@given(st.booleans().flatmap(lambda odd: inputs(odd=odd, max_chars=200)))
def test_what_is_kept_whole_is_read_again_as_it_was(items: Items) -> None:
    request = to_request(items)
    pieces = [Keep(item, n) for n, item in enumerate(request.transcript.items)]
    again = DIALECT.parse(rewrite(request, pieces, DIALECT), ORIGIN)
    assert again is not None
    assert again.transcript == request.transcript
    assert raw_items(rewrite(request, pieces, DIALECT)) == [codec.dumps(item) for item in items]


@given(inputs(max_chars=600), windows())
def test_a_trigger_of_the_upstreams_own_compaction_stays_the_last_item(
    items: Items, window: Window
) -> None:
    done = run([*items, b.TRIGGER], None, window, force=True)
    if isinstance(done.final, Substitute):
        assert raw_items(done.body)[-1] == codec.dumps(b.TRIGGER)
        assert problems(done.request, done.pieces, done.body) == []


_BOTH: Items = [b.output("c", "x"), b.output("d", "x")]


@pytest.mark.parametrize(
    "said",
    [
        [b.reasoning(), b.call("c"), b.output("c", "x")],
        [b.reasoning(), b.answer("x"), b.call("c"), b.output("c", "x")],
        [b.call("c"), b.call("d"), *_BOTH],
        [b.reasoning(), b.call("c"), b.reasoning("2"), b.call("d"), *_BOTH],
    ],
)
def test_nothing_stands_before_what_the_model_gave_out_at_once(said: Items) -> None:
    """However many items that are, there is not enough history to cut."""
    assert why_none(to_transcript([b.easy("user", "go"), *said]), 0) == "not_enough_history"


def test_a_program_is_never_cut_through() -> None:
    inner = [*b.pair("function", "n1", "a", "x"), *b.pair("function", "n2", "a", "y")]
    items = to_transcript(
        [b.easy("user", "go"), *b.program("p", inner, "z"), b.answer("done")]
    ).items
    assert cutpoints.legal_cuts(items) == (0, 1, 7, 8)


# --- names of conversations ---


@given(inputs(odd=True, max_chars=200), st.data())
def test_what_follows_never_changes_the_name_of_a_prefix(items: Items, data: st.DataObject) -> None:
    length = data.draw(st.integers(0, len(items)))
    long, short = to_transcript(items), to_transcript(items[:length])
    assert long.items[: len(short.items)] == short.items
    assert len({item.digest for item in long.items}) == len(long.items)


def _without_ids(item: JsonObject) -> JsonObject:
    bound = item.get("type") in {"mcp_approval_request", "local_shell_call_output"}
    return item if bound else {k: v for k, v in item.items() if k != "id"}


def _respelled(item: JsonObject) -> JsonObject:
    if item.get("type") != "function_call":
        return item
    try:
        value = codec.loads(codec.as_text(item.get("arguments")))
    except codec.MalformedJson:
        return item
    if isinstance(value, dict):
        value = dict(reversed(value.items()))
    return {**item, "arguments": " " + codec.dumps(value).decode().replace('":"', '": "')}


def _in_parts(item: JsonObject) -> JsonObject:
    content = item.get("content")
    if item.get("role") == "observer" or not isinstance(content, str):
        return item
    half = len(content) // 2
    parts: list[Json] = [b.text_part(content[:half]), b.text_part(content[half:])]
    return {**item, "type": "message", "content": parts}


def _as_plain_text(item: JsonObject) -> JsonObject:
    content = item.get("content")
    parts = codec.as_objects(content)
    if len(parts) != 1 or "text" not in parts[0]:
        return item
    return {"role": item["role"], "content": parts[0]["text"], "x_extra": item.get("x_extra")}


def _thoughtless(item: JsonObject) -> JsonObject:
    if item.get("type") != "reasoning":
        return item
    summary: list[Json] = []
    return {"type": "reasoning", "summary": summary, "encrypted_content": None}


def _with_nulls(item: JsonObject) -> JsonObject:
    more: JsonObject = {"caller": None, "namespace": None, "async": None, "status": "completed"}
    return {**more, **item}


def _renamed(item: JsonObject) -> JsonObject:
    keys = [
        key
        for key in ("call_id", "approval_request_id")
        if isinstance(item.get(key), str) and not codec.as_text(item.get("type")).startswith("tool")
    ]
    if item.get("type") in {"mcp_approval_request", "local_shell_call_output"}:
        keys.append("id")
    return {**item, **{key: f"x{item[key]}" for key in keys}}


@pytest.mark.parametrize(
    "change",
    [_without_ids, _respelled, _in_parts, _as_plain_text, _thoughtless, _with_nulls, _renamed],
)
@given(items=inputs(max_chars=200))
def test_known_client_changes_keep_the_name(
    change: Callable[[JsonObject], JsonObject], items: Items
) -> None:
    before = [item.digest for item in to_transcript(items).items]
    after = [item.digest for item in to_transcript([change(item) for item in items]).items]
    assert after == before


@given(inputs(max_chars=200), inputs(max_chars=200))
def test_two_lists_that_say_something_else_have_different_names(one: Items, two: Items) -> None:
    names = [[item.digest for item in to_transcript(items).items] for items in (one, two)]
    if names[0] == names[1]:
        assert _said(one) == _said(two)


def _said(items: Items) -> list[list[str]]:
    held = [DIALECT.read(item) for item in to_transcript(items).items]
    return [[c.text.strip(), c.notes, *(call.name for call in c.calls)] for c in held]


# --- measuring ---


@given(inputs(odd=True, max_chars=300))
def test_a_list_measures_what_its_items_measure(items: Items) -> None:
    whole = to_transcript(items)
    alone = [to_transcript([item]) for item in items]
    parts = [part for one in alone for part in (*one.instructions, *one.items)]
    assert total((*whole.instructions, *whole.items)) == total(parts)


def test_the_instructions_are_measured_and_stay_where_they_are() -> None:
    text = "Zeile\n修复 " * 50
    request = to_request([b.easy("user", "hi")], instructions=text)
    (outside,) = request.transcript.instructions
    expected = size_of(Content("system", Kind.INSTRUCTION, (text,)))
    assert (outside.chars, outside.tokens) == (expected.chars, expected.tokens)
    kept = [Keep(item, n) for n, item in enumerate(request.transcript.items)]
    written = rewrite(request, [Carry("RECORD "), *kept], DIALECT)
    assert codec.split_object(written)["instructions"] == codec.dumps(text)
    assert len(raw_items(written)) == 2


def test_the_leading_prompt_is_read_from_both_places() -> None:
    request = to_request([b.easy("system", "one"), b.easy("user", "hi")], instructions="two")
    assert DIALECT.prompt_texts(request) == ["two", "one"]
    assert DIALECT.prompt_texts(to_request([b.easy("user", "hi")], instructions=None)) == []
    assert DIALECT.prompt_texts(to_request([b.easy("user", "hi")], instructions=["x"])) == ['["x"]']


@pytest.mark.parametrize("instructions", [None, ""])
def test_no_instructions_are_none(instructions: Json) -> None:
    assert to_request([b.TRIGGER], instructions=instructions).transcript.instructions == ()


def test_escaped_instructions_cost_what_plain_ones_cost() -> None:
    plain = '{"instructions":"修复","input":[]}'.encode()
    escaped = b'{"instructions":"\\u4fee\\u590d","input":[]}'
    sizes = [DIALECT.parse(body, ORIGIN) for body in (plain, escaped)]
    assert sizes[0] is not None
    assert sizes[1] is not None
    assert sizes[0].transcript.instructions == sizes[1].transcript.instructions


def test_the_instructions_count_for_what_is_said_at_a_glance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "MIN_BODY_BYTES", 0)
    warm = Responses(ANNOTATORS, PrefixMemo(1 << 20))
    fields: JsonObject = {"model": "m", "instructions": "rule " * 4000}

    def body(*items: JsonObject) -> bytes:
        return codec.dumps({**fields, "input": [*items]})

    first, second = b.easy("user", "one"), b.easy("user", "two")
    request = warm.parse(body(first), ORIGIN)
    assert request is not None
    known = warm.recall(body(first, second), ORIGIN)
    assert known is not None
    glance = warm.glance(body(first, second), known)
    assert glance is not None
    assert glance.tokens >= total(request.transcript.instructions).tokens > 4000


# --- the body ---


def test_a_text_stands_for_one_user_message() -> None:
    request = to_request("fix the 😀 import")
    (item,) = request.transcript.items
    assert item.digest == to_transcript([b.easy("user", "fix the 😀 import")]).items[0].digest
    clipped = rewrite(request, [Keep(item, 0, Caps(text=512))], DIALECT)
    assert [codec.loads(raw) for raw in raw_items(clipped)] == [b.easy("user", "fix the 😀 import")]


def test_an_unpaired_surrogate_stays_as_it_was_written() -> None:
    body = b'{"model":"m","input":"cut \\ud83d","user":"\\udc00"}'
    request = DIALECT.parse(body, ORIGIN)
    assert request is not None
    assert request.transcript.items[0].raw == b'{"role":"user","content":"cut \\ud83d"}'
    listed = b'{"input":[{"role":"user","content":"\\ud83d"}],"user":"\\udc00"}'
    request = DIALECT.parse(listed, ORIGIN)
    assert request is not None
    assert rewrite(request, [Keep(request.transcript.items[0], 0)], DIALECT) == listed


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{}", b'{"input":null}', b'{"input":5}', b'{"input":{}}', b'{"input":[}'],
)
def test_another_shape_is_no_request(body: bytes) -> None:
    assert DIALECT.parse(body, ORIGIN) is None


def test_the_members_are_read() -> None:
    tools: list[Json] = [{"type": "function", "name": "f"}]
    request = to_request([b.easy("user", "hi")], stream=True, tools=tools, max_output_tokens=7)
    assert (request.model, request.stream, request.continues) == ("test-model", True, None)
    assert (request.transcript.requested_output, request.output_field) == (7, "max_output_tokens")
    assert request.transcript.catalogue.chars == len(codec.dumps(tools))


@pytest.mark.parametrize(
    ("fields", "items", "continues"),
    [
        ({}, [b.easy("user", "hi")], None),
        ({"previous_response_id": "resp_1"}, [b.easy("user", "hi")], ("resp_1", (), False)),
        ({"previous_response_id": None, "conversation": None}, [b.easy("user", "hi")], None),
        ({"previous_response_id": ""}, [b.easy("user", "hi")], None),
        ({"previous_response_id": 7}, [b.easy("user", "hi")], ("", (), True)),
        ({"conversation": "conv_1"}, [b.easy("user", "hi")], ("", (), True)),
        ({"conversation": {"id": "conv_1"}}, [b.easy("user", "hi")], ("", (), True)),
        ({"prompt": {"id": "pmpt_1"}}, [b.easy("user", "hi")], ("", (), True)),
        ({}, [b.easy("user", "hi"), b.REFERENCE], ("", ("msg_123",), False)),
        ({}, [{"id": "msg_1"}], ("", ("msg_1",), False)),
        ({}, [{"id": "msg_1", "type": None}], ("", ("msg_1",), False)),
        ({}, [{"id": "msg_1", "role": "item_reference", "content": "x"}], None),
        ({}, [{"id": "msg_1", "type": "reasoning", "summary": []}], None),
        (
            {"previous_response_id": "resp_1", "prompt": {"id": "pmpt_1"}},
            [{"id": "a"}, b.easy("user", "hi"), {"id": "b"}],
            ("resp_1", ("a", "b"), True),
        ),
    ],
)
def test_what_a_request_leaves_to_a_memory(
    fields: JsonObject, items: Items, continues: tuple[str, tuple[str, ...], bool] | None
) -> None:
    found = to_request(items, **fields).continues
    told = found and (found.previous, found.references, found.elsewhere)
    assert told == continues


@pytest.mark.parametrize(
    ("fields", "stored"), [({}, True), ({"store": True}, True), ({"store": False}, False)]
)
def test_a_response_is_stored_unless_the_request_says_otherwise(
    fields: JsonObject, stored: bool
) -> None:
    assert to_request([b.easy("user", "hi")], **fields).stored is stored


# --- calls that are answered by another id, late or never ---


def _shell(output_id: str) -> Items:
    first, second = b.pair("local_shell", "call_1", "ls", "a.py")
    return [b.easy("user", "go"), first, {**second, "id": output_id}, b.answer("done")]


def test_a_local_shell_output_names_its_call_by_either_id() -> None:
    by_call, by_item = (to_transcript(_shell(id)).items for id in ("call_1", "item_call_1"))
    assert [item.answers for item in by_item] == [None, None, "call_1", None]
    assert [item.digest for item in by_call] == [item.digest for item in by_item]
    assert cutpoints.legal_cuts(by_item) == (0, 1, 3, 4)
    assert to_transcript(_shell("nobody")).items[2].answers == "nobody"


def test_an_approval_goes_with_the_call_that_it_allowed() -> None:
    items = to_transcript([b.easy("user", "go"), *b.approval("a", approve=True), b.answer("done")])
    held = items.items
    # The answer may be the last that the client knows of, so a cut may fall behind it.
    assert pin(held, 3, (), 10_000).pinned == (1, 2)
    assert pin(held, 4, (), 10_000).pinned == ()
    refused = to_transcript([b.easy("user", "go"), *b.approval("a", approve=False)]).items
    assert pin(refused, 3, (), 10_000).pinned == ()
    assert pin(refused, 2, (), 10_000).pinned == (1,)


def _turns(count: int) -> Items:
    return [
        item
        for n in range(count)
        for item in (b.easy("user", f"q{n} " + "x " * 100), b.answer("y " * 100))
    ]


def test_an_asynchronous_call_without_an_output_is_pinned_and_blocks_nothing() -> None:
    later: JsonObject = {**b.call("late", "build"), "async": True}
    items = [
        *_turns(2),
        b.easy("user", "go"),
        b.reasoning(),
        later,
        b.answer("started"),
        *_turns(40),
    ]
    done = run(items, None, Window(4000))
    first = done.decisions[0]
    assert isinstance(first, Compact)
    assert first.cut.pinned == (5, 6)
    record, thought, call = (codec.loads(raw) for raw in raw_items(done.body)[:3])
    assert isinstance(record, dict)
    assert record["role"] == "user"
    assert [thought, call] == [b.reasoning(), later]

    answered = [*items, b.output("late", "built"), b.answer("It is built.")]
    again = run(answered, None, _HUGE, state=done.state)
    assert isinstance(again.final, Substitute)
    assert problems(again.request, again.pieces, again.body) == []
    over = run([*answered, *_turns(60)], None, Window(4000))
    last = over.decisions[0]
    assert isinstance(last, Compact)
    assert last.cut.pinned == ()


# --- the memo changes nothing but the time ---


@pytest.fixture
def small_bodies() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "MIN_BODY_BYTES", 0)
        yield


def _same(left: ParsedRequest | None, right: ParsedRequest | None) -> bool:
    if left is None or right is None:
        return left is right
    pieces: list[Piece] = [Keep(item, n) for n, item in enumerate(left.transcript.items)]
    return (
        left.transcript == right.transcript
        and (left.model, left.continues, left.stored)
        == (right.model, right.continues, right.stored)
        and rewrite(left, pieces, DIALECT) == rewrite(right, pieces, DIALECT)
    )


@pytest.mark.usefixtures("small_bodies")
@given(inputs(odd=True, max_chars=100), st.data(), st.sampled_from([900, 20_000, 1 << 20]))
def test_warm_and_cold_agree_through_growth_and_branches(
    items: Items, data: st.DataObject, limit: int
) -> None:
    warm = Responses(ANNOTATORS, PrefixMemo(limit))
    lengths = data.draw(st.lists(st.integers(0, len(items)), min_size=2, max_size=5))
    for length in lengths:
        branch = [*items[:length], b.easy("user", f"branch {length % 2}")]
        tail: JsonObject = {"previous_response_id": "resp_1"} if length % 3 == 2 else {}
        body = b.body(branch, **{"instructions": "Be brief.", **tail})
        for _ in range(2):
            assert _same(warm.parse(body, ORIGIN), DIALECT.parse(body, ORIGIN))


def test_tenants_and_dialects_share_nothing() -> None:
    origins = [fingerprint.origin(t, d) for t in ("a", "b") for d in ("chat", "responses")]
    body = b.body(builders.TASK)
    requests = [DIALECT.parse(body, origin) for origin in origins]
    assert len({r.transcript.anchor for r in requests if r is not None}) == 4
