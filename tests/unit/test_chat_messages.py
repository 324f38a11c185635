"""One message: what is read from it, and which spellings are the same conversation."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.compaction import fingerprint, measure
from proxy.dialects import chat_messages
from proxy.dialects.bodies import Annotators
from proxy.dialects.chat_completions import ChatCompletions
from proxy.dialects.memo import PrefixMemo
from proxy.transcript import Binary, Call, Kind
from tests import builders as b

_ORIGIN = fingerprint.origin("tenant", "chat")
_DIALECT = ChatCompletions(
    Annotators(measure.size_of, fingerprint.extend, measure.text_size), PrefixMemo(0)
)

Messages = list[JsonObject]


def _digests(body: bytes) -> list[bytes]:
    request = _DIALECT.parse(body, _ORIGIN)
    assert request is not None
    return [item.digest for item in request.transcript.items]


def name_of(messages: Messages) -> bytes:
    """The name of a whole conversation."""
    return _digests(b.chat_body(messages))[-1]


PNG = b.png(40, 30, 90)
ARGUMENTS = '{"b": 1,  "a":"h\\u00e9 é", "n": 1.0, "x": null}'
REPLY = "  Let me check.\n\n"


def base(**extra: Json) -> Messages:
    """A conversation with everything that clients are known to re-spell."""
    return [
        b.user("Look at this and fix it."),
        b.assistant(
            REPLY,
            [b.call("call_abc", "read", ARGUMENTS), b.call("call_def", "run", '{"cmd":"ls"}')],
            **extra,
        ),
        b.result("call_abc", "first result"),
        b.result("call_def", "second result"),
        b.system("Now be brief."),
        b.user([b.text_part("One more: "), b.image_part(b.data_url(PNG), "high")]),
        b.assistant("Done."),
    ]


def with_reply(**fields: Json) -> Messages:
    """`base` with members of its first assistant message replaced."""
    messages = base()
    messages[1] = {**messages[1], **fields}
    return messages


def with_calls(first: JsonObject, second: JsonObject | None = None) -> Messages:
    return with_reply(tool_calls=[first, second or b.call("call_def", "run", '{"cmd":"ls"}')])


def with_arguments(arguments: str) -> Messages:
    return with_calls(b.call("call_abc", "read", arguments))


def at(index: int, message: JsonObject) -> Messages:
    messages = base()
    messages[index] = message
    return messages


def with_ids(first: str, second: str) -> Messages:
    messages = with_calls(b.call(first, "read", ARGUMENTS), b.call(second, "run", '{"cmd":"ls"}'))
    messages[2:4] = [b.result(first, "first result"), b.result(second, "second result")]
    return messages


_WRAPPED = base64.encodebytes(PNG).decode()

# One row for each mutation of facts/protocol.md, section 5.
JOINED: dict[str, Messages] = {
    "refusal null": with_reply(refusal=None),
    "annotations empty": with_reply(annotations=[]),
    "annotations null": with_reply(annotations=None),
    "annotations filled": with_reply(annotations=[{"type": "url_citation"}]),
    "audio null": with_reply(audio=None),
    "function_call null": with_reply(function_call=None),
    "parsed null": with_reply(parsed=None),
    "parsed filled": with_reply(parsed={"a": 1}),
    "unknown field null": with_reply(x_vendor=None),
    "unknown field empty list": with_reply(x_vendor=[]),
    "unknown field empty string": with_reply(x_vendor=""),
    "logprobs": with_reply(logprobs={"content": []}),
    "status": with_reply(status="completed"),
    "type message": with_reply(type="message"),
    "item id": with_reply(id="msg_123"),
    "phase": with_reply(phase="final_answer"),
    "obfuscation": with_reply(obfuscation="xxxx"),
    "provider_specific_fields": with_reply(provider_specific_fields={"refusal": None}),
    "reasoning_content": with_reply(reasoning_content="Let me think."),
    "reasoning_content empty": with_reply(reasoning_content=""),
    "reasoning renamed": with_reply(reasoning="Let me think."),
    "thinking": with_reply(thinking="Let me think."),
    "reasoning_details": with_reply(reasoning_details=[{"signature": "s", "index": 0}]),
    "cache_control on the message": with_reply(cache_control={"type": "ephemeral"}),
    "cache_control on a part": at(
        0, b.user([{**b.text_part("Look at this and fix it."), "cache_control": {"ttl": "1h"}}])
    ),
    "prompt_cache_breakpoint on a part": at(
        5,
        b.user(
            [
                {**b.text_part("One more: "), "prompt_cache_breakpoint": {"mode": "explicit"}},
                b.image_part(b.data_url(PNG), "high"),
            ]
        ),
    ),
    "content trimmed": with_reply(content="Let me check."),
    "content padded": with_reply(content="\n Let me check. \t"),
    "content as one part": with_reply(content=[b.text_part(REPLY)]),
    "content as split parts": with_reply(
        content=[b.text_part("  Let "), b.text_part("me "), b.text_part("check.\n\n")]
    ),
    "content with an empty part": with_reply(content=[b.text_part(REPLY), b.text_part("")]),
    "content as output_text": with_reply(content=[{"type": "output_text", "text": REPLY}]),
    "user text as input_text": at(
        0, b.user([{"type": "input_text", "text": "Look at this and fix it."}])
    ),
    "index in a call": with_calls({**b.call("call_abc", "read", ARGUMENTS), "index": 0}),
    "parsed_arguments": with_calls(
        {
            "id": "call_abc",
            "type": "function",
            "function": {"name": "read", "arguments": ARGUMENTS, "parsed_arguments": None},
        }
    ),
    "keys of a call reordered": with_calls(
        {
            "function": {"arguments": ARGUMENTS, "name": "read"},
            "type": "function",
            "id": "call_abc",
        }
    ),
    "type of a call absent": with_calls(
        {"id": "call_abc", "function": {"name": "read", "arguments": ARGUMENTS}}
    ),
    "arguments spaced": with_arguments('{"b": 1, "a": "hé é", "n": 1.0, "x": null}'),
    "arguments compact, 1.0 as 1": with_arguments('{"b":1,"a":"hé é","n":1,"x":null}'),
    "arguments in another order": with_arguments('{"x":null,"n":1.0,"a":"hé é","b":1}'),
    "arguments escaped": with_arguments('{"b":1,"a":"h\\u00e9 \\u00E9","n":1e0,"x":null}'),
    "arguments padded": with_arguments(f" {ARGUMENTS}\n"),
    "ids of nine characters": with_ids("abcDEF123", "abcDEF124"),
    "ids sanitised": with_ids("call_abc__1", "call_def__1"),
    "developer for system": at(4, b.developer("Now be brief.")),
    "image detail changed": at(
        5, b.user([b.text_part("One more: "), b.image_part(b.data_url(PNG), "low")])
    ),
    "image detail dropped": at(
        5, b.user([b.text_part("One more: "), b.image_part(b.data_url(PNG))])
    ),
    "image base64 wrapped": at(
        5,
        b.user([b.text_part("One more: "), b.image_part(f"data:image/png;base64,{_WRAPPED}")]),
    ),
    "image media type respelled": at(
        5, b.user([b.text_part("One more:"), b.image_part(b.data_url(PNG, "IMAGE/png"))])
    ),
    "leading system changed": [b.system("You are another agent."), *base()],
    "leading system and developer": [b.system("One."), b.developer("Two."), *base()],
}


@pytest.mark.parametrize("row", JOINED)
def test_known_client_changes_keep_the_name(row: str) -> None:
    assert b.chat_body(JOINED[row]) != b.chat_body(base())
    assert name_of(JOINED[row]) == name_of(base())


@pytest.mark.parametrize("content", [None, "", [], " \n", [b.text_part("")], [b.text_part(" ")]])
def test_no_text_is_one_thing_however_it_is_spelled(content: Json) -> None:
    calls: list[Json] = [b.call("c", "run", "{}")]
    absent: JsonObject = {"role": "assistant", "tool_calls": calls}
    assert name_of([b.user("go"), {**absent, "content": content}]) == name_of(
        [b.user("go"), absent]
    )


@pytest.mark.parametrize("calls", [None, []])
def test_no_calls_are_one_thing_however_they_are_spelled(calls: Json) -> None:
    plain = b.assistant("Done.")
    assert name_of([b.user("go"), {**plain, "tool_calls": calls}]) == name_of([b.user("go"), plain])


def test_audio_of_the_model_is_known_by_its_id() -> None:
    def spoken(**audio: Json) -> bytes:
        return name_of([b.user("sing"), b.assistant(None, audio=audio)])

    assert spoken(id="audio_1", data="AAAA", expires_at=1) == spoken(id="audio_1")
    assert spoken(id="audio_1") != spoken(id="audio_2")


def test_unpaired_surrogates_are_the_replacement_character() -> None:
    sent = b.chat_body([b.user("cut @ here")])
    cut, mended = sent.replace(b"@", b"\\ud83d"), sent.replace(b"@", "\ufffd".encode())
    assert _digests(cut) == _digests(mended)
    assert _digests(cut) != _digests(sent)


_SVG = '<svg width="1.5" height="2"/>'

APART: dict[str, Messages] = {
    "base": base(),
    "user text changed": at(0, b.user("Look at this and fix it!")),
    "user text in another case": at(0, b.user("look at this and fix it.")),
    "white space inside the text": at(0, b.user("Look at  this and fix it.")),
    "role of the first message": at(0, b.assistant("Look at this and fix it.")),
    "role system": [b.user("x"), *at(0, b.system("Look at this and fix it."))],
    "first message dropped": base()[1:],
    "last message dropped": base()[:-1],
    "message added": [*base(), b.user("Thanks.")],
    "empty message added": [*base(), b.user("")],
    "messages swapped": [*base()[:4], base()[5], base()[4], base()[6]],
    "refusal": with_reply(refusal="I will not."),
    "user named": at(0, {**b.user("Look at this and fix it."), "name": "ann"}),
    "user named otherwise": at(0, {**b.user("Look at this and fix it."), "name": "bob"}),
    "unknown field": with_reply(x_vendor=1),
    "unknown field, another value": with_reply(x_vendor=2),
    "unknown field, a string": with_reply(x_vendor="1"),
    "unknown field, false": with_reply(x_vendor=False),
    "unknown field, zero": with_reply(x_vendor=0),
    "unknown field, bigint": with_reply(x_vendor=2**70),
    "unknown field, next bigint": with_reply(x_vendor=2**70 + 1),
    "another unknown field": with_reply(y_vendor=1),
    "id of another kind": with_reply(id="answer-1"),
    "tool_call_id on a user": at(0, {**b.user("Look at this and fix it."), "tool_call_id": "z"}),
    "tool_calls on a user": at(
        0, {**b.user("Look at this and fix it."), "tool_calls": [b.call("z", "run", "{}")]}
    ),
    "tool_calls a string on a user": at(
        0, {**b.user("Look at this and fix it."), "tool_calls": "z"}
    ),
    "function_call a string": with_reply(function_call="auto"),
    "call name": with_calls(b.call("call_abc", "write", ARGUMENTS)),
    "call type unknown": with_calls({**b.call("call_abc", "read", ARGUMENTS), "type": "mcp"}),
    "unknown field of a call": with_calls(
        {**b.call("call_abc", "read", ARGUMENTS), "extra_content": {"signature": "s"}}
    ),
    "custom beside function": with_calls(
        {**b.call("call_abc", "read", ARGUMENTS), "custom": {"name": "x", "input": "y"}}
    ),
    "unknown field of a function": with_calls(
        {"id": "a", "function": {"name": "read", "arguments": ARGUMENTS, "x_function": 1}}
    ),
    "unknown field of a function, another value": with_calls(
        {"id": "a", "function": {"name": "read", "arguments": ARGUMENTS, "x_function": 2}}
    ),
    "argument value": with_arguments('{"b":2,"a":"hé é","n":1.0,"x":null}'),
    "argument as a string": with_arguments('{"b":"1","a":"hé é","n":1.0,"x":null}'),
    "argument null dropped": with_arguments('{"b":1,"a":"hé é","n":1.0}'),
    "argument white space": with_arguments('{"b":1,"a":"hé  é","n":1.0,"x":null}'),
    "argument 1.5": with_arguments('{"b":1,"a":"hé é","n":1.5,"x":null}'),
    "argument true": with_arguments('{"b":true,"a":"hé é","n":1.0,"x":null}'),
    "argument bigint": with_arguments('{"b":123456789012345678901}'),
    "argument next bigint": with_arguments('{"b":123456789012345678902}'),
    "arguments not JSON": with_arguments('{"b":1'),
    "arguments a list": with_arguments("[1]"),
    "arguments a JSON string": with_arguments('"x"'),
    "arguments bare text": with_arguments("x"),
    "custom call, the same text": with_calls(
        {"id": "call_abc", "type": "custom", "custom": {"name": "read", "input": "x"}}
    ),
    "custom call, another text": with_calls(
        {"id": "call_abc", "type": "custom", "custom": {"name": "read", "input": "x "}}
    ),
    "calls swapped": with_calls(
        b.call("call_def", "run", '{"cmd":"ls"}'), b.call("call_abc", "read", ARGUMENTS)
    ),
    "one call less": with_reply(tool_calls=[b.call("call_abc", "read", ARGUMENTS)]),
    "results swapped": [*base()[:2], base()[3], base()[2], *base()[4:]],
    "result texts swapped": [
        *base()[:2],
        b.result("call_abc", "second result"),
        b.result("call_def", "first result"),
        *base()[4:],
    ],
    "result of no call": at(2, b.result("call_zzz", "first result")),
    "result of another unknown call": at(2, b.result("call_yyy", "first result")),
    "result named": at(2, {**b.result("call_abc", "first result"), "name": "read"}),
    "mid system changed": at(4, b.system("Now be long.")),
    "image bytes": at(
        5, b.user([b.text_part("One more: "), b.image_part(b.data_url(b.png(40, 31, 90)))])
    ),
    "image by URL": at(
        5, b.user([b.text_part("One more: "), b.image_part("https://example.org/a.png")])
    ),
    "image by another URL": at(
        5, b.user([b.text_part("One more: "), b.image_part("https://example.org/b.png")])
    ),
    "image dropped": at(5, b.user([b.text_part("One more: ")])),
    "image before the text": at(
        5, b.user([b.image_part(b.data_url(PNG), "high"), b.text_part("One more: ")])
    ),
    "image twice": at(
        5,
        b.user([b.text_part("One more: "), *[b.image_part(b.data_url(PNG), "high")] * 2]),
    ),
    "image as text": at(5, b.user([b.text_part("One more: " + b.data_url(PNG))])),
    "SVG as text": at(5, b.user([b.image_part("data:image/svg+xml," + _SVG)])),
    "SVG as text, one sign less": at(
        5, b.user([b.image_part("data:image/svg+xml," + _SVG.replace("1.5", "15"))])
    ),
    "broken base64": at(5, b.user([b.image_part("data:image/png;base64,QUJD*QQ")])),
    "other broken base64": at(5, b.user([b.image_part("data:image/png;base64,QUJDQ*Q")])),
    "unknown field of an image": at(
        5,
        b.user(
            [
                b.text_part("One more: "),
                {"type": "image_url", "image_url": {"url": b.data_url(PNG), "x": 1}},
            ]
        ),
    ),
    "unknown field of a part": at(0, b.user([{**b.text_part("Look"), "x_part": 1}])),
    "unknown field of a part, another value": at(0, b.user([{**b.text_part("Look"), "x_part": 2}])),
    "part of an unknown type": at(0, b.user([{"type": "summary_text", "text": "Look"}])),
    "part of a wrong type": at(0, b.user([{"type": 5, "text": "Look"}])),
    "part of another wrong type": at(0, b.user([{"type": ["text"], "text": "Look"}])),
    "text part": at(0, b.user([b.text_part("Look")])),
    "refusal part": at(0, b.user([{"type": "refusal", "refusal": "Look"}])),
    "file by id": at(0, b.user([{"type": "file", "file": {"file_id": "Look"}}])),
    "file by data": at(0, b.user([{"type": "file", "file": {"file_data": "Look"}}])),
    "long file": at(0, b.user([{"type": "file", "file": {"file_data": "A" * 4000}}])),
    "other long file": at(0, b.user([{"type": "file", "file": {"file_data": "A" * 4001}}])),
    "audio": at(0, b.user([{"type": "input_audio", "input_audio": {"data": "QUJD"}}])),
    "audio of a format": at(
        0, b.user([{"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}])
    ),
}


def test_everything_else_keeps_conversations_apart() -> None:
    rows: dict[bytes, list[str]] = {}
    for row, messages in APART.items():
        rows.setdefault(name_of(messages), []).append(row)
    assert [same for same in rows.values() if len(same) > 1] == []


def test_parts_that_join_to_one_text_are_that_text() -> None:
    whole = name_of([b.user("ab")])
    assert name_of([b.user([b.text_part("a"), b.text_part("b")])]) == whole
    assert name_of([b.user([b.text_part("a "), b.text_part("b")])]) != whole


def test_results_of_two_open_groups_are_never_taken_for_each_other() -> None:
    head = [b.user("go"), *(b.assistant(None, [b.call(i, "run", "{}")]) for i in ("one", "two"))]
    straight = [*head, b.result("one", "x"), b.result("two", "y")]
    crossed = [*head, b.result("two", "x"), b.result("one", "y")]
    assert name_of(straight) != name_of(crossed)


def test_the_legacy_function_call_is_no_tool_call() -> None:
    call: Json = {"name": "run", "arguments": "{}"}
    legacy = [b.user("go"), {"role": "assistant", "content": None, "function_call": call}]
    modern = [b.user("go"), b.assistant(None, [b.call("x", "run", "{}")])]
    assert name_of(legacy) != name_of(modern)


def test_ids_that_are_used_again_pair_with_the_newest_call() -> None:
    def twice(first: str, second: str) -> bytes:
        return name_of(
            [
                b.user("go"),
                b.assistant(None, [b.call(first, "run", "{}")]),
                b.result(first, "x"),
                b.assistant(None, [b.call(second, "run", "{}")]),
                b.result(second, "y"),
            ]
        )

    assert twice("call_0", "call_0") == twice("call_1", "call_2")


def test_tenants_and_dialects_name_the_same_text_differently() -> None:
    body = b.chat_body([b.user("hello")])
    origins = [fingerprint.origin(t, d) for t in ("a", "b") for d in ("chat", "responses")]
    requests = [_DIALECT.parse(body, origin) for origin in origins]
    assert len({r.transcript.anchor for r in requests if r is not None}) == 4


_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
_MESSAGES = st.lists(
    st.builds(
        lambda role, text: {"role": role, "content": text},
        st.sampled_from(["user", "assistant"]),
        _TEXT,
    ),
    min_size=1,
    max_size=6,
)


@given(_MESSAGES, _MESSAGES)
def test_what_follows_never_changes_the_name_of_a_prefix(first: Messages, more: Messages) -> None:
    long = _digests(b.chat_body([*first, *more]))
    assert long[: len(first)] == _digests(b.chat_body(first))
    assert len(set(long)) == len(long)


@given(_MESSAGES, _MESSAGES)
def test_two_conversations_share_a_name_only_when_they_say_the_same(
    left: Messages, right: Messages
) -> None:
    said = [
        [(m["role"], codec.as_text(m["content"]).strip()) for m in messages]
        for messages in (left, right)
    ]
    assert (name_of(left) == name_of(right)) == (said[0] == said[1])


def test_leading_instructions_have_no_name_and_later_ones_do() -> None:
    request = _DIALECT.parse(
        b.chat_body([b.system("a"), b.developer("b"), b.user("c"), b.system("d")]), _ORIGIN
    )
    assert request is not None
    assert [item.digest for item in request.transcript.instructions] == [b"", b""]
    assert [item.kind for item in request.transcript.items] == [Kind.USER, Kind.INSTRUCTION]
    assert all(item.digest for item in request.transcript.items)


OPAQUE: dict[str, bytes] = {
    "unknown role": b'{"role":"observer","content":"x"}',
    "no role": b'{"content":"x"}',
    "role of a wrong type": b'{"role":5,"content":"x"}',
    "a string": b'"hello"',
    "a number": b"5",
    "null": b"null",
    "a list": b"[1]",
    "content a number": b'{"role":"user","content":5}',
    "content an object": b'{"role":"user","content":{"type":"text","text":"x"}}',
    "a part that is no object": b'{"role":"user","content":["x"]}',
    "tool_calls not a list": b'{"role":"assistant","content":null,"tool_calls":{"id":"x"}}',
    "a call that is no object": b'{"role":"assistant","tool_calls":["x"]}',
    "a call without an id": b'{"role":"assistant","tool_calls":[{"function":{"name":"x"}}]}',
    "a call without a function": b'{"role":"assistant","tool_calls":[{"id":"x"}]}',
    "a result without an id": b'{"role":"tool","content":"x"}',
    "a result with an empty id": b'{"role":"tool","tool_call_id":"","content":"x"}',
    "a result with a numeric id": b'{"role":"tool","tool_call_id":7,"content":"x"}',
    "a function result without a name": b'{"role":"function","content":"x"}',
}


@pytest.mark.parametrize("shape", OPAQUE)
def test_a_shape_that_cannot_be_interpreted_is_opaque(shape: str) -> None:
    content = chat_messages.decode(OPAQUE[shape]).content
    assert content.kind is Kind.OPAQUE
    assert content.role
    assert content.extra == OPAQUE[shape].decode()
    assert (content.texts, content.calls, content.answers) == ((), (), None)


def test_opaque_messages_are_kept_apart_too() -> None:
    rest = b',{"role":"user","content":"go"}]}'
    names = {_digests(b'{"messages":[' + raw + rest)[-1] for raw in OPAQUE.values()}
    assert len(names) == len(OPAQUE)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "text", "x", "data:,x"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["type", "text", "id", "function", "custom", "image_url", "url", "name", "audio"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=8,
)
_FIELDS = ("content", "tool_calls", "function_call", "tool_call_id", "name", "audio", "type")


@given(
    st.sampled_from(["system", "user", "assistant", "tool", "function", "x"]),
    st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=4),
)
def test_no_shape_of_a_message_raises(role: str, fields: JsonObject) -> None:
    raw = codec.dumps({"role": role, **fields})
    message = chat_messages.decode(raw)
    assert chat_messages.canonical(message, 1) == chat_messages.canonical(message, 1)
    measure.size_of(message.content)
    body = b'{"messages":[' + raw + b"]}"
    request = _DIALECT.parse(body, _ORIGIN)
    assert request is not None
    assert [i.raw for i in (*request.transcript.instructions, *request.transcript.items)] == [raw]


def test_a_user_message_with_every_kind_of_part() -> None:
    audio: JsonObject = {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}}
    pdf = b.data_url(b"%PDF", "application/pdf")
    file: JsonObject = {"type": "file", "file": {"file_data": pdf, "filename": "a.pdf"}}
    parts = [b.text_part("one"), b.image_part(b.data_url(PNG), "low"), audio, file]
    message = {**b.user([*parts, b.text_part("two")]), "name": "ann"}

    content = chat_messages.decode(codec.dumps(message)).content

    assert (content.kind, content.texts, content.extra) == (Kind.USER, ("one", "two"), "ann")
    image, sound, document = content.binaries
    assert (image.kind, image.media_type, image.width, image.height) == (
        "image",
        "image/png",
        40,
        30,
    )
    assert image.low_detail
    assert abs(image.size_bytes - len(PNG)) <= 2
    assert sound == Binary("audio", "wav", size_bytes=3)
    assert (document.kind, document.media_type) == ("file", "application/pdf")


def test_an_assistant_message_with_calls_of_every_kind() -> None:
    custom: JsonObject = {"id": "c2", "type": "custom", "custom": {"name": "sh", "input": "ls -l"}}
    strange: JsonObject = {"id": "c3", "function": {"name": "odd", "arguments": {"a": 1}}}
    message = b.assistant(
        "Looking.",
        [b.call("c1", "read", ARGUMENTS), custom, strange],
        function_call={"name": "old", "arguments": "{}"},
        reasoning="Hm.",
        refusal="No.",
    )

    content = chat_messages.decode(codec.dumps(message)).content

    assert content.calls == (
        Call("c1", "read", ARGUMENTS),
        Call("c2", "sh", "ls -l"),
        Call("c3", "odd", '{"a":1}'),
        Call("function:old", "old", "{}"),
    )
    assert (content.text, content.reasoning, content.extra) == ("Looking.", "Hm.", "No.")


def test_results_name_the_call_that_they_answer() -> None:
    tool = chat_messages.decode(codec.dumps(b.result("c1", "ok"))).content
    old = chat_messages.decode(b'{"role":"function","name":"old","content":"ok"}').content
    assert (tool.kind, tool.answers, tool.text) == (Kind.RESULT, "c1", "ok")
    assert (old.kind, old.answers) == (Kind.RESULT, "function:old")
