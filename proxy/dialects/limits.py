"""The members of a request that limit its output."""

from collections.abc import Sequence

from proxy import codec

MIN_OUTPUT = 16
"""The least that the Responses API takes."""

_MAX_DIGITS = 12


def output_limit(body: bytes, names: Sequence[str]) -> int | None:
    """Return the output limit of a request; None when it names none that can be read."""
    try:
        members = codec.split_object(body)
    except codec.MalformedJson:
        return None
    found = [
        int(members[name])
        for name in names
        if members.get(name, b"").isdigit() and len(members[name]) < _MAX_DIGITS
    ]
    return max(found, default=None)


def with_output_limit(body: bytes, names: Sequence[str], tokens: int) -> bytes | None:
    """Return a request with all its output limits lowered to `tokens`; other members stay.

    None when it names none above that.
    """
    try:
        members = codec.split_object(body)
    except codec.MalformedJson:
        return None
    lowered = {
        name: b"%d" % tokens
        for name in names
        if members.get(name, b"").isdigit()
        and len(members[name]) < _MAX_DIGITS
        and int(members[name]) > tokens
    }
    return codec.join_object({**members, **lowered}) if lowered else None
