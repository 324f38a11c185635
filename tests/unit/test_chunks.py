"""Chunks: every passage once, in order, each chunk within its budget, clipped as mildly as goes."""

import re

from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction import chunks
from proxy.compaction.clip import MARKER
from proxy.compaction.measure import text_tokens
from proxy.compaction.prompt import Passage, join
from tests.builders import prose
from tests.strategies import texts

_NUMBER = re.compile(r"\[(\d+)\] user:")
_TEXTS = st.lists(
    st.one_of(
        texts(300),
        st.integers(1, 30_000).map(lambda n: prose(n, n)),
        st.integers(1, 9000).map(lambda n: "漢字かな交じり文" * (n // 8 + 1)),
        st.integers(1, 9000).map(lambda n: "0123456789abcdef" * (n // 16 + 1)),
    ),
    min_size=1,
    max_size=20,
)


def passages(contents: list[str], *, results: bool = False) -> list[Passage]:
    return [Passage(f"[{n}] user:", text, results) for n, text in enumerate(contents, 1)]


def cost(text: str) -> int:
    """What passages cost, each measured by itself."""
    found = [*_NUMBER.finditer(text)]
    ends = [*(match.start() for match in found[1:]), len(text)]
    return sum(text_tokens(text[m.start() : end]) for m, end in zip(found, ends, strict=True))


@given(_TEXTS, st.booleans(), st.integers(60, 6000), st.integers(60, 6000), st.integers(1, 6))
def test_every_passage_is_in_one_chunk_in_order_and_each_chunk_fits(
    contents: list[str], results: bool, first: int, later: int, calls: int
) -> None:
    parts = passages([re.sub(r"\[\d+\] user:", "", text) for text in contents], results=results)
    span = chunks.fitted(parts, first, later, calls)
    made = [*span.chunks(first, later)]
    assert sum(chunk.count for chunk in made) == len(parts)
    numbers = [int(n) for chunk in made for n in _NUMBER.findall(chunk.text)]
    assert numbers == [*range(1, len(parts) + 1)]
    assert cost(made[0].text) <= first
    assert all(cost(chunk.text) <= later for chunk in made[1:])


@given(_TEXTS, st.integers(60, 6000), st.integers(1, 6))
def test_what_was_clipped_made_room_for_few_calls_or_is_at_the_floor(
    contents: list[str], tokens: int, calls: int
) -> None:
    parts = passages(contents)
    span = chunks.fitted(parts, tokens, tokens, calls)
    whole = chunks.Span(parts, [text_tokens(join([p]) + "\n") for p in parts])
    made = len([*span.chunks(tokens, tokens)])
    if span == whole or made <= min(calls, 2):
        return
    longest = max(len(p.text) for p in span.parts)
    assert longest >= min(max(len(p.text) for p in parts), chunks.CAPS[-1][1])
    squeezed = any(c > tokens for c in whole.costs)
    assert squeezed or len([*whole.chunks(tokens, tokens)]) > calls


def test_what_fits_one_call_is_one_chunk_word_for_word() -> None:
    parts = passages([prose(30_000), prose(20_000, 1)])
    span = chunks.fitted(parts, 20_000, 100, 4)
    assert [*span.chunks(20_000, 100)] == [chunks.Chunk(join(parts), 2, sum(span.costs))]


def test_results_are_clipped_together_with_longer_texts() -> None:
    parts = [Passage("u", prose(20_000), False), Passage("r", prose(20_000, 1), True)]
    span = chunks.fitted(parts, 6300, 6300, 1)
    assert [len(part.text) for part in span.parts] == [16_000, 8000]
    assert all(part.text.endswith(MARKER) and part.text.count(MARKER) == 1 for part in span.parts)


def test_more_calls_are_made_rather_than_clipping_below_the_floor() -> None:
    parts = [Passage(f"[{n}] result:", prose(9000, n), True) for n in range(60)]
    span = chunks.fitted(parts, 3000, 3000, 4)
    assert {len(part.text) for part in span.parts} == {2048}
    assert len([*span.chunks(3000, 3000)]) > 4


def test_what_is_a_little_too_much_for_one_call_is_clipped_rather_than_called_for_twice() -> None:
    parts = [Passage(f"[{n}] result:", prose(2000, n), True) for n in range(10)]
    whole = sum(text_tokens(join([part]) + "\n") for part in parts)
    span = chunks.fitted(parts, int(whole / 1.2), 10_000, 4)
    assert [chunk.count for chunk in span.chunks(int(whole / 1.2), 10_000)] == [10]
    assert {len(part.text) for part in span.parts} == {1536}
    assert chunks.fitted(parts, int(whole / 2.1), 10_000, 4).parts == parts


def test_what_is_more_than_that_is_clipped_rather_than_called_for_more_than_twice() -> None:
    parts = [Passage(f"[{n}] result:", prose(2000, n), True) for n in range(20)]
    whole = sum(text_tokens(join([part]) + "\n") for part in parts)
    first, later = int(whole / 2.4), int(whole / 3.6)
    span = chunks.fitted(parts, first, later, 4)
    assert len([*span.chunks(first, later)]) == 2
    assert {len(part.text) for part in span.parts} == {1280}
    assert chunks.fitted(parts, int(whole / 3.1), later, 4).parts == parts


def test_one_passage_that_no_chunk_holds_is_clipped_until_it_does() -> None:
    parts = passages(["short", "語" * 4000, "short too"])
    span = chunks.fitted(parts, 500, 500, 4)
    large = next(c for c in span.chunks(500, 500) if "語" in c.text)
    assert large.count == 1
    assert large.text.endswith(MARKER)
    assert 300 < text_tokens(large.text) <= 500


def test_without_room_for_a_heading_there_is_no_chunk() -> None:
    span = chunks.fitted(passages(["text"]), 2, 2, 4)
    assert span.take(0, 2) == chunks.Chunk("", 0)
    assert [*span.chunks(2, 2)] == []
    assert span.take(1, 100) == chunks.Chunk("", 0)
