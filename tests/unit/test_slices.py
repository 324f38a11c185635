"""Raw parts of a body: proven heads, and what strict decoders refuse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import codec
from proxy.dialects import slices


def test_a_head_ends_with_the_bracket_of_the_list() -> None:
    body = b'{ "model": "m", "tools":[1], "input": [1, 2], "stream":true}'
    head = slices.head_of(body, "input", b"[1, 2]")
    assert head == b'{ "model": "m", "tools":[1], "input": ['
    assert slices.head_fields(head) == {"model": b'"m"', "tools": b"[1]", "input": b"[]"}
    assert slices.head_model(head) == "m"
    assert slices.head_model(b'{"input":[') is None


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"old":[1],"input":[1]}', b"[1]"),
        (b'{"old":{"input":[1]},"input":[1]}', b"[1]"),
        (b'{"input":"[1]"}', b'"[1]"'),
        (b'{"input":[1]}', b"[2]"),
        (b'{"a":"%b","input":[1]}' % (b"x" * slices.MAX_CACHED_BYTES), b"[1]"),
    ],
)
def test_what_only_looks_like_a_head_is_none(body: bytes, value: bytes) -> None:
    assert slices.head_of(body, "input", value) is None


def test_a_member_that_is_no_string_is_an_empty_one() -> None:
    assert (slices.string(b'"m\\u0031"'), slices.string(b"5")) == ("m1", "")


_TEXTS = st.lists(
    st.sampled_from([b"a", b"\\ud83d", b"\\udc00", b"\\ud83d\\ude00", b"\\\\ud83d", b'\\"', b","]),
    max_size=4,
).map(lambda parts: b'"' + b"".join(parts) + b'"')


@given(st.lists(_TEXTS, max_size=5), st.sampled_from([b",", b" ,\n "]))
def test_slices_of_a_list_are_the_bytes_that_came(texts: list[bytes], comma: bytes) -> None:
    assert slices.original_elements(b"[" + comma.join(texts) + b"]") == texts


@given(st.dictionaries(st.sampled_from(["a", "b", 'c"', "é"]), _TEXTS))
def test_slices_of_an_object_are_the_bytes_that_came(members: dict[str, bytes]) -> None:
    body = b", ".join(codec.dumps(name) + b" : " + raw for name, raw in members.items())
    assert slices.original_members(b"{ " + body + b"}") == members


@pytest.mark.parametrize("body", [b"", b"[]", b'{"a":"\\ud83d","a":"x"}', b'{"a":}'])
def test_what_cannot_be_cut_is_malformed(body: bytes) -> None:
    with pytest.raises(codec.MalformedJson):
        slices.original_members(body)
