"""One item: what is read from it, and which spellings are the same conversation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.compaction import measure
from proxy.dialects import continuations, response_items
from proxy.transcript import Binary, Call, Content, Kind
from tests import builders
from tests import items as b
from tests.response_strategies import DIALECT, ORIGIN, Items, to_transcript


def read(item: Json) -> Content:
    return response_items.decode(codec.dumps(item)).content


def name_of(items: Items) -> bytes:
    """The name of a whole conversation."""
    return to_transcript([b.easy("user", "go"), *items]).items[-1].digest


KINDS: dict[str, tuple[JsonObject, Kind, str]] = {
    "user": (b.easy("user", "x"), Kind.USER, "user"),
    "typed user": (b.message("user", "x"), Kind.USER, "user"),
    "type null": ({"type": None, "role": "user", "content": "x"}, Kind.USER, "user"),
    "system": (b.message("system", "x"), Kind.INSTRUCTION, "system"),
    "developer": (b.easy("developer", "x"), Kind.INSTRUCTION, "developer"),
    "assistant": (b.easy("assistant", "x"), Kind.ASSISTANT, "assistant"),
    "output message": (b.answer("x"), Kind.ASSISTANT, "assistant"),
    "reasoning": (b.reasoning("1", "x", 0), Kind.ASSISTANT, "model"),
    "output without a call": (b.output(None, "x"), Kind.RESULT, "tool"),
    **{f"{k} call": (b.pair(k, "c", "x", "y")[0], Kind.ASSISTANT, "model") for k in b.PAIRS},
    **{f"{k} output": (b.pair(k, "c", "x", "y")[1], Kind.RESULT, "tool") for k in b.PAIRS},
    "program": (b.program("p", [], "x")[0], Kind.ASSISTANT, "model"),
    "program output": (b.program("p", [], "x")[1], Kind.RESULT, "tool"),
    "approval request": (b.approval("a", approve=True)[0], Kind.ASSISTANT, "model"),
    "approval response": (b.approval("a", approve=True)[1], Kind.RESULT, "tool"),
    **{str(i["type"]): (i, Kind.ASSISTANT, "model") for i in b.self_contained("x")},
    **{str(i["type"]): (i, Kind.ASSISTANT, "model") for i in b.COMPACTIONS},
    **{
        str(i["type"]): (i, Kind.OPAQUE, str(i["type"]))
        for i in (*b.DEFINITIONS, *b.UNKNOWN, *b.tool_search("t"), b.TRIGGER, b.REFERENCE)
    },
}


@pytest.mark.parametrize("row", KINDS)
def test_every_type_of_item_has_its_kind(row: str) -> None:
    item, kind, role = KINDS[row]
    content = read(item)
    assert (content.kind, content.role) == (kind, role)


@pytest.mark.parametrize("kind", b.PAIRS)
def test_calls_and_outputs_of_every_kind_pair(kind: str) -> None:
    asked, answered = (read(item) for item in b.pair(kind, "c1", "given", "result"))
    (call,) = asked.calls
    assert (call.id, answered.answers) == ("c1", "c1")
    assert call.name
    assert "given" in call.arguments
    assert answered.text == ("" if kind == "computer" else "result")
    assert not asked.detached


def test_what_a_call_says() -> None:
    assert read(b.call("c", "f", '{"a": 1}')).calls == (Call("c", "f", '{"a": 1}'),)
    assert read(b.pair("custom", "c", "ls -l", "")[0]).calls == (Call("c", "sh", "ls -l"),)
    action: JsonObject = {"type": "click"}
    actions: JsonObject = {"type": "computer_call", "call_id": "c", "actions": [action]}
    assert read(actions).calls == (Call("c", "computer", '[{"type":"click"}]'),)
    assert read({**b.call("c", "f"), "arguments": None}).calls == (Call("c", "f", ""),)
    shell: JsonObject = {"type": "local_shell_call", "id": "lsh_1", "action": {}}
    assert read(shell).calls == (Call("lsh_1", "local_shell", "{}"),)


def test_a_program_holds_its_calls_and_shows_its_code() -> None:
    start, *_, end = (read(item) for item in b.program("p", b.pair("function", "c", "", ""), "r"))
    assert start.calls == (Call("p", "program", ""),)
    assert start.notes == "await tools.read_file()"
    assert (end.answers, end.text) == ("p", "r")


def test_only_calls_that_nobody_waits_for_are_detached() -> None:
    later: JsonObject = {**b.call("c"), "async": True}
    assert read(later).detached
    assert not read({**b.call("c"), "async": False}).detached
    assert not read({**later, "caller": {"type": "program", "caller_id": "p"}}).detached
    assert [read(item).detached for item in b.tool_search("t")] == [True, False]
    request, allowed, done = (read(item) for item in b.approval("a", approve=True))
    assert (request.detached, allowed.detached, done.detached) == (True, True, False)
    refused = read(b.approval("a", approve=False)[1])
    assert (refused.calls, refused.notes) == ((), "not allowed")
    assert (allowed.notes, allowed.calls[0].id) == ("allowed", done.answers)
    assert (request.calls[0].id, allowed.answers) == ("a", "a")
    assert read(b.mcp_call("x")).answers is None


def test_streams_of_a_shell_are_its_text() -> None:
    one: JsonObject = {"stdout": "out", "stderr": "err", "outcome": {"type": "timeout"}}
    two: JsonObject = {"stdout": "", "stderr": None}
    item: JsonObject = {"type": "shell_call_output", "call_id": "c", "output": [one, two]}
    assert read(item).texts == ("out", "err")
    assert read(item).notes == "exit code 124"
    assert read({**item, "output": "plain"}).texts == ("plain",)
    assert read({**item, "output": [two]}).notes == ""
    ended: list[Json] = [{"outcome": {"type": "exit", "exit_code": code}} for code in (0, 3, 0)]
    assert read({**item, "output": ended}).notes == "exit code 3"


def test_reasoning_leads_and_its_seal_has_a_price_of_its_own() -> None:
    content = read({**b.reasoning("1", "short", 300), "content": [b.text_part("long")]})
    assert (content.reasoning, content.leads, content.texts) == ("short\nlong", True, ())
    assert content.binaries == (Binary("sealed", size_bytes=300),)
    assert read(b.reasoning()).leads
    assert read(b.COMPACTIONS[0]).binaries == (Binary("sealed", size_bytes=150),)


def test_what_the_server_did_is_noted() -> None:
    notes = [read(item).notes for item in b.self_contained("found it")]
    assert notes == [
        '{"type":"search","query":"x"}',
        '["x"]\n[{"file_id":"f","text":"found it"}]',
        '1\n[{"type":"logs","logs":"found it"}]',
        "",
        'search\n{"q": "x"}\nfound it',
    ]
    (image,) = read(b.self_contained("")[3]).binaries
    assert (image.kind, image.width, image.height) == ("image", 280, 140)


def test_parts_of_every_kind() -> None:
    pdf = builders.data_url(b"%PDF", "application/pdf")
    parts: Items = [
        b.text_part("one"),
        b.image_part(builders.data_url(builders.png(40, 30)), detail="low"),
        {"type": "input_image", "file_id": "file_1"},
        {"type": "input_image", "image_url": {"url": builders.data_url(builders.png(50, 30))}},
        {"type": "input_file", "file_data": pdf, "filename": "a.pdf"},
        {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
        {"type": "refusal", "refusal": "two"},
    ]
    content = read(b.easy("user", parts))
    assert content.texts == ("one", "two")
    low, by_id, nested, file, audio = content.binaries
    assert (low.width, low.height, low.low_detail) == (40, 30, True)
    assert (by_id.kind, by_id.width) == ("image", 0)
    assert nested.width == 50
    assert (file.kind, file.media_type) == ("file", "application/pdf")
    assert audio == Binary("audio", "wav", size_bytes=3)


def test_a_screenshot_is_an_image_of_a_result() -> None:
    item = to_transcript([b.easy("user", "go"), *b.pair("computer", "c", "x", "")]).items[-1]
    assert item.has_image
    assert item.tokens == measure.image_tokens(280, 140) + measure.MESSAGE_OVERHEAD_TOKENS


OPAQUE: dict[str, Json] = {
    "a number": 5,
    "null": None,
    "a string": "x",
    "a list": [1],
    "no role": {"content": "x"},
    "an unknown role": {"role": "observer", "content": "x"},
    "a role of a wrong type": {"role": 5, "content": "x"},
    "a type of a wrong type": {"type": 5, "role": "user", "content": "x"},
    "content a number": {"role": "user", "content": 5},
    "content an object": {"role": "user", "content": {"type": "input_text", "text": "x"}},
    "a part that is no object": {"role": "user", "content": ["x"]},
    "a call without an id": {"type": "function_call", "name": "f", "arguments": "{}"},
    "a call with a numeric id": {"type": "function_call", "call_id": 7, "name": "f"},
    "a custom output without an id": {"type": "custom_tool_call_output", "output": "x"},
    "an output that is a number": {"type": "function_call_output", "call_id": "c", "output": 5},
    "an output of loose text": {"type": "function_call_output", "call_id": "c", "output": ["x"]},
    "high effort": {"type": "configuration_update", "reasoning": {"effort": "high"}},
    "low effort": {"type": "configuration_update", "reasoning": {"effort": "low"}},
    "a reference": {"type": "item_reference", "id": "msg_1"},
    "another reference": {"type": "item_reference", "id": "msg_2"},
    "a phase of an unknown type": {"type": "other", "phase": "x"},
    "an unknown type": {"type": "other"},
}


@pytest.mark.parametrize("shape", OPAQUE)
def test_a_shape_that_cannot_be_interpreted_is_opaque(shape: str) -> None:
    content = read(OPAQUE[shape])
    assert content.kind is Kind.OPAQUE
    assert content.role
    assert content.extra == codec.dumps(OPAQUE[shape]).decode()
    assert (content.texts, content.answers) == ((), None)


def test_opaque_items_are_kept_apart() -> None:
    names: dict[bytes, list[str]] = {}
    for row, item in OPAQUE.items():
        body = codec.dumps({"input": [item, b.easy("user", "go")]})
        request = DIALECT.parse(body, ORIGIN)
        assert request is not None
        names.setdefault(request.transcript.items[0].digest, []).append(row)
    assert [rows for rows in names.values() if len(rows) > 1] == []


def test_references_and_messages_may_leave_out_their_type() -> None:
    assert response_items.item_type({"id": "msg_1"}) == continuations.REFERENCE
    assert response_items.item_type({"id": "msg_1", "role": "user"}) == "message"
    assert response_items.item_type({"id": "msg_1", "type": "reasoning"}) == "reasoning"
    assert response_items.item_type({"content": "x"}) == "message"


CALL = b.call("c", "f", '{"b": 1.0, "a": "é"}')
JOINED: dict[str, tuple[Items, Items]] = {
    "id of an item": ([CALL], [{**CALL, "id": "fc_other"}]),
    "status": ([CALL], [{**CALL, "status": "in_progress"}]),
    "nulls": ([CALL], [{**CALL, "caller": None, "namespace": None, "async": None}]),
    "arguments": ([CALL], [{**CALL, "arguments": '{"a":"\\u00e9","b":1}'}]),
    "id of a call": (
        [CALL, b.output("c", "x")],
        [{**CALL, "call_id": "d"}, b.output("d", "x")],
    ),
    "output in parts": (
        [CALL, b.output("c", "x")],
        [CALL, b.output("c", [b.text_part("x")])],
    ),
    "message as text": ([b.answer("  x ")], [b.easy("assistant", "x")]),
    "phase": ([b.answer("x")], [b.answer("x", phase="commentary")]),
    "annotations": ([b.answer("x")], [b.message("assistant", "x")]),
    "developer": ([b.easy("developer", "x")], [b.message("system", "x")]),
    "reasoning": ([b.reasoning("1", "x", 3)], [b.reasoning("2", "", 0)]),
    "id of an approval": (
        b.approval("a", approve=True),
        b.approval("b", approve=True),
    ),
    "arguments of MCP": (
        [b.mcp_call("x")],
        [{**b.mcp_call("x"), "arguments": '{"q":"x"}'}],
    ),
    "detail of an image": (
        [b.easy("user", [b.IMAGE])],
        [b.easy("user", [{**b.IMAGE, "detail": "low"}])],
    ),
    "id of a definition": ([b.DEFINITIONS[2]], [{**b.DEFINITIONS[2], "id": "mcpl_2"}]),
}


@pytest.mark.parametrize("row", JOINED)
def test_known_client_changes_keep_the_name(row: str) -> None:
    one, two = JOINED[row]
    assert one != two
    assert name_of(one) == name_of(two)


def _apart() -> dict[str, Items]:
    rows: dict[str, Items] = {
        "text": [b.answer("x")],
        "another text": [b.answer("y")],
        "of the user": [b.message("user", "x")],
        "another argument": [b.call("c", "f", '{"b":2}')],
        "another name": [b.call("c", "g", '{"b":2}')],
        "a namespace": [b.call("c", "g", '{"b":2}', namespace="n")],
        "not JSON": [b.call("c", "g", '{"b":')],
        "output": [CALL, b.output("c", "x")],
        "another output": [CALL, b.output("c", "y")],
        "output of no call": [CALL, b.output("d", "x")],
        "output of no call at all": [CALL, b.output(None, "x")],
        "allowed": b.approval("a", approve=True)[:2],
        "not allowed": b.approval("a", approve=False),
        "allowed and done": b.approval("a", approve=True),
        "done without asking": [*b.approval("a", approve=True)[:2], b.mcp_call("done")],
        "image": [b.easy("user", [b.IMAGE])],
        "image nested": [
            b.easy("user", [{"type": "input_image", "image_url": {"url": "http://a"}}])
        ],
        "image nested, other": [
            b.easy("user", [{"type": "input_image", "image_url": {"url": "http://b"}}])
        ],
        "image by id": [b.easy("user", [{"type": "input_image", "file_id": "f"}])],
        "file by id": [b.easy("user", [{"type": "input_file", "file_id": "f"}])],
        "program": b.program("p", [], "x"),
        "another result": b.program("p", [], "y"),
        "two results swapped": [
            *(b.call(i) for i in "12"),
            b.output("1", "x"),
            b.output("2", "y"),
        ],
        "two results": [*(b.call(i) for i in "12"), b.output("2", "x"), b.output("1", "y")],
    }
    for text in "xy":
        for kind in b.PAIRS:
            rows[f"{kind} {text}"] = [b.pair(kind, "c", text, "same")[0]]
            if kind != "computer":
                rows[f"{kind} output {text}"] = [*b.pair(kind, "c", "same", text)]
        for item in b.self_contained(text):
            if item["type"] not in {"web_search_call", "image_generation_call"}:
                rows[f"{item['type']} {text}"] = [item]
    for item in (*b.COMPACTIONS, *b.DEFINITIONS, *b.UNKNOWN, *b.tool_search("t"), b.reasoning()):
        rows[str(item["type"])] = [item]
    return rows


def test_everything_else_keeps_conversations_apart() -> None:
    rows: dict[bytes, list[str]] = {}
    for row, items in _apart().items():
        rows.setdefault(name_of(items), []).append(row)
    assert [same for same in rows.values() if len(same) > 1] == []


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "text", "x", "data:,x"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["type", "text", "id", "image_url", "url", "stdout", "input_audio"]),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)
_TYPES = sorted({codec.as_text(item.get("type")) for item, _, _ in KINDS.values()})
_FIELDS = (
    *("content", "role", "call_id", "id", "output", "arguments", "action", "operation", "summary"),
    *("result", "reason", "approve", "approval_request_id", "encrypted_content", "name", "input"),
)


@given(st.sampled_from(_TYPES) | _VALUES, st.dictionaries(st.sampled_from(_FIELDS), _VALUES))
def test_no_shape_of_an_item_raises(type_: Json, fields: JsonObject) -> None:
    raw = codec.dumps({"type": type_, **fields})
    message = response_items.decode(raw)
    assert response_items.canonical(message, 1) == response_items.canonical(message, 1)
    measure.size_of(message.content)
    request = DIALECT.parse(b'{"input":[' + raw + b"]}", ORIGIN)
    assert request is not None
    kept = (*request.transcript.instructions, *request.transcript.items)
    assert [item.raw for item in kept] == [raw]
