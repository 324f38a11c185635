"""What can be said of a body of which little is new, without reading that little."""

from collections.abc import Iterator

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from proxy import codec
from proxy.codec import JsonObject
from proxy.compaction import fingerprint, measure
from proxy.dialects import bodies
from proxy.dialects.bodies import Annotators
from proxy.dialects.chat_completions import ChatCompletions
from proxy.dialects.memo import PrefixMemo
from proxy.transcript import total
from tests import builders as b
from tests.strategies import conversations

ORIGIN = fingerprint.origin("tenant", "chat")
ANNOTATORS = Annotators(measure.size_of, fingerprint.extend, measure.text_size)


@pytest.fixture(autouse=True, scope="module")
def memo_for_small_bodies() -> Iterator[None]:
    """Small bodies are looked up too, so that examples can be small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bodies, "MIN_BODY_BYTES", 0)
        yield


def in_order(body: bytes, *, tools_first: bool) -> bytes:
    members = codec.split_object(body)
    if tools_first and "tools" in members:
        members = {name: members[name] for name in ("model", "tools", "messages")}
    return codec.join_object(members)


@settings(max_examples=120)
@given(
    conversations(odd=True),
    st.integers(0, 8),
    st.sampled_from([None, b.catalogue(1, 40)]),
    st.booleans(),
)
def test_a_glance_never_promises_too_little(
    messages: list[JsonObject], new: int, tools: list[JsonObject] | None, tools_first: bool
) -> None:
    dialect = ChatCompletions(ANNOTATORS, PrefixMemo(1 << 20))
    cut = max(1, len(messages) - new)
    dialect.parse(
        in_order(b.chat_body(messages[:cut], tools=tools), tools_first=tools_first), ORIGIN
    )
    body = in_order(b.chat_body(messages, tools=tools), tools_first=tools_first)
    known = dialect.recall(body, ORIGIN)
    glance = dialect.glance(body, known) if known is not None else None
    event(f"glanced: {glance is not None}")
    if glance is None:
        return
    parsed = ChatCompletions(ANNOTATORS, PrefixMemo(0)).parse(body, ORIGIN)
    assert parsed is not None
    transcript = parsed.transcript
    full = total(transcript.instructions) + total(transcript.items) + transcript.catalogue
    assert glance.anchor == transcript.anchor
    assert glance.model == parsed.model
    assert glance.tokens >= full.tokens
    assert glance.chars >= full.chars


@pytest.mark.parametrize(
    ("tail", "glanced"),
    [
        ([b.user("more")], True),
        ([b.user("x" * 2000)], False),
        ([b.user([b.image_part("https://x/y.png")])], False),
        ([b.user([{"type": "weird"}])], True),
    ],
)
def test_what_can_be_told_at_a_glance(tail: list[JsonObject], glanced: bool) -> None:
    dialect = ChatCompletions(ANNOTATORS, PrefixMemo(1 << 20))
    messages = [b.system("s"), b.user("task " * 400), b.assistant("ok")]
    dialect.parse(b.chat_body(messages), ORIGIN)
    body = b.chat_body([*messages, *tail])
    known = dialect.recall(body, ORIGIN)
    assert known is not None
    assert (dialect.glance(body, known) is not None) == glanced


def test_nothing_is_told_before_the_first_user_message_or_without_a_model() -> None:
    dialect = ChatCompletions(ANNOTATORS, PrefixMemo(1 << 20))
    opening = [b.system("s" * 2000)]
    dialect.parse(b.chat_body(opening), ORIGIN)
    body = b.chat_body([*opening, b.user("u")])
    known = dialect.recall(body, ORIGIN)
    assert known is not None
    assert dialect.glance(body, known) is None
    late = b'{"messages":[{"role":"user","content":"%s"}],"model":"m"}' % (b"x" * 1200)
    dialect.parse(late, ORIGIN)
    known = dialect.recall(late, ORIGIN)
    assert known is not None
    assert known.items
    assert dialect.glance(late, known) is None
