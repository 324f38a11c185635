"""The envelope of stored values: what comes back, and what must not."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.checkpoint import SCHEMA_VERSION
from proxy.errors import StateCorrupt
from proxy.sessions.sealing import Sealer, parse_keys
from proxy.sessions.state import pack

OLD = ("2025", b"o" * 32)
NEW = ("n", b"n" * 32)
"""An id of one letter: one flipped bit of its length says that the value is not encrypted."""

values = st.binary(max_size=200).map(pack)
contexts = st.binary(max_size=40)
names = st.from_regex(r"[A-Za-z0-9_.-]{1,32}", fullmatch=True)
keys = st.tuples(names, st.binary(min_size=32, max_size=32))


def text_of(key: tuple[str, bytes]) -> str:
    return f"{key[0]}:{base64.b64encode(key[1]).decode()}"


@given(values, contexts, st.lists(keys, max_size=3, unique_by=lambda key: key[0]))
def test_what_was_sealed_is_opened(
    packed: bytes, context: bytes, chosen: list[tuple[str, bytes]]
) -> None:
    sealer = Sealer(chosen)
    assert sealer.open(sealer.seal(packed, context), context) == packed


@given(values, contexts, keys)
def test_damage_of_an_encrypted_value_never_goes_unseen(
    packed: bytes, context: bytes, key: tuple[str, bytes]
) -> None:
    sealer = Sealer([key])
    sealed = sealer.seal(packed, context)
    for bit in range(8 * len(sealed)):
        flipped = bytearray(sealed)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StateCorrupt):
            sealer.open(bytes(flipped), context)
    for length in range(len(sealed)):
        with pytest.raises(StateCorrupt):
            sealer.open(sealed[:length], context)
    with pytest.raises(StateCorrupt):
        sealer.open(sealed + b"\0", context)


@pytest.mark.parametrize("name", ["a", "ab", "abcd", "abcdefgh", "a" * 16, "a" * 32])
def test_a_damaged_length_does_not_make_a_value_plain(name: str) -> None:
    sealer = Sealer([(name, b"k" * 32)])
    sealed = sealer.seal(pack(b"x"), b"")
    with pytest.raises(StateCorrupt):
        sealer.open(sealed[:1] + b"\0" + sealed[2:], b"")


@given(st.binary(max_size=60))
def test_anything_else_is_corrupt(data: bytes) -> None:
    """What opens without an error is a plain value in its envelope."""
    try:
        packed = Sealer([OLD]).open(data, b"")
    except StateCorrupt:
        return
    assert data == bytes((SCHEMA_VERSION, 0)) + packed


@given(values, contexts, contexts)
def test_a_value_opens_only_where_it_belongs(packed: bytes, one: bytes, other: bytes) -> None:
    sealer = Sealer([NEW])
    sealed = sealer.seal(packed, one)
    if one == other:
        assert sealer.open(sealed, other) == packed
    else:
        with pytest.raises(StateCorrupt, match="damaged"):
            sealer.open(sealed, other)


def test_the_context_cannot_be_shifted_into_the_header() -> None:
    key = b"k" * 32
    sealed = Sealer([("a", key)]).seal(pack(b"x"), b"bc")
    shifted = bytes((SCHEMA_VERSION, 2)) + b"ab" + sealed[3:]
    with pytest.raises(StateCorrupt):
        Sealer([("ab", key)]).open(shifted, b"c")


@given(values, contexts)
def test_after_a_rotation_the_old_key_still_opens(packed: bytes, context: bytes) -> None:
    before, after = Sealer([OLD]), Sealer([NEW, OLD])
    assert after.open(before.seal(packed, context), context) == packed
    assert Sealer([NEW]).open(after.seal(packed, context), context) == packed


def test_a_missing_key_is_named() -> None:
    sealed = Sealer([OLD]).seal(pack(b"x"), b"")
    for sealer in (Sealer([NEW]), Sealer()):
        with pytest.raises(StateCorrupt, match=r"^a stored value needs encryption key '2025'$"):
            sealer.open(sealed, b"")


def test_a_key_that_cannot_exist_is_not_named() -> None:
    data = bytes((SCHEMA_VERSION, 3)) + b"\n\xff<" + bytes(40)
    with pytest.raises(StateCorrupt, match=r"^a stored value is damaged$"):
        Sealer([OLD]).open(data, b"")


def test_another_key_of_the_same_id_does_not_open() -> None:
    sealed = Sealer([OLD]).seal(pack(b"x"), b"")
    with pytest.raises(StateCorrupt):
        Sealer([(OLD[0], NEW[1])]).open(sealed, b"")


@given(values, contexts)
def test_a_plain_value_is_read_under_encryption(packed: bytes, context: bytes) -> None:
    plain = Sealer().seal(packed, context)
    assert plain == bytes((SCHEMA_VERSION, 0)) + packed
    assert Sealer([OLD]).open(plain, context) == packed


@given(st.binary(min_size=8, max_size=200))
def test_a_sealed_value_shows_nothing_of_the_plain_one(data: bytes) -> None:
    packed = pack(data)
    first, second = (Sealer([OLD]).seal(packed, b"c") for _ in range(2))
    assert first != second
    for start in range(len(packed) - 7):
        assert packed[start : start + 8] not in first


def test_what_is_not_packed_is_not_sealed() -> None:
    for sealer in (Sealer(), Sealer([OLD])):
        with pytest.raises(ValueError, match="only a packed value"):
            sealer.seal(b"text", b"")


def test_the_version_of_a_newer_value_is_known() -> None:
    sealed = Sealer([OLD]).seal(pack(b"x"), b"")
    newer = bytes((SCHEMA_VERSION + 1,)) + sealed[1:]
    assert Sealer.version_of(sealed) == SCHEMA_VERSION
    assert Sealer.version_of(newer) == SCHEMA_VERSION + 1
    with pytest.raises(StateCorrupt, match="newer version"):
        Sealer([OLD]).open(newer, b"")
    with pytest.raises(StateCorrupt, match="empty"):
        Sealer.version_of(b"")


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_the_address_is_of_the_content(one: bytes, other: bytes) -> None:
    for sealer in (Sealer(), Sealer([OLD])):
        assert len(sealer.address(one)) == 32
        assert (sealer.address(one) == sealer.address(other)) == (one == other)
    assert Sealer().address(one) == hashlib.sha256(one).digest()


def test_the_address_depends_on_the_key_that_encrypts() -> None:
    found = {Sealer(chosen).address(b"x") for chosen in ([], [OLD], [NEW], [NEW, OLD], [OLD, NEW])}
    assert len(found) == 3


@given(st.lists(keys, max_size=4, unique_by=lambda key: key[0]))
def test_keys_are_read_in_their_order(chosen: list[tuple[str, bytes]]) -> None:
    assert parse_keys([text_of(key) for key in chosen]) == chosen


SECRET = base64.b64encode(b"hunter2hunter2hunter2hunter2hunt").decode()


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([SECRET], "key 1 must be ID:BASE64"),
        ([f":{SECRET}"], "key 1 must be ID:BASE64"),
        ([f"{'a' * 33}:{SECRET}"], "key 1 must be ID:BASE64"),
        ([f"a b:{SECRET}"], "key 1 must be ID:BASE64"),
        ([f"{SECRET}:a"], "key 1 must be ID:BASE64"),
        ([f"a:{SECRET}", f"b:{SECRET[4:]}"], "key 2 must hold 32 bytes as base64"),
        ([f"a:{SECRET}\u00e9"], "key 1 must hold 32 bytes as base64"),
        ([f"a:{SECRET[:-1]}"], "key 1 must hold 32 bytes as base64"),
        (["a:"], "openssl rand -base64 32"),
        ([f"a:{SECRET}", f"a:{SECRET}"], "key 2 has the ID of an earlier one"),
    ],
)
def test_a_wrong_key_is_refused_by_its_position(texts: list[str], expected: str) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        parse_keys(texts)
    assert SECRET[4:20] not in str(caught.value)
