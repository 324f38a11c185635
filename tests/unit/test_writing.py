"""What both dialects do alike when they write an element."""

import pytest

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.compaction.clip import MARKER, clip_arguments, clip_texts
from proxy.dialects.chat_writer import MessageWriter
from proxy.dialects.response_writer import ItemWriter
from proxy.dialects.writing import SYSTEM_SAID, PieceWriter
from proxy.transcript import Caps, Carry, Item, Keep, Kind

WRITERS: list[PieceWriter] = [
    MessageWriter(clip_texts, clip_arguments),
    ItemWriter(clip_texts, clip_arguments),
]


@pytest.fixture(params=WRITERS, ids=["chat", "responses"])
def writer(request: pytest.FixtureRequest) -> PieceWriter:
    found = request.param
    assert isinstance(found, PieceWriter)
    return found


def keep(raw: bytes, caps: Caps | None = None) -> Keep:
    return Keep(Item(Kind.USER, "user", raw, 0, 0), 0, caps or Caps())


def user(content: bytes) -> bytes:
    return b'{"role":"user","weight": 1.0,"content":%b}' % content


def test_what_is_kept_whole_is_the_bytes_that_came(writer: PieceWriter) -> None:
    raw = b'{ "role" : "user", "content":"caf\\u00e9 \\ud83d" }'
    assert writer.write(keep(raw)) == raw


@pytest.mark.parametrize("raw", [b"null", b"[1]", b'"text"'])
def test_what_is_no_object_is_never_changed(writer: PieceWriter, raw: bytes) -> None:
    assert writer.write(keep(raw, Caps(16, 16))) == raw


def test_a_record_of_its_own_is_a_user_message(writer: PieceWriter) -> None:
    value = codec.loads(writer.write(Carry("record")))
    assert value == writer.record("record")
    assert isinstance(value, dict)
    assert value["role"] == "user"


def test_texts_are_joined_behind_the_record(writer: PieceWriter) -> None:
    carry = Carry("record\n", (keep(user(b'"one"')), keep(user(b'"two"'))))
    raw = writer.write(carry)
    assert b'"weight":1.0' in raw
    assert codec.loads(raw) == {"role": "user", "weight": 1.0, "content": "record\none\n\ntwo"}


def test_parts_are_joined_behind_the_record(writer: PieceWriter) -> None:
    odd: JsonObject = {"type": "odd", "x": 1}
    carry = Carry("record", (keep(user(codec.dumps([odd]))), keep(user(b'"two"'))))
    value = codec.loads(writer.write(carry))
    kind = writer.text_part
    assert isinstance(value, dict)
    assert value["content"] == [
        {"type": kind, "text": "record"},
        odd,
        {"type": kind, "text": "two"},
    ]


def test_parts_share_one_cap_and_emptied_ones_go(writer: PieceWriter) -> None:
    odd: JsonObject = {"type": "odd"}
    parts: list[Json] = [{"text": "a" * 40}, odd, {"text": "b" * 40}, {"refusal": "c" * 40}]
    raw = user(codec.dumps(parts))
    value = codec.loads(writer.write(keep(raw, Caps(60))))
    assert isinstance(value, dict)
    left = codec.as_objects(value["content"])
    text = "".join(codec.as_text(part.get("text")) for part in left)
    assert odd in left
    assert (len(text), text.endswith(MARKER)) == (60, True)
    assert b'"weight":1.0' in writer.write(keep(raw, Caps(60)))


def test_arguments_that_are_no_text_stay_what_they_are(writer: PieceWriter) -> None:
    assert writer.clip_argument({"a": "x" * 100, "b": 1}, 50) == {
        "a": "x" * (50 - len(MARKER)) + MARKER,
        "b": 1,
    }
    assert writer.clip_argument('{"b":1}', 50) == '{"b":1}'


def rule(content: bytes) -> Keep:
    raw = b'{"role":"system","content":%b}' % content
    return Keep(Item(Kind.INSTRUCTION, "system", raw, 0, 0), 0, Caps())


def test_a_content_of_texts_is_one_string_where_it_must_be_plain(writer: PieceWriter) -> None:
    parts: list[Json] = [{"type": writer.text_part, "text": "one"}, {"text": "two", "x": 1}]
    carry = Carry("record\n", (keep(user(codec.dumps(parts))), keep(user(b'"three"'))), plain=True)
    assert codec.loads(writer.write(carry)) == {
        "role": "user",
        "weight": 1.0,
        "content": "record\none\n\ntwo\n\nthree",
    }


def test_what_is_no_text_keeps_its_parts(writer: PieceWriter) -> None:
    odd: JsonObject = {"type": "odd", "x": 1}
    carry = Carry("record", (keep(user(codec.dumps([odd]))), keep(user(b"null"))), plain=True)
    value = codec.loads(writer.write(carry))
    assert isinstance(value, dict)
    assert value["content"] == [{"type": writer.text_part, "text": "record"}, odd]


@pytest.mark.parametrize("content", [b'"be brief"', b'[{"type":"text","text":"be brief"}]'])
def test_a_system_message_is_told_as_one(writer: PieceWriter, content: bytes) -> None:
    carry = Carry("record\n", (rule(content), keep(user(b'"go on"'))), plain=True)
    value = codec.loads(writer.write(carry))
    assert isinstance(value, dict)
    assert (value["role"], value["weight"]) == ("user", 1.0)
    assert value["content"] == f"record\n{SYSTEM_SAID}\nbe brief\n\ngo on"


def test_without_a_user_message_the_record_is_the_users_all_the_same(writer: PieceWriter) -> None:
    carry = Carry("record\n", (rule(b'[{"type":"odd"}]'),), plain=True)
    value = codec.loads(writer.write(carry))
    assert value == {
        **writer.record(""),
        "content": f'record\n{SYSTEM_SAID}\n[{{"type":"odd"}}]',
    }
