"""JSON in one place: decoding, encoding, and cutting a document into raw slices.

Kept parts of a request go upstream as the bytes the client sent, so this module never
re-encodes what it can slice. It knows JSON and nothing about what the JSON means.
"""

import json  # noqa: TID251  -- the one fallback for numbers that orjson cannot write
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec
import orjson
from typing_extensions import TypeAliasType

Json = TypeAliasType("Json", "bool | int | float | str | list[Json] | dict[str, Json] | None")
"""A decoded JSON value; a named alias, because pydantic cannot resolve an implicit recursion."""

JsonObject: TypeAlias = dict[str, Json]

_T = TypeVar("_T")

_ANY = msgspec.json.Decoder()
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY = msgspec.json.Decoder(list[msgspec.Raw])

_LONE_SURROGATE = re.compile(
    rb"(?<!\\)((?:\\\\)*)"
    rb"(?:\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2}))"
)


class MalformedJson(ValueError):
    """The bytes are not JSON of the expected outer shape. Never carries the text."""


def mend_surrogates(data: bytes) -> bytes:
    r"""Replace each unpaired ``\uD8xx`` escape by ``\uFFFD``, keeping every offset.

    Clients that cut strings by UTF-16 units send such escapes; strict decoders refuse the
    whole document for them.

    >>> mend_surrogates(rb'"a\ud83d"')
    b'"a\\ufffd"'
    """

    def replace(match: "re.Match[bytes]") -> bytes:
        return match[0] if match[2] is None else match[1] + b"\\ufffd"

    return _LONE_SURROGATE.sub(replace, data)


def loads(data: bytes | str) -> Json:
    """Decode one JSON document; integers of any size stay exact.

    Raises:
        MalformedJson: when it is not JSON.
    """
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
    try:
        value: Json = _ANY.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            value = _ANY.decode(mend_surrogates(raw))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise MalformedJson("not valid JSON") from None
    return value


def dumps(value: Json) -> bytes:
    """Encode compactly, keys in the order given.

    Raises:
        MalformedJson: when it is nested too deeply.
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return _dumps_exact(value, sort_keys=False)


def canonical(value: Json) -> bytes:
    """Encode so that equal values give equal bytes: sorted keys, integral floats as integers.

    Raises:
        MalformedJson: when it is nested too deeply.
    """
    try:
        value = _settle_numbers(value)
    except RecursionError:
        raise MalformedJson("nested too deeply") from None
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return _dumps_exact(value, sort_keys=True)


def _dumps_exact(value: Json, *, sort_keys: bool) -> bytes:
    # orjson refuses integers beyond 64 bits and lone surrogates; both must still be representable.
    try:
        text = json.dumps(value, sort_keys=sort_keys, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        raise MalformedJson("nested too deeply") from None
    return text.encode("utf-8", "replace")


def _settle_numbers(value: Json) -> Json:
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, dict):
        return {key: _settle_numbers(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_settle_numbers(member) for member in value]
    return value


def split_object(data: bytes) -> dict[str, bytes]:
    """Cut a JSON object into its members' raw bytes, in order; a repeated key keeps its last value.

    Raises:
        MalformedJson: when it is not a JSON object.
    """
    return {key: bytes(raw) for key, raw in _slices(_OBJECT, data).items()}


def split_array(data: bytes) -> list[bytes]:
    """Cut a JSON array into its elements' raw bytes.

    Raises:
        MalformedJson: when it is not a JSON array.
    """
    return [bytes(raw) for raw in _slices(_ARRAY, data)]


def _slices(decoder: "msgspec.json.Decoder[_T]", data: bytes) -> _T:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise MalformedJson("not valid JSON of the expected shape") from None


def join_object(members: Mapping[str, bytes]) -> bytes:
    """Build an object from raw member values; the inverse of `split_object` up to white space."""
    return b"{" + b",".join(orjson.dumps(k) + b":" + v for k, v in members.items()) + b"}"


def join_array(elements: Iterable[bytes]) -> bytes:
    """Build an array from raw elements."""
    return b"[" + b",".join(elements) + b"]"


def replace_members(raw: bytes, changes: Mapping[str, bytes]) -> bytes:
    """Replace or add members of a raw object; every other member keeps its bytes."""
    return join_object({**split_object(raw), **changes})


def as_text(value: Json) -> str:
    """Return `value` when it is a string, else an empty string."""
    return value if isinstance(value, str) else ""


def as_objects(value: Json) -> Sequence[JsonObject]:
    """Return the objects of a list, and nothing for any other shape."""
    if not isinstance(value, list):
        return []
    return [member for member in value if isinstance(member, dict)]
