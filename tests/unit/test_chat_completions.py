"""Bodies: read with or without a memo alike, written back with the client's own bytes."""

import json  # noqa: TID251  -- only the standard library writes pretty-printed bodies
import re
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.compaction import clip, fingerprint, measure
from proxy.dialects import bodies
from proxy.dialects.bodies import Annotators, ParsedRequest
from proxy.dialects.chat_completions import ChatCompletions
from proxy.dialects.memo import PrefixMemo
from proxy.transcript import Caps, Carry, Keep, Kind, Piece, Size
from tests import builders as b
from tests.unit.test_memo import recount

ORIGIN = fingerprint.origin("tenant", "chat")


def dialect(memo_bytes: int = 0) -> ChatCompletions:
    return ChatCompletions(
        Annotators(measure.size_of, fingerprint.extend, measure.text_size), PrefixMemo(memo_bytes)
    )


COLD = dialect()


def read(body: bytes) -> ParsedRequest:
    request = COLD.parse(body, ORIGIN)
    assert request is not None
    return request


def rebuild(request: ParsedRequest, pieces: Sequence[Piece]) -> bytes:
    return COLD.rebuild(request, pieces, clip.clip_texts, clip.clip_arguments)


def keep_all(request: ParsedRequest) -> list[Piece]:
    return [Keep(item, index) for index, item in enumerate(request.transcript.items)]


@pytest.fixture(autouse=True, scope="module")
def memo_for_small_bodies() -> Iterator[None]:
    """Small bodies are looked up too, so that examples can be small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "MIN_BODY_BYTES", 0)
        yield


# --- what a client may write, as bytes ---

_SCALARS = [
    b"1.0",
    b"1e5",
    b"1E+2",
    b"-0",
    b"123456789012345678901234567890",
    b"true",
    b"null",
    b'""',
    b'"\\u00e9\\/\\n"',
    '"é🙂"'.encode(),
    b'"\\ud83d\\ude00"',
    b'"cut \\ud83d"',
    b'"\\uDE00 cut"',
    b'"\\\\ud83d"',
    b'"\\\\\\ud83d"',
    b'"a \\"messages\\":[{}] in text"',
]
_SPACES = st.sampled_from([b"", b"", b" ", b"\n  ", b"\t\r\n"])
_NAMES = st.sampled_from([b'"a"', b'"b"', b'"messages"', b'"\\u0061"', b'"x y"'])


@st.composite
def _arrays(draw: st.DrawFn, inner: st.SearchStrategy[bytes]) -> bytes:
    members = draw(st.lists(inner, max_size=3))
    return b"[" + b",".join(draw(_SPACES) + m + draw(_SPACES) for m in members) + b"]"


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[bytes]) -> bytes:
    # Names repeat freely.
    members = draw(st.lists(st.tuples(_NAMES, inner), max_size=3))
    return b"{" + b",".join(draw(_SPACES) + k + b":" + draw(_SPACES) + v for k, v in members) + b"}"


raw_values = st.recursive(
    st.sampled_from(_SCALARS), lambda inner: _arrays(inner) | _objects(inner), max_leaves=5
)


@st.composite
def raw_messages(draw: st.DrawFn) -> bytes:
    role = draw(st.sampled_from([b"user", b"assistant", b"system", b"developer", b"unknown"]))
    members = [b'"role":' + draw(_SPACES) + b'"' + role + b'"']
    members.append(b'"content":' + draw(st.sampled_from(_SCALARS) | raw_values))
    if draw(st.booleans()):
        members.append(b'"x_vendor" :' + draw(raw_values))
    if draw(st.integers(0, 5)) == 5:
        members.append(members[-1])
    gap = draw(_SPACES)
    members = draw(st.permutations(members))
    return b"{" + gap + (b"," + gap).join(members) + gap + b"}"


_raw_items = st.lists(raw_messages() | st.sampled_from([b"5", b'"x"', b"0", b"null"]), max_size=6)
_MEMBER_NAMES = ["model", "stream", "temperature", "tools", "user", "metadata", "é", "x.y", ""]
_members = st.dictionaries(st.sampled_from(_MEMBER_NAMES), raw_values, max_size=4)


@st.composite
def raw_bodies(draw: st.DrawFn) -> tuple[bytes, dict[str, bytes], list[bytes]]:
    """A body, its members in order, and its messages; every slice as the client wrote it."""
    items = draw(_raw_items)
    gap = draw(_SPACES)
    array = b"[" + gap + (draw(_SPACES) + b"," + gap).join(items) + gap + b"]"
    before, after = draw(_members), draw(_members)
    members = {**before, "messages": array}
    members |= {name: raw for name, raw in after.items() if name not in before}
    lead = draw(_SPACES)
    body = b"{" + b",".join(
        lead + codec.dumps(name) + gap + b":" + gap + raw + lead for name, raw in members.items()
    )
    return draw(_SPACES) + body + b"}" + draw(_SPACES), members, items


@given(raw_bodies())
def test_keeping_everything_keeps_every_byte_of_every_value(
    drawn: tuple[bytes, dict[str, bytes], list[bytes]],
) -> None:
    body, members, items = drawn
    request = read(body)

    written = rebuild(request, keep_all(request))

    kept = [*request.transcript.instructions, *request.transcript.items]
    assert [item.raw for item in kept] == items
    assert written == codec.join_object({**members, "messages": codec.join_array(items)})


def test_an_unpaired_surrogate_anywhere_stays_as_it_was_written() -> None:
    member = b'{"t":"\\uD83D","u":"\\ufffd"}'
    message = b'{"role":"user","content":"\\ud83d and \\\\ud83d"}'
    body = b'{"metadata":%b,"messages":[%b],"user":"\\udc00"}' % (member, message)
    request = read(body)
    assert rebuild(request, keep_all(request)) == body
    assert COLD.read(request.transcript.items[0]).texts == ("\ufffd and \\ud83d",)


def test_an_earlier_value_that_mends_to_the_same_bytes_is_not_taken_for_the_messages() -> None:
    first = b'[{"role":"user","content":"\\ud83d"}]'
    second = b'[{"role":"user","content":"\\ufffd"}]'
    request = read(b'{"old":%b,"messages":%b}' % (first, second))
    assert request.transcript.items[0].raw == second[1:-1]


def test_the_members_are_read() -> None:
    tools = b.catalogue(2)
    body = b.chat_body([b.user("hi")], tools=tools, stream=True, max_tokens=7)
    request = read(body)
    assert (request.model, request.stream) == ("test-model", True)
    assert request.transcript.requested_output == 7
    assert [*request.fields] == ["model", "messages", "tools", "stream", "max_tokens"]
    assert request.transcript.catalogue.chars == len(codec.dumps([*tools]))


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({"max_completion_tokens": 5, "max_tokens": 9}, 5),
        ({"max_completion_tokens": None, "max_tokens": 9}, 9),
        ({"max_tokens": "9"}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": 0}, None),
        ({}, None),
    ],
)
def test_the_requested_output(fields: Mapping[str, Json], output: int | None) -> None:
    body = b.chat_body([b.user("hi")])
    assert read(codec.dumps({**_decoded(body), **fields})).transcript.requested_output == output


@pytest.mark.parametrize(
    ("raw", "stream"), [(b"true", True), (b"false", False), (b"1", False), (b'"true"', False)]
)
def test_only_true_asks_for_a_stream(raw: bytes, stream: bool) -> None:
    assert read(b'{"messages":[],"stream": %b }' % raw).stream is stream
    assert read(b'{"messages":[],"model":5}').model == ""


@pytest.mark.parametrize("tools", [b"null", b"[]"])
def test_no_tools_have_no_size(tools: bytes) -> None:
    assert read(b'{"messages":[],"tools":%b}' % tools).transcript.catalogue == Size()


MALFORMED: dict[str, bytes] = {
    "empty": b"",
    "white space": b" \n",
    "a list": b"[]",
    "a string": b'"messages"',
    "no messages": b'{"model":"m"}',
    "messages null": b'{"messages":null}',
    "messages an object": b'{"messages":{"0":{}}}',
    "messages a string": b'{"messages":"[]"}',
    "messages only nested": b'{"metadata":{"messages":[]}}',
    "another last messages": b'{"messages":[],"messages":5}',
    "trailing comma": b'{"messages":[{"role":"user","content":"x"},]}',
    "trailing text": b'{"messages":[]} x',
    "two documents": b'{"messages":[]}{"messages":[]}',
    "byte order mark": b'\xef\xbb\xbf{"messages":[]}',
    "invalid UTF-8": b'{"messages":[{"role":"user","content":"\xff"}]}',
    "a raw line break": b'{"messages":[{"role":"user","content":"a\nb"}]}',
    "NaN": b'{"messages":[{"role":"user","content":"x","n":NaN}]}',
    "single quotes": b"{'messages':[]}",
    "not decoded": b"\x1f\x8b\x08\x00",
    "too deep": b'{"messages":[' + b"[" * 4000 + b"]" * 4000 + b"]}",
}


@pytest.mark.parametrize("shape", MALFORMED)
def test_another_shape_is_no_request(shape: str) -> None:
    warm = dialect(1 << 20)
    warm.parse(b'{"messages":[{"role":"user","content":"x"}]}', ORIGIN)
    assert warm.parse(MALFORMED[shape], ORIGIN) is None
    assert COLD.parse(MALFORMED[shape], ORIGIN) is None


@pytest.mark.parametrize("depth", [200, 500, 800, 980])
def test_deep_nesting_never_raises(depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    in_text = codec.dumps(nested.decode())
    bodies = [
        b'{"messages":[{"role":"user","content":"x","deep":%b}]}' % nested,
        b'{"messages":[{"role":"user","content":%b}]}' % nested,
        b'{"messages":[{"role":"assistant","tool_calls":[{"id":"a","function":'
        b'{"name":"f","arguments":%b}}]}]}' % in_text,
        b'{"messages":[],"metadata":%b}' % nested,
    ]
    for body in bodies:
        request = COLD.parse(body, ORIGIN)
        assert request is None or rebuild(request, keep_all(request)) == body


# --- the memo changes nothing but the time ---


def _decoded(body: bytes) -> JsonObject:
    value = codec.loads(body)
    assert isinstance(value, dict)
    return value


def same(left: ParsedRequest | None, right: ParsedRequest | None) -> bool:
    """Whether two readings are equal; what marks the place of `messages` may differ."""
    if left is None or right is None:
        return left is right
    fields = [
        [(name, raw) for name, raw in side.fields.items() if name != "messages"]
        for side in (left, right)
    ]
    return (
        left.transcript == right.transcript
        and (left.model, left.stream) == (right.model, right.stream)
        and [*left.fields] == [*right.fields]
        and fields[0] == fields[1]
        and rebuild(left, keep_all(left)) == rebuild(right, keep_all(right))
    )


class Both:
    """A dialect with a memo and one without, asked the same."""

    def __init__(self, memo_bytes: int = 1 << 20) -> None:
        self.memo = PrefixMemo(memo_bytes)
        self.limit = memo_bytes
        annotators = Annotators(measure.size_of, fingerprint.extend, measure.text_size)
        self.warm = ChatCompletions(annotators, self.memo)

    def agree(self, body: bytes, origin: bytes = ORIGIN) -> ParsedRequest | None:
        cold = COLD.parse(body, origin)
        for _ in range(2):
            assert same(self.warm.parse(body, origin), cold)
            assert self.memo.used_bytes == recount(self.memo) <= self.limit
        return cold


def known_items(memo: PrefixMemo, body: bytes) -> int:
    found = memo.match(ORIGIN, body)
    return 0 if found is None else len(found.items)


def test_the_memo_is_really_used() -> None:
    both = Both()
    short, long = b.tool_session(3), b.tool_session(4)
    both.agree(b.chat_body(short, tools=b.catalogue(3)))
    assert known_items(both.memo, b.chat_body(long, tools=b.catalogue(3))) == len(short)
    first = both.agree(b.chat_body(long, tools=b.catalogue(3)))
    second = both.warm.parse(b.chat_body(long, tools=b.catalogue(3)), ORIGIN)
    assert first is not None
    assert second is not None
    third = both.warm.parse(b.chat_body(long, tools=b.catalogue(3)), ORIGIN)
    assert third is not None
    assert all(
        left is right
        for left, right in zip(second.transcript.items, third.transcript.items, strict=True)
    )


def _dumped(body: JsonObject, style: str) -> bytes:
    if style == "compact":
        return codec.dumps(body)
    indent = {"spaced": None, "indented": 2, "tabs": "\t"}[style]
    return json.dumps(body, indent=indent, ensure_ascii=style == "tabs").encode()


STYLES = ("compact", "spaced", "indented", "tabs")
HEADS: tuple[JsonObject, ...] = (
    {},
    {"model": "m"},
    {"model": "n"},
    {"metadata": {"messages": [{"role": "user", "content": "nested"}]}},
    {"prompt": 'say "messages":[ and stop', "messages_": [1]},
)
TAILS: tuple[JsonObject, ...] = ({}, {"stream": True}, {"tools": [], "metadata": {"messages": []}})
_MESSAGES: tuple[JsonObject, ...] = (
    b.system("Be brief."),
    b.user("one"),
    b.user('a "messages":[{"role":"user"}] inside'),
    b.user("é🙂 \ufffd"),
    b.assistant("two"),
    b.assistant(None, [b.call("c1", "run", '{"a": 1}')]),
    b.result("c1", "three"),
    b.user([b.text_part("x"), b.image_part(b.data_url(b.png(3, 4)))]),
    {"role": "observer"},
    {"role": "user", "content": 5},
)
_small_messages = st.sampled_from(_MESSAGES)


@given(st.data(), st.sampled_from([0, 900, 4000, 20_000, 1 << 20]))
def test_warm_and_cold_agree_through_growth_branches_and_edits(
    data: st.DataObject, limit: int
) -> None:
    both = Both(limit)
    messages: list[JsonObject] = []
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(["grow", "grow", "grow", "cut", "edit", "remove"]))
        place = data.draw(st.integers(0, max(0, len(messages) - 1)))
        if step == "grow" or not messages:
            messages = messages + data.draw(st.lists(_small_messages, max_size=4))
        elif step == "cut":
            messages = messages[:place]
        else:
            new = [data.draw(_small_messages)] if step == "edit" else []
            messages = [*messages[:place], *new, *messages[place + 1 :]]
        head, tail = data.draw(st.sampled_from(HEADS)), data.draw(st.sampled_from(TAILS))
        document: JsonObject = {**head, "messages": [*messages], **tail}
        request = both.agree(_dumped(document, data.draw(st.sampled_from(STYLES))))
        assert request is not None
        transcript = request.transcript
        assert len(transcript.instructions) + len(transcript.items) == len(messages)


@given(st.lists(raw_bodies(), min_size=1, max_size=4))
def test_warm_and_cold_agree_on_any_bodies(
    drawn: list[tuple[bytes, dict[str, bytes], list[bytes]]],
) -> None:
    both = Both()
    for body, members, items in drawn:
        both.agree(body)
        grown = codec.join_array([*items, b'{"role":"user","content":"more"}'])
        both.agree(codec.join_object({**members, "messages": grown}))


@pytest.mark.parametrize("style", STYLES)
def test_a_body_cut_anywhere_is_no_request(style: str) -> None:
    document = _decoded(b.chat_body(b.turn_session(1, result_chars=20), stream=True))
    whole = _dumped(document, style)
    both = Both()
    assert both.agree(whole) is not None
    for end in range(len(whole)):
        assert both.agree(whole[:end]) is None


_SEED = b.chat_body(
    [b.system("s"), b.user("one"), b.assistant("two"), b.user("three")], stream=True
)


@given(
    st.lists(
        st.tuples(st.integers(0, len(_SEED)), st.integers(0, 2), st.binary(max_size=3)),
        min_size=1,
        max_size=3,
    )
)
def test_warm_and_cold_agree_on_damaged_bodies(edits: list[tuple[int, int, bytes]]) -> None:
    both = Both()
    assert both.agree(_SEED) is not None
    body = _SEED
    for at, removed, inserted in edits:
        body = body[:at] + inserted + body[at + removed :]
    both.agree(body)
    both.agree(_SEED)


_PIECES = re.findall(rb'"[^"]*"|[^"]', _SEED)


@given(st.integers(0, len(_PIECES)), st.integers(0, len(_PIECES)), st.integers(0, len(_PIECES)))
def test_warm_and_cold_agree_when_pieces_are_repeated(start: int, end: int, at: int) -> None:
    both = Both()
    both.agree(_SEED)
    pieces = [*_PIECES[:at], *_PIECES[start:end], *_PIECES[at:]]
    both.agree(b"".join(pieces))


_ONE = b'{"role":"user","content":"one"}'
_TWO = b'{"role":"user","content":"two"}'


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages":[%b],"messages":[%b]}' % (_ONE, _TWO),
        b'{"messages":[%b],"messages":[%b,%b]}' % (_ONE, _ONE, _TWO),
        b'{"messages":[%b],"messages":[0,%b]}' % (_ONE, _TWO),
        b'{"messages":[%b],"messages":[0]}' % _ONE,
        b'{"messages":[%b],"\\u006dessages":[0,%b]}' % (_ONE, _TWO),
        b'{"messages":[%b],"messages":5}' % _ONE,
        b'{"messages":[%b],"model":"m","messages":[%b]}' % (_TWO, _ONE),
        b'{"messages":[%b],"model":"m","messages":[%b]}' % (_ONE, _ONE),
        b'{"messages":[%b,%b],"":[0,%b]}' % (_ONE, _TWO, _ONE),
        b'{"messages":[%b],"\\u0000\\u0000\\u0000\\u0000":[0,%b]}' % (_ONE, _TWO),
        b'{"messages":[%b],"model":"m","model":"n"}' % _ONE,
        b'{"messages":[%b], "stream":true,"x":"\\ud83d"}' % _ONE,
        b'{"messages":[%b,{"role":"user","content":"\\ud83d"}]}' % _ONE,
        b'{"messages":[%b,%b]]}' % (_ONE, _TWO),
        b'{"messages":[%b}' % _ONE,
        b'{"messages":[%b,]}' % _ONE,
        b'{"messages":[%b 0]}' % _ONE,
        b'{"messages":[%b0]}' % _ONE,
        b'{"messages":[%b,0]}' % _ONE,
    ],
)
def test_warm_and_cold_agree_on_traps_after_a_known_item(body: bytes) -> None:
    both = Both()
    both.agree(b'{"messages":[%b]}' % _ONE)
    assert known_items(both.memo, b'{"messages":[%b]}' % _ONE) == 1
    both.agree(body)
    both.agree(b'{"messages":[%b,%b]}' % (_ONE, _TWO))
    both.agree(body)


@pytest.mark.parametrize("sign", [b"]", b";", b":", b" ", b"}", b",,", b""])
def test_warm_and_cold_agree_on_what_stands_between_known_items(sign: bytes) -> None:
    both = Both()
    both.agree(b'{"messages":[%b,%b]}' % (_ONE, _TWO))
    assert both.agree(b'{"messages":[%b%b%b]}' % (_ONE, sign, _TWO)) is None


def test_an_earlier_member_with_the_same_value_is_not_taken_for_the_head() -> None:
    both = Both()
    assert both.agree(b'{"old":[%b],"messages":[%b]}' % (_ONE, _ONE)) is not None
    assert both.agree(b'{"old":[%b]}' % _ONE) is None
    nested = b'{"old":{"messages":[%b]},"messages":[%b]}'
    assert both.agree(nested % (_ONE, _ONE)) is not None
    assert both.agree(nested % (_ONE, _TWO)) is not None
    assert both.agree(nested % (_TWO, _ONE)) is not None


@pytest.mark.parametrize("known", [b"1", b"0", b"-1", b"1.5", b"true", b'"a"', b"[]"])
@pytest.mark.parametrize("sent", [b"1", b"12", b"1.5", b"10", b"0", b"0.5", b"1e5", b"-1", b"-12"])
def test_warm_and_cold_agree_on_items_that_are_numbers(known: bytes, sent: bytes) -> None:
    both = Both()
    both.agree(b'{"messages":[%b,%b]}' % (known, _ONE))
    both.agree(b'{"messages":[%b,%b]}' % (sent, _ONE))
    both.agree(b'{"messages":[%b,%b,%b]}' % (known, sent, _ONE))


def test_tenants_share_nothing() -> None:
    both = Both()
    other = fingerprint.origin("other", "chat")
    body = b'{"messages":[%b]}' % _ONE
    mine = both.agree(body)
    theirs = both.agree(body, other)
    assert mine is not None
    assert theirs is not None
    assert mine.transcript.anchor != theirs.transcript.anchor


def test_small_bodies_are_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MIN_BODY_BYTES", 500)
    both = Both()
    both.agree(b'{"messages":[%b]}' % _ONE)
    assert both.memo.used_bytes == 0
    both.agree(b.chat_body([b.user("x" * 500)]))
    assert both.memo.used_bytes > 0


# --- writing ---


def written_messages(body: bytes) -> list[JsonObject]:
    messages = _decoded(body)["messages"]
    return [*codec.as_objects(messages)]


def test_dropped_items_are_gone_and_the_rest_is_as_it_was() -> None:
    request = read(b.chat_body(b.tool_session(3)))
    items = request.transcript.items
    kept: list[Piece] = [Keep(items[0], 0), *(Keep(i, n) for n, i in enumerate(items) if n > 4)]
    raws = codec.split_array(codec.split_object(rebuild(request, kept))["messages"])
    assert raws == [i.raw for i in (*request.transcript.instructions, items[0], *items[5:])]


def test_a_record_stands_alone_or_in_front_of_a_users_text() -> None:
    message: JsonObject = {**b.user("go on"), "name": "ann", "x_extra": 1}
    request = read(b.chat_body([b.user("first"), message]))
    first, second = keep_all(request)
    assert isinstance(first, Keep)
    assert isinstance(second, Keep)

    alone = written_messages(rebuild(request, [Carry("RECORD\n\n"), second]))
    onto = written_messages(rebuild(request, [Carry("RECORD\n\n", (second,))]))
    joined = written_messages(rebuild(request, [Carry("RECORD\n\n", (first, second))]))

    assert alone == [b.user("RECORD\n\n"), message]
    assert onto == [{**message, "content": "RECORD\n\ngo on"}]
    assert joined == [{**message, "content": "RECORD\n\nfirst\n\ngo on"}]


def test_a_record_becomes_one_more_part_of_a_users_parts() -> None:
    image = b.image_part(b.data_url(b.png(3, 4)))
    request = read(b.chat_body([b.user("first"), b.user([b.text_part("see"), image])]))
    first, second = (k for k in keep_all(request) if isinstance(k, Keep))
    (message,) = written_messages(rebuild(request, [Carry("RECORD", (first, second))]))
    assert message == b.user(
        [b.text_part("RECORD"), b.text_part("first"), b.text_part("see"), image]
    )


def test_clipping_shortens_text_and_nothing_else() -> None:
    image = b.image_part(b.data_url(b.png(3, 4)))
    parts = [b.text_part("x" * 900), image, b.text_part("y" * 900)]
    long: JsonObject = {**b.result("c1", parts), "x_extra": 1.0}
    calls = [b.call("c1", "run", {"cmd": "z" * 900, "n": 1})]
    request = read(b.chat_body([b.user("go"), b.assistant("w" * 900, calls), long]))
    caps = [Caps(), Caps(text=200, arguments=256), Caps(text=512)]
    kept = [Keep(i, n, caps[n]) for n, i in enumerate(request.transcript.items)]

    first, said, result = written_messages(rebuild(request, kept))

    assert first == b.user("go")
    assert said["content"] == clip.clip_text("w" * 900, 200)
    assert said["tool_calls"] == [
        b.call("c1", "run", {"cmd": clip.clip_text("z" * 900, 256), "n": 1})
    ]
    shortened = b.text_part("x" * (512 - len(clip.MARKER)) + clip.MARKER)
    assert result == {**long, "content": [shortened, image]}


def test_clipped_and_carrying_messages_mend_what_they_must_write_anew() -> None:
    body = b'{"messages":[{"role":"user","content":"%b\\ud83d","x":"\\ud83d"}]}' % (b"a" * 900)
    request = read(body)
    (kept,) = keep_all(request)
    assert isinstance(kept, Keep)
    clipped = Keep(kept.item, 0, Caps(text=512))
    for piece in (clipped, Carry("RECORD", (kept,)), Carry("RECORD", (clipped,))):
        (message,) = written_messages(rebuild(request, [piece]))
        assert message["x"] == "\ufffd"


def test_an_opaque_item_that_is_to_be_clipped_stays_whole() -> None:
    body = b'{"messages":["%b"]}' % (b"y" * 900)
    request = read(body)
    kept = [Keep(item, n, Caps(text=512)) for n, item in enumerate(request.transcript.items)]
    assert [item.kind for item in request.transcript.items] == [Kind.OPAQUE]
    assert rebuild(request, kept) == body
