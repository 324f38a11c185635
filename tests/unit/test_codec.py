"""JSON in one place: exact values, raw slices, lenient reading of unpaired surrogates."""

import re
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import codec
from proxy.codec import Json, MalformedJson

_TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
_LEAVES: st.SearchStrategy[Json] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**90), 2**90),
    st.floats(allow_nan=False, allow_infinity=False),
    _TEXT,
)


def _grow(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    lists: st.SearchStrategy[Json] = st.lists(inner, max_size=4)
    objects: st.SearchStrategy[Json] = st.dictionaries(_TEXT, inner, max_size=4)
    return lists | objects


VALUES = st.recursive(_LEAVES, _grow, max_leaves=12)

# What a JSON string may hold, and the UTF-16 units that it means.
_PIECES = {
    r"\ud83d": "\ud83d",
    r"\uD83D": "\ud83d",
    r"\uDBff": "\udbff",
    r"\ude00": "\ude00",
    r"\uDC00": "\udc00",
    r"\\": "\\",
    r"\"": '"',
    r"\n": "\n",
    r"\u0041": "A",
    r"\ufffd": "\ufffd",
    "u": "u",
    "d83d": "d83d",
    "é": "é",
}


@given(st.lists(st.sampled_from([*_PIECES]), max_size=12))
def test_unpaired_surrogates_are_replaced_and_nothing_else_moves(pieces: list[str]) -> None:
    spelled = '"' + "".join(pieces) + '"'
    units = "".join(_PIECES[piece] for piece in pieces)
    paired = units.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    meant = re.sub("[\ud800-\udfff]", "\ufffd", paired)

    mended = codec.mend_surrogates(spelled.encode())

    assert codec.loads(mended) == meant
    assert codec.loads(spelled.encode()) == meant
    assert len(mended) == len(spelled.encode())
    if meant == paired:
        assert mended == spelled.encode()


@given(VALUES)
def test_a_value_survives_encoding(value: Json) -> None:
    assert codec.loads(codec.dumps(value)) == value
    assert codec.loads(codec.dumps(value).decode()) == value


@given(st.dictionaries(_TEXT, VALUES, max_size=5), st.randoms(use_true_random=False))
def test_the_canonical_form_ignores_the_order_of_keys(
    value: dict[str, Json], random: Random
) -> None:
    keys = [*value]
    random.shuffle(keys)
    assert codec.canonical({key: value[key] for key in keys}) == codec.canonical(value)


@given(VALUES)
def test_the_canonical_form_reads_as_the_same_value_and_is_settled(value: Json) -> None:
    form = codec.canonical(value)
    assert codec.loads(form) == value
    assert codec.canonical(codec.loads(form)) == form


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (b"1.0", b"1"),
        (b"1e2", b"100"),
        (b"1E+2", b"100.0"),
        (b"-0.0", b"0"),
        (b'{"a":[2.0]}', b'{"a":[2]}'),
        (b'"\\u00e9"', '"é"'.encode()),
        (b'{"b":1,"a":2}', b'{ "a" : 2, "b" : 1 }'),
    ],
)
def test_two_spellings_of_one_value_have_one_canonical_form(left: bytes, right: bytes) -> None:
    assert codec.canonical(codec.loads(left)) == codec.canonical(codec.loads(right))


def test_different_values_have_different_canonical_forms() -> None:
    spelled = [
        b"1",
        b"1.5",
        b"true",
        b"null",
        b'"1"',
        b"[]",
        b"{}",
        b'""',
        b"[1]",
        b'{"a":1}',
        b'{"a":[1]}',
        b"9007199254740993",
        b"9007199254740992",
        b"123456789012345678901234567890",
        b"123456789012345678901234567891",
        b"1e300",
    ]
    assert len({codec.canonical(codec.loads(raw)) for raw in spelled}) == len(spelled)


def test_integers_of_any_size_stay_exact() -> None:
    raw = b'{"n":123456789012345678901234567890,"m":-18446744073709551617}'
    assert codec.dumps(codec.loads(raw)) == raw


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[1",
        b"[1]x",
        b"{'a':1}",
        b"NaN",
        b"Infinity",
        b"1e400",
        b'"\xff"',
        b"\xff",
        b'"a\nb"',
        b"[" * 5000 + b"]" * 5000,
    ],
)
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    with pytest.raises(MalformedJson):
        codec.loads(raw)


@pytest.mark.parametrize("depth", [10, 300, 600, 900, 990, 3000])
def test_deep_nesting_is_read_or_refused_but_never_breaks(depth: int) -> None:
    raw = b"[" * depth + b"]" * depth
    forms = []
    for write in (codec.dumps, codec.canonical):
        try:
            forms.append(write(codec.loads(raw)))
        except MalformedJson:
            continue
    assert all(form == raw for form in forms)
    assert forms or depth > 100


def test_the_error_never_carries_the_text() -> None:
    with pytest.raises(MalformedJson) as caught:
        codec.loads(b'{"secret": "sk-12345" ')
    assert "sk-12345" not in str(caught.value)
    assert caught.value.__cause__ is None


_RAWS = st.sampled_from(
    [b"1.0", b"1e5", b"1E+2", b'"\\u00e9"', b"[1 , 2]", b'{ "a" : 1,"a":2 }', b"null", b"true"]
)
_KEYS = st.text(st.characters(codec="utf-8"), max_size=6)


@given(st.dictionaries(_KEYS, _RAWS, max_size=6))
def test_an_object_is_cut_into_the_bytes_it_was_joined_from(members: dict[str, bytes]) -> None:
    cut = codec.split_object(codec.join_object(members))
    assert list(cut.items()) == list(members.items())


@given(st.lists(_RAWS, max_size=6))
def test_an_array_is_cut_into_the_bytes_it_was_joined_from(elements: list[bytes]) -> None:
    assert codec.split_array(codec.join_array(elements)) == elements


def test_slices_leave_out_the_white_space_between_them() -> None:
    assert codec.split_object(b' { "a" : 1.0 ,\n"b":\t[ 1 ] } ') == {"a": b"1.0", "b": b"[ 1 ]"}
    assert codec.split_array(b"[ 1.0 ,\r\n { } ]") == [b"1.0", b"{ }"]


def test_a_repeated_key_keeps_its_last_value() -> None:
    assert codec.split_object(b'{"a":1,"b":2,"a":3}') == {"a": b"3", "b": b"2"}


@pytest.mark.parametrize("raw", [b"[]", b"1", b"", b"{", b'{"a":}', b'{"a":1}{}'])
def test_only_an_object_is_cut_as_an_object(raw: bytes) -> None:
    with pytest.raises(MalformedJson):
        codec.split_object(raw)


@pytest.mark.parametrize("raw", [b"{}", b"1", b"", b"[", b"[1,]", b"[][]"])
def test_only_an_array_is_cut_as_an_array(raw: bytes) -> None:
    with pytest.raises(MalformedJson):
        codec.split_array(raw)


def test_replacing_members_leaves_the_others_alone() -> None:
    raw = b'{"a": 1.0, "b": "\\u00e9", "c": [1 ,2]}'
    changed = codec.replace_members(raw, {"b": b"0", "d": b"true"})
    assert changed == b'{"a":1.0,"b":0,"c":[1 ,2],"d":true}'


def test_texts_and_objects_are_taken_only_from_their_own_shapes() -> None:
    assert [codec.as_text("a"), codec.as_text(1), codec.as_text(None)] == ["a", "", ""]
    assert list(codec.as_objects([{"a": 1}, 2, [], {}])) == [{"a": 1}, {}]
    assert list(codec.as_objects({"a": 1})) == []
