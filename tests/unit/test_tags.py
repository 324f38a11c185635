"""Which tags of a text belong together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.ledger.tags import tags_of


def test_tags_are_told_by_their_names_in_small_letters() -> None:
    tags = tags_of("a <B x='1'> <c> </ b >")
    assert sorted(tags) == ["b", "c"]
    assert tags["b"].starts == [2, 16]
    assert tags["b"].last_closing == 1
    assert tags["c"].last_closing == -1


@pytest.mark.parametrize(
    ("text", "first", "end"),
    [
        ("<a>x</a>", 0, "<a>x</a"),
        ("<a><a></a></a>", 0, "<a><a></a></a"),
        ("<a><a></a></a>", 1, "<a><a></a"),
        ("<a><a></a>", 0, None),
        ("</a> <a>", 0, "</a> <a"),
    ],
)
def test_where_an_element_ends(text: str, first: int, end: str | None) -> None:
    assert tags_of(text)["a"].balanced(first) == (None if end is None else len(end))


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(0, 29))
def test_counts_and_ends_are_those_of_a_walk_along_the_tags(closes: list[bool], first: int) -> None:
    first = min(first, len(closes) - 1)
    tags = tags_of("".join("</a>" if closing else "<a>" for closing in closes))["a"]
    rest = closes[first:]
    assert tags.counts(first) == (rest.count(False), rest.count(True))
    depth, end = 0, None
    for closing, at in zip(rest, tags.ends[first:], strict=True):
        depth += -1 if closing else 1
        if depth == 0:
            end = at
            break
    assert tags.balanced(first) == end
    assert tags.first(tags.starts[first]) == first
