"""Reading server-sent events, whatever their chunking."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects.sse import EventReader

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINES = st.sampled_from(
    [
        b"data: {}",
        b"data:x",
        b"data",
        b"data:  two",
        b": comment",
        b":",
        b"event: x",
        b"id: 1",
        b"retry: 5",
        b"nonsense",
        b"data: caf\xc3\xa9 \xff",
        b"",
        b"",
    ]
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    lines = draw(st.lists(st.tuples(LINES, ENDS), max_size=12))
    bom = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return bom + b"".join(line + end for line, end in lines)


def read(pieces: list[bytes]) -> list[bytes]:
    reader = EventReader()
    return [data for piece in pieces for data in reader.feed(piece)]


def flushed(pieces: list[bytes]) -> list[bytes]:
    """A last lone CR may be half of a CRLF; one more comment settles it."""
    return read([*pieces, b": end\n"])


@given(streams(), st.lists(st.integers(min_value=0, max_value=80), max_size=10))
def test_events_do_not_depend_on_how_the_bytes_are_split(data: bytes, cuts: list[int]) -> None:
    bounds = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(bounds)]
    assert b"".join(pieces) == data
    assert flushed(pieces) == flushed([data])
    assert flushed([data[n : n + 1] for n in range(len(data))]) == flushed([data])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data:a\n\ndata:  b\n\n", [b"a", b" b"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data\n\ndata:\n\n", [b"", b""]),
        (b": c\n\nevent: x\nid: 1\n\n\n\n", []),
        (b"event: x\ndata: a\nid: 1\n\n", [b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a", []),
        (b"data: a\n", []),
        (b"dataset: a\n\n", []),
        (b"", []),
    ],
)
def test_what_an_event_is(data: bytes, expected: list[bytes]) -> None:
    assert read([data]) == expected
