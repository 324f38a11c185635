"""Single messages, written back: what must differ and nothing else."""

import pytest

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.compaction.clip import MARKER, Clippable, clip, clip_arguments, clip_texts
from proxy.compaction.measure import size_of
from proxy.dialects.chat_messages import decode
from proxy.dialects.chat_writer import MessageWriter
from proxy.transcript import Caps, Carry, Item, Keep

WRITER = MessageWriter(clip_texts, clip_arguments)


def keep(raw: bytes, index: int = 0, caps: Caps | None = None) -> Keep:
    content = decode(raw).content
    return Keep(Item(content.kind, content.role, raw, 0, 0), index, caps or Caps())


def written(piece: Keep | Carry) -> JsonObject:
    value = codec.loads(WRITER.write(piece))
    assert isinstance(value, dict)
    return value


def test_a_whole_message_is_the_bytes_that_came() -> None:
    raw = b'{ "role":"user",  "content" : "caf\\u00e9", "weight": 1.0 }'
    assert WRITER.write(keep(raw)) == raw


def test_a_clipped_message_keeps_its_other_members_byte_for_byte() -> None:
    text = "x" * 1000
    raw = b'{"role":"tool","tool_call_id":"a","x":1e5,"content":"%s"}' % text.encode()
    out = WRITER.write(keep(raw, caps=Caps(512)))
    assert b'"x":1e5' in out
    assert codec.loads(out) == {
        "role": "tool",
        "tool_call_id": "a",
        "x": 1e5,
        "content": text[: 512 - len(MARKER)] + MARKER,
    }


def test_a_checkpoint_without_a_user_message_is_one_of_its_own() -> None:
    assert written(Carry("record\n")) == {"role": "user", "content": "record\n"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("hi", "record\nhi"),
        ("", "record\n"),
        (
            [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}],
            [
                {"type": "text", "text": "record\n"},
                {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}},
            ],
        ),
    ],
)
def test_a_checkpoint_stands_in_front_of_the_user_message(content: Json, expected: Json) -> None:
    raw = codec.dumps({"role": "user", "name": "ann", "content": content})
    message = written(Carry("record\n", (keep(raw),)))
    assert message == {"role": "user", "name": "ann", "content": expected}


def test_two_user_messages_become_one_with_all_their_parts() -> None:
    image: Json = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    first = keep(codec.dumps({"role": "user", "content": [image]}), 0)
    second = keep(codec.dumps({"role": "user", "content": "and now?", "name": "bo"}), 5)
    assert written(Carry("record\n", (first, second))) == {
        "role": "user",
        "content": [
            {"type": "text", "text": "record\n"},
            image,
            {"type": "text", "text": "and now?"},
        ],
        "name": "bo",
    }


def test_clipped_arguments_stay_json() -> None:
    arguments = codec.dumps({"path": "a.py", "content": "y" * 3000}).decode()
    call: Json = {"id": "c", "type": "function", "function": {"name": "w", "arguments": arguments}}
    raw = codec.dumps({"role": "assistant", "content": None, "tool_calls": [call]})
    calls = written(keep(raw, caps=Caps(None, 256)))["tool_calls"]
    function = codec.as_objects(calls)[0]["function"]
    assert isinstance(function, dict)
    clipped = codec.loads(codec.as_text(function["arguments"]))
    assert isinstance(clipped, dict)
    assert clipped["path"] == "a.py"
    assert len(codec.as_text(clipped["content"])) == 256


LONG = "z" * 5000


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "tool_call_id": "a", "content": LONG},
        {
            "role": "user",
            "content": [{"type": "text", "text": LONG}, {"type": "text", "text": "b"}],
        },
        {"role": "assistant", "content": [{"type": "refusal", "refusal": LONG}]},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "1",
                    "type": "function",
                    "function": {"name": "f", "arguments": {"x": LONG}},
                },
                {
                    "id": "2",
                    "type": "custom",
                    "custom": {"name": "g", "input": f'{{"y":"{LONG}"}}'},
                },
                {"id": "3", "type": "custom", "custom": {"name": "h", "input": LONG}},
            ],
        },
    ],
)
def test_what_is_counted_as_clipped_is_clipped(message: JsonObject) -> None:
    raw = codec.dumps(message)
    content = decode(raw).content
    size = size_of(content)
    clippable = Clippable(
        0, content.role == "tool", content.texts, size, tuple(c.arguments for c in content.calls)
    )
    decided = clip([clippable], size, lambda _: False)[0]
    out = WRITER.write(keep(raw, caps=decided.caps))
    assert decided.size == size_of(decode(out).content)
    assert decided.size.chars < size.chars
