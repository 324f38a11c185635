"""Which lines stand in a code fence."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.ledger import fences
from proxy.compaction.ledger.fences import fenced


def _inside(text: str) -> str:
    """Write a sign for each line: `#` for one in a fence."""
    return "".join("#" if is_in else "." for is_in in fenced(text.split("\n")))


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("a\nb", ".."),
        ("a\n```\nb\n```\nc", ".###."),
        ("~~~\n```\nb\n~~~\nc", "####."),
        ("```\nnever closed\nat all", "###"),
        ("````\n```\nb\n````\nc", "####."),
        ("see: ```py\nb\n```\nc", ".##."),
        ("see: ```\nb```\nc", ".#."),
        ("see: ``` and ```\nb", ".."),
        ("see: ``` two words\nb", ".."),
        ("```\na\n```\nb\n```\nc\n```", "#######"),
        ("```\na\n```\nb\n```py\nc\n```", "###.###"),
    ],
)
def test_lines_in_a_fence(text: str, inside: str) -> None:
    assert _inside(text) == inside


_LATE = re.compile(r"\S.*?(`{3,}|~{3,})\s*\w*\s*$")


@given(st.text(st.sampled_from("`~ \tax."), max_size=30))
def test_the_mark_at_the_end_of_a_line_is_the_last_one(line: str) -> None:
    found = _LATE.search(line)
    assert fences._late_mark(line) == (found[1] if found else "")
