"""What both dialects share of reading and writing bodies."""

from collections.abc import Callable

import pytest

from proxy import codec
from proxy.codec import JsonObject
from proxy.compaction import clip, fingerprint, measure
from proxy.dialects import slices
from proxy.dialects.bodies import Annotators, Dialect
from proxy.dialects.chat_completions import ChatCompletions
from proxy.dialects.memo import LARGE_BODY_BYTES, PrefixMemo
from proxy.dialects.responses import Responses
from proxy.transcript import Keep, Kind, Size
from tests import builders as b

ANNOTATORS = Annotators(measure.size_of, fingerprint.extend, measure.text_size)
ORIGIN = fingerprint.origin("tenant", "any")
DIALECTS = (ChatCompletions, Responses)
Kinds = Callable[[Annotators, PrefixMemo, PrefixMemo], Dialect]


def body_of(dialect: Dialect, messages: list[JsonObject], **fields: str) -> bytes:
    return codec.dumps({"model": "m", **fields, dialect.member: [*messages]})


@pytest.fixture(params=DIALECTS, ids=lambda kind: str(kind.name))
def kind(request: pytest.FixtureRequest) -> Kinds:
    made: Kinds = request.param
    return made


@pytest.fixture
def dialect(kind: Kinds) -> Dialect:
    return kind(ANNOTATORS, PrefixMemo(0), PrefixMemo(0))


MESSAGES = [b.system("s"), b.user("one"), b.assistant("two"), b.user("three")]


def test_plain_messages_are_read_alike(dialect: Dialect) -> None:
    request = dialect.parse(body_of(dialect, MESSAGES), ORIGIN)
    assert request is not None
    transcript = request.transcript
    assert [item.raw for item in transcript.instructions] == [codec.dumps(MESSAGES[0])]
    assert [item.kind for item in transcript.items] == [Kind.USER, Kind.ASSISTANT, Kind.USER]
    assert transcript.instructions[0].digest == b""
    assert transcript.anchor == transcript.items[0].digest
    assert [dialect.read(item).text for item in transcript.items] == ["one", "two", "three"]


def test_the_place_of_the_list_and_every_member_stay(dialect: Dialect) -> None:
    body = b'{"x": 1.0, "%b": [{"role":"user","content":"a"}] ,"y":"\\u0041"}'
    request = dialect.parse(body % dialect.member.encode(), ORIGIN)
    assert request is not None
    pieces = [Keep(item, n) for n, item in enumerate(request.transcript.items)]
    written = dialect.rebuild(request, pieces, clip.clip_texts, clip.clip_arguments)
    expected = b'{"x":1.0,"%b":[{"role":"user","content":"a"}],"y":"\\u0041"}'
    assert written == expected % dialect.member.encode()


def test_small_and_large_bodies_are_remembered_apart(kind: Kinds) -> None:
    large, small = PrefixMemo(1 << 20), PrefixMemo(1 << 20)
    dialect = kind(ANNOTATORS, large, small)
    dialect.parse(body_of(dialect, [b.user("x" * 2000)]), ORIGIN)
    assert (large.used_bytes, small.used_bytes > 0) == (0, True)
    body = body_of(dialect, [b.user("x" * LARGE_BODY_BYTES)])
    dialect.parse(body, ORIGIN)
    assert large.used_bytes > 0
    known = dialect.recall(body, ORIGIN)
    assert known is not None
    assert len(known.items) == 1
    assert dialect.recall(body_of(dialect, [b.user("x")]), ORIGIN) is None


def test_a_glance_bounds_what_a_reading_finds(kind: Kinds) -> None:
    dialect = kind(ANNOTATORS, PrefixMemo(1 << 20), PrefixMemo(1 << 20))
    tools = b.catalogue(3)
    first = codec.dumps({"model": "m", "tools": [*tools], dialect.member: [b.user("x " * 900)]})
    more = codec.dumps(
        {"model": "m", "tools": [*tools], dialect.member: [b.user("x " * 900), b.assistant("修复")]}
    )
    dialect.parse(first, ORIGIN)
    known = dialect.recall(more, ORIGIN)
    assert known is not None
    glance, request = dialect.glance(more, known), dialect.parse(more, ORIGIN)
    assert glance is not None
    assert request is not None
    transcript = request.transcript
    tokens = transcript.catalogue.tokens + sum(item.tokens for item in transcript.items)
    chars = transcript.catalogue.chars + sum(item.chars for item in transcript.items)
    assert (glance.model, glance.anchor) == ("m", transcript.anchor)
    assert glance.tokens >= tokens
    assert glance.chars >= chars


def test_long_members_are_measured_without_being_held(dialect: Dialect) -> None:
    text = "word " * slices.MAX_CACHED_BYTES
    expected = measure.text_size(text)
    size = dialect.size_of_text(codec.dumps(text))
    assert size == expected + Size(0, measure.MESSAGE_OVERHEAD_TOKENS)
    assert dialect.size_of_text(codec.dumps("word " * 8)) == Size(40, 14)
    assert dialect.size_of_text(b"[true, false, null]") == Size(19, 9)


def test_results_pair_by_the_id_they_name(dialect: Dialect) -> None:
    message = dialect.decode(codec.dumps(b.user("x")))
    assert dialect.answered(message, ()) is None


def test_where_the_whole_conversation_is_in_the_body_nothing_is_left_out(
    dialect: Dialect,
) -> None:
    request = dialect.parse(body_of(dialect, MESSAGES, user="ann"), ORIGIN)
    assert request is not None
    assert request.continues is None
