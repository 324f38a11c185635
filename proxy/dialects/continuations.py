"""What a request of the Responses API leaves to a memory, and the request written out in full.

``previous_response_id`` stands for the items of an earlier request and of its response,
``item_reference`` for one item of those. What ``conversation`` and ``prompt`` stand for, only the
upstream knows.
"""

from collections.abc import Iterable, Mapping, Sequence

from proxy import codec
from proxy.dialects import slices
from proxy.transcript import Item, Record

REFERENCE = "item_reference"
"""Type of an item that only names another one; it may be left out."""

PREVIOUS = "previous_response_id"
MEMBER = "input"
_ELSEWHERE = ("conversation", "prompt")
_NOTHING = frozenset({b"null", b'""'})


class Continuation(Record, frozen=True):
    """What a request draws on that is not in its body."""

    previous: str = ""
    """Id of the response that it continues; empty for none."""
    references: tuple[str, ...] = ()
    """Ids of the items that it refers to."""
    elsewhere: bool = False
    """Whether it draws on something else, too, which only the upstream can know."""


def continues(fields: Mapping[str, bytes]) -> bool:
    """Whether the members of a request draw on what is not in it."""
    return any(fields.get(name, b"null") not in _NOTHING for name in (PREVIOUS, *_ELSEWHERE))


def continuation_of(fields: Mapping[str, bytes], items: Iterable[Item]) -> Continuation | None:
    """Return what a request draws on; None when all of it is in its body."""
    references = [item for item in items if item.role == REFERENCE]
    if not references and not continues(fields):
        return None
    previous = slices.string(fields.get(PREVIOUS, b"null"))
    told = fields.get(PREVIOUS, b"null") not in _NOTHING
    return Continuation(
        previous,
        tuple(reference_of(item.raw) for item in references),
        any(fields.get(name, b"null") not in _NOTHING for name in _ELSEWHERE)
        or (told and not previous),
    )


def reference_of(raw: bytes) -> str:
    """Return the id that an item reference names; empty when it names none."""
    value = codec.loads(raw)
    return codec.as_text(value.get("id")) if isinstance(value, dict) else ""


def item_id(raw: bytes) -> str:
    """Return the id of an item; empty when it has none."""
    try:
        return slices.string(codec.split_object(raw).get("id", b"null"))
    except codec.MalformedJson:
        return ""


def resolved(items: Sequence[Item], known: Mapping[str, bytes]) -> list[bytes]:
    """Return the raw items of a request with what it refers to in place of the references.

    Raises:
        KeyError: when one of them is not known.
    """
    return [
        known[reference_of(item.raw)] if item.role == REFERENCE else item.raw
        for item in items
        if item.raw
    ]


def written_out(fields: Mapping[str, bytes], items: Iterable[bytes]) -> bytes:
    """Return a request that says by itself all that it draws on; other members keep their bytes."""
    members = {name: raw for name, raw in fields.items() if name != PREVIOUS}
    return codec.join_object({**members, MEMBER: codec.join_array(items)})
