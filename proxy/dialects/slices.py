"""Parts of a body as raw bytes: the head in front of the list, and what strict decoders refuse."""

import re
from functools import lru_cache

from proxy import codec

_MEMBER_LEAD = re.compile(rb'\s*[{,]\s*"(?:[^"\\]|\\.)*"\s*:\s*')
MAX_CACHED_BYTES = 128 * 1024
"""Longer heads and catalogues are looked at anew each time, so that caches stay small."""


@lru_cache(maxsize=1024)
def string(raw: bytes) -> str:
    """Return a string member; an empty string when it is none."""
    return codec.as_text(codec.loads(raw))


@lru_cache(maxsize=256)
def head_model(head: bytes) -> str | None:
    """Return the model that a head names, or None."""
    for name, raw in head_members(head):
        if name == "model":
            return string(raw)
    return None


@lru_cache(maxsize=256)
def head_members(head: bytes) -> tuple[tuple[str, bytes], ...]:
    """Return the members of a head; that of the list is empty.

    Raises:
        MalformedJson: when it is no head.
    """
    members = codec.split_object(head + b"]}")
    return tuple(members.items())


def head_fields(head: bytes) -> dict[str, bytes]:
    """Return the members of a head by name."""
    return dict(head_members(head))


def head_of(body: bytes, member: str, messages: bytes) -> bytes | None:
    """Return the bytes up to and including the bracket that opens the list, proven to be that."""
    start = body.find(messages)
    if messages[:1] != b"[" or not 0 <= start < MAX_CACHED_BYTES:
        return None
    head = body[: start + 1]
    try:
        members = head_members(head)
    except codec.MalformedJson:
        return None
    return head if members and members[-1] == (member, b"[]") else None


# Unpaired surrogates make strict decoders refuse the document; they are mended for reading
# only, at the same offsets, and the client's bytes are what is kept.


def original_members(body: bytes) -> dict[str, bytes]:
    """Cut an object that strict decoders refuse for its surrogates; its bytes stay.

    Raises:
        MalformedJson: when it is not an object, or a member is repeated.
    """
    mended = codec.mend_surrogates(body)
    originals: dict[str, bytes] = {}
    position = 0
    for key, raw in codec.split_object(mended).items():
        lead = _MEMBER_LEAD.match(mended, position)
        if lead is None or not mended.startswith(raw, lead.end()):
            raise codec.MalformedJson("a repeated member in a document with unpaired surrogates")
        position = lead.end() + len(raw)
        originals[key] = body[lead.end() : position]
    return originals


def original_elements(array: bytes) -> list[bytes]:
    """Cut an array that strict decoders refuse for its surrogates; its bytes stay.

    Raises:
        MalformedJson: when it is not an array.
    """
    mended = codec.mend_surrogates(array)
    position = 1
    originals = []
    for raw in codec.split_array(mended):
        position = mended.find(raw, position)
        originals.append(array[position : position + len(raw)])
        position += len(raw)
    return originals
