"""Single items, written back: what must differ and nothing else."""

import pytest

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.compaction.clip import MARKER, Clippable, clip, clip_arguments, clip_text, clip_texts
from proxy.compaction.measure import size_of
from proxy.dialects.response_items import decode
from proxy.dialects.response_writer import ItemWriter
from proxy.transcript import Caps, Carry, Item, Keep, Kind
from tests import items as b

WRITER = ItemWriter(clip_texts, clip_arguments)


def keep(item: JsonObject | bytes, index: int = 0, caps: Caps | None = None) -> Keep:
    raw = item if isinstance(item, bytes) else codec.dumps(item)
    content = decode(raw).content
    return Keep(Item(content.kind, content.role, raw, 0, 0), index, caps or Caps())


def written(piece: Keep | Carry) -> JsonObject:
    value = codec.loads(WRITER.write(piece))
    assert isinstance(value, dict)
    return value


def test_a_whole_item_is_the_bytes_that_came() -> None:
    raw = b'{ "role":"user",  "content" : "caf\\u00e9", "weight": 1.0 }'
    assert WRITER.write(keep(raw)) == raw


def test_a_clipped_item_keeps_its_other_members_byte_for_byte() -> None:
    text = "x" * 1000
    raw = b'{"type":"function_call_output","call_id":"a","x":1e5,"output":"%s"}' % text.encode()
    out = WRITER.write(keep(raw, caps=Caps(512)))
    assert b'"x":1e5' in out
    short = text[: 512 - len(MARKER)] + MARKER
    assert codec.loads(out) == {**b.output("a", short), "x": 1e5}


def test_a_record_without_a_user_message_is_one_of_its_own() -> None:
    assert written(Carry("record")) == b.message("user", "record")


def test_a_record_stands_in_front_of_the_users_text() -> None:
    message = b.easy("user", "go on", x_extra=1)
    assert written(Carry("R ", (keep(message),))) == {**message, "content": "R go on"}
    parts: list[Json] = [b.text_part("R "), b.text_part("see"), b.IMAGE]
    typed = b.easy("user", [b.text_part("see"), b.IMAGE], type="message", id="msg_1")
    assert written(Carry("R ", (keep(typed),))) == {**typed, "content": parts}
    nothing: JsonObject = {"role": "user", "content": None}
    assert written(Carry("R ", (keep(nothing),))) == b.easy("user", [b.text_part("R ")])


def test_two_user_messages_become_one_with_all_their_parts() -> None:
    first, second = keep(b.easy("user", [b.IMAGE]), 0), keep(b.easy("user", "and now?"), 5)
    parts: list[Json] = [b.text_part("R"), b.IMAGE, b.text_part("and now?")]
    assert written(Carry("R", (first, second))) == {"role": "user", "content": parts}
    texts = (keep(b.easy("user", "one")), keep(b.easy("user", "two", name="bo")))
    assert written(Carry("R ", texts)) == b.easy("user", "R one\n\ntwo", name="bo")


def test_what_must_be_written_anew_is_mended() -> None:
    raw = b'{"role":"user","content":"%b\\ud83d","x":"\\ud83d"}' % (b"a" * 900)
    for piece in (keep(raw, caps=Caps(512)), Carry("R", (keep(raw),))):
        assert written(piece)["x"] == "\ufffd"


def test_clipped_streams_stay_where_they_are() -> None:
    one: JsonObject = {"stdout": "o" * 400, "stderr": "", "outcome": {"type": "timeout"}}
    two: JsonObject = {"stdout": "p" * 900, "stderr": "e" * 300}
    item: JsonObject = {"type": "shell_call_output", "call_id": "c", "output": [one, two]}
    short = "p" * (512 - 400 - len(MARKER)) + MARKER
    cut: list[Json] = [one, {"stdout": short, "stderr": ""}]
    assert written(keep(item, caps=Caps(512))) == {**item, "output": cut}


def test_clipped_arguments_stay_what_they_were() -> None:
    long, short = "z" * 900, clip_text("z" * 900, 256)
    for kind in ("function", "shell", "local_shell", "apply_patch", "computer"):
        before, after = (b.pair(kind, "c", text, "")[0] for text in (long, short))
        assert written(keep(before, caps=Caps(None, 256))) == after
    custom = b.pair("custom", "c", long, "")[0]
    assert written(keep(custom, caps=Caps(None, 256))) == custom


def test_a_program_and_an_opaque_item_stay_whole() -> None:
    for item in (b.program("p", [], "")[0], b.UNKNOWN[0], b.reasoning("1", "x" * 900, 675)):
        assert written(keep(item, caps=Caps(256, 256))) == item
    raw = b'"%b"' % (b"y" * 900)
    assert WRITER.write(keep(raw, caps=Caps(256, 256))) == raw


LONG = "z" * 5000
LONG_ITEMS: list[JsonObject] = [
    b.easy("user", LONG),
    b.easy("user", [b.text_part(LONG), b.IMAGE, b.text_part("b")]),
    b.answer(LONG),
    {"role": "assistant", "content": [{"type": "refusal", "refusal": LONG}]},
    b.output("c", [b.text_part("a"), b.text_part(LONG), b.text_part(LONG), b.IMAGE]),
    {"type": "function_call_output", "call_id": "c", "output": b.text_part(LONG)},
    {"type": "mcp_approval_response", "approval_request_id": "a", "reason": LONG},
    {"type": "program_output", "call_id": "p", "result": LONG},
    {"type": "shell_call_output", "call_id": "c", "output": LONG},
    {"type": "shell_call_output", "call_id": "c", "output": [{"stderr": LONG}, "odd", {}]},
    *(item for kind in b.PAIRS for item in b.pair(kind, "c", LONG, LONG)),
    b.call("c", "f", {"deep": [{"text": LONG}]}),
    {**b.call("c", "f"), "arguments": {"text": LONG}},
    {"type": "computer_call", "call_id": "c", "actions": [{"type": "type", "text": LONG}]},
    *b.program("p", [], LONG),
    b.approval("a", approve=True)[0] | {"arguments": codec.dumps({"x": LONG}).decode()},
    b.mcp_call(LONG),
]


@pytest.mark.parametrize("item", LONG_ITEMS, ids=lambda item: str(item.get("type", "easy")))
def test_what_is_counted_as_clipped_is_clipped(item: JsonObject) -> None:
    content = decode(codec.dumps(item)).content
    size = size_of(content)
    arguments = tuple(call.arguments for call in content.calls)
    clippable = Clippable(0, content.kind is Kind.RESULT, content.texts, size, arguments)
    decided = clip([clippable], size, lambda _: False).get(0)
    if decided is None:
        assert not content.texts or content.text == "" or len(content.text) < 600
        return
    out = WRITER.write(keep(item, caps=decided.caps))
    assert decided.size == size_of(decode(out).content)
    assert decided.size.chars < size.chars
