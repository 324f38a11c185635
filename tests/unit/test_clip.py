"""Shortening: exact caps, the order of the rounds, and what is never touched."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import codec
from proxy.codec import Json
from proxy.compaction.clip import (
    ARGUMENT_CAPS,
    MARKER,
    RESULT_CAPS,
    TEXT_CAPS,
    Clippable,
    Clipped,
    clip,
    clip_arguments,
    clip_text,
    clip_texts,
)
from proxy.compaction.measure import text_tokens
from proxy.transcript import Caps, Size
from tests import strategies

_CAPS = st.integers(len(MARKER), 3000)
_TEXTS = st.lists(st.one_of(st.just(""), strategies.texts(2000)), max_size=4)
_VALUES: st.SearchStrategy[Json] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), strategies.texts(1500)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


def _size(texts: Sequence[str], arguments: Sequence[str] = ()) -> Size:
    strings = [*texts, *arguments]
    return Size(sum(map(len, strings)), 4 + sum(map(text_tokens, strings)))


def _message(
    index: int, text: str | Sequence[str], arguments: Sequence[str] = (), *, result: bool = True
) -> Clippable:
    texts = (text,) if isinstance(text, str) else tuple(text)
    return Clippable(index, result, texts, _size(texts, arguments), tuple(arguments))


def _total(messages: Sequence[Clippable]) -> Size:
    return sum((m.size for m in messages), Size())


def _chars(limit: int) -> Callable[[Size], bool]:
    return lambda size: size.chars <= limit


def _after(messages: Sequence[Clippable], done: dict[int, Clipped]) -> Size:
    return sum((done[m.index].size if m.index in done else m.size for m in messages), Size())


@st.composite
def _messages(draw: st.DrawFn) -> list[Clippable]:
    count = draw(st.integers(1, 6))
    return [
        _message(
            index * 3,
            draw(st.lists(strategies.texts(9000), max_size=2)),
            [codec.dumps(value).decode() for value in draw(st.lists(_VALUES, max_size=1))],
            result=draw(st.booleans()),
        )
        for index in range(count)
    ]


def test_the_caps_and_the_marker_are_those_of_the_design() -> None:
    assert MARKER == "… [truncated by context budget]"
    assert RESULT_CAPS == (8000, 4096, 2048, 1024, 512)
    assert TEXT_CAPS == (16_000, 8192, 4096, 2048, 1024)


@pytest.mark.parametrize("cap", RESULT_CAPS)
def test_a_clipped_text_has_exactly_the_cap_with_its_marker(cap: int) -> None:
    assert clip_text("x" * (cap + 1), cap) == "x" * (cap - 31) + MARKER
    assert len(clip_text("修" * 100_000, cap)) == cap
    assert clip_text("x" * cap, cap) == "x" * cap


@given(strategies.texts(3000), _CAPS)
def test_text_clipping_is_exact_and_stable(text: str, cap: int) -> None:
    clipped = clip_text(text, cap)
    assert len(clipped) == min(len(text), cap)
    assert clip_text(clipped, cap) == clipped
    assert clipped == text or text.startswith(clipped.removesuffix(MARKER))


@given(_TEXTS, _CAPS)
def test_parts_together_have_exactly_the_cap(texts: list[str], cap: int) -> None:
    clipped = clip_texts(texts, cap)
    joined, before = "".join(clipped), "".join(texts)
    assert len(joined) == min(len(before), cap)
    assert clip_texts(clipped, cap) == clipped
    assert joined == clip_text(before, cap)
    assert clipped[:-1] == texts[: len(clipped)][:-1]


def test_parts_that_would_be_empty_are_dropped() -> None:
    assert clip_texts(["a" * 100, "b" * 100, "c" * 100], 131) == ["a" * 100 + MARKER]
    assert clip_texts(["a" * 100, "b" * 100, "c" * 100], 200) == ["a" * 100, "b" * 69 + MARKER]


@given(_VALUES, st.integers(len(MARKER), 1200))
def test_clipped_arguments_stay_json_of_the_same_shape(value: Json, cap: int) -> None:
    arguments = codec.dumps(value).decode()
    clipped = clip_arguments(arguments, cap)
    assert clip_arguments(clipped, cap) == clipped
    if isinstance(value, str):
        assert clipped == arguments
    else:
        assert codec.loads(clipped) == _expected(value, cap)


def _expected(value: Json, cap: int) -> Json:
    if isinstance(value, dict):
        return {key: _expected(member, cap) for key, member in value.items()}
    if isinstance(value, list):
        return [_expected(member, cap) for member in value]
    return clip_text(value, cap) if isinstance(value, str) else value


def test_arguments_without_a_long_leaf_keep_their_bytes() -> None:
    spaced = '{ "n": 1.0,  "text": "short" }'
    assert clip_arguments(spaced, 256) == spaced
    assert clip_arguments('{"patch": "' + "x" * 900, 256) == '{"patch": "' + "x" * 900
    long = '{ "n": 10000000000000000000001, "text": "' + "x" * 300 + '" }'
    assert clip_arguments(long, 256) == (
        '{"n":10000000000000000000001,"text":"' + "x" * 225 + MARKER + '"}'
    )


def test_the_largest_is_clipped_first_and_no_more_than_needed() -> None:
    messages = [_message(0, "a" * 9000), _message(1, "b" * 12_000), _message(2, "c" * 10_000)]
    assert {*clip(messages, _total(messages), _chars(30_999))} == {1}
    assert {*clip(messages, _total(messages), _chars(26_999))} == {1, 2}
    assert {*clip(messages, _total(messages), _chars(24_000))} == {0, 1, 2}


def test_of_equal_messages_the_lower_index_goes_first() -> None:
    messages = [_message(index, "x" * 9000) for index in (7, 2, 5)]
    assert [*clip(messages, _total(messages), _chars(25_500))] == [2, 5]


def test_results_and_texts_share_a_round_each_with_its_own_cap() -> None:
    messages = [_message(0, "u" * 20_000, result=False), _message(1, "r" * 9000)]
    assert clip(messages, _total(messages), _chars(24_000)) == {
        0: Clipped(Caps(16_000), _size(["u" * 15_969 + MARKER])),
        1: Clipped(Caps(8000), _size(["r" * 7969 + MARKER])),
    }
    assert clip(messages, _total(messages), _chars(23_999))[0].caps == Caps(8192)


def test_a_round_is_ended_before_the_next_cap_begins() -> None:
    messages = [_message(0, "x" * 50_000), _message(1, "y" * 8100)]
    done = clip(messages, _total(messages), _chars(16_000))
    assert {index: clipped.caps.text for index, clipped in done.items()} == {0: 8000, 1: 8000}


def test_arguments_are_the_last_resort() -> None:
    arguments = codec.dumps({"text": "x" * 2000}).decode()
    messages = [_message(0, "r" * 9000), _message(1, "", [arguments], result=False)]
    roomy = clip(messages, _total(messages), _chars(512 + len(arguments)))
    assert roomy == {0: Clipped(Caps(512), _size(["r" * 481 + MARKER]))}
    tight = clip(messages, _total(messages), _chars(0))
    assert tight[1].caps == Caps(None, ARGUMENT_CAPS[-1])
    assert tight[1].size == _size([""], [clip_arguments(arguments, 256)])


def test_the_largest_arguments_are_clipped_first() -> None:
    small, large = (codec.dumps({"text": "x" * size}).decode() for size in (2000, 3000))
    messages = [_message(0, "", [small]), _message(1, "", [large])]
    assert {*clip(messages, _total(messages), _chars(_total(messages).chars - 1))} == {1}


def test_several_parts_are_one_message() -> None:
    message = _message(0, ["x" * 5000, "y" * 5000])
    done = clip([message], message.size, _chars(9000))
    assert done[0].caps == Caps(8000)
    assert done[0].size.chars == 8000


@given(_messages(), st.integers(0, 30_000))
def test_clipping_fits_whenever_it_can(messages: list[Clippable], limit: int) -> None:
    done = clip(messages, _total(messages), _chars(limit))
    least = _after(messages, clip(messages, _total(messages), _chars(0)))
    assert _after(messages, done).chars <= max(limit, least.chars)


@given(_messages())
def test_the_least_size_is_every_last_cap(messages: list[Clippable]) -> None:
    done = clip(messages, _total(messages), lambda _: False)
    for message in messages:
        caps = done[message.index].caps if message.index in done else Caps()
        texts = clip_texts(message.texts, 512 if message.is_result else 1024)
        arguments = [clip_arguments(text, 256) for text in message.arguments]
        assert (caps.text is not None) == (texts != [*message.texts])
        assert _after([message], done) == _size(texts, arguments)


@given(_messages(), st.integers(0, 30_000))
def test_clipping_twice_changes_nothing(messages: list[Clippable], limit: int) -> None:
    done = clip(messages, _total(messages), _chars(limit))
    assert clip(messages, _after(messages, done), _chars(limit), done) == done


@given(_messages(), st.integers(0, 30_000), st.integers(0, 30_000))
def test_earlier_decisions_are_kept_or_tightened(
    messages: list[Clippable], first: int, second: int
) -> None:
    before = clip(messages, _total(messages), _chars(first))
    after = clip(messages, _after(messages, before), _chars(second), before)
    for index, old in before.items():
        assert _no_looser(after[index].caps.text, old.caps.text)
        assert _no_looser(after[index].caps.arguments, old.caps.arguments)


def _no_looser(new: int | None, old: int | None) -> bool:
    return old is None or (new is not None and new <= old)


@given(_messages(), st.integers(0, 30_000))
def test_without_the_last_step_it_would_not_fit(messages: list[Clippable], limit: int) -> None:
    totals: list[Size] = []

    def fits(size: Size) -> bool:
        totals.append(size)
        return size.chars <= limit

    done = clip(messages, _total(messages), fits)
    assert all(size.chars > limit for size in totals[:-1])
    if len(totals) > 1 and totals[-1].chars <= limit:
        assert totals[-1] == _after(messages, done)
    if _total(messages).chars <= limit:
        assert done == {}


def test_arguments_nested_beyond_reason_stay_as_they_are() -> None:
    deep = '{"a":' * 900 + '"' + "x" * 3000 + '"' + "}" * 900
    assert clip_arguments(deep, 256) == deep
