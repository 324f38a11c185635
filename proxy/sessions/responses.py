"""The port for recorded responses: what the Responses API would keep for a client.

A response is recorded with the items that led to it and those it put out, so that a request that
only names it (``previous_response_id``), or an item of it (``item_reference``), can be written out
in full. One contract suite in `tests/contract` runs against each adapter. All methods may raise
`StoreUnavailable`; none leaves anything half written. Times are seconds since the epoch and are
given by the caller.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from proxy.sessions.state import Note, ignore


@dataclass(frozen=True, slots=True)
class RecordedResponse:
    """One response and all that led to it.

    Its items are the first `shared` items of another recorded response and then its own, so that
    a long conversation is not written down again for each of its responses.
    """

    key: bytes
    """Names it: a digest of 32 bytes of the tenant and the response's id."""
    anchor: bytes
    """Fingerprint of the conversation's opening, which is bound to the tenant; never empty."""
    base: bytes
    """Key of the response whose first items it shares, of the same anchor; empty for none."""
    shared: int
    """How many items it shares with `base`, counted from the first; 0 without one."""
    items: tuple[bytes, ...] = field(repr=False)
    """Its own items as raw JSON, oldest first."""
    names: tuple[tuple[bytes, int], ...] = ()
    """Keys of items that may be referred to, each a digest of 32 bytes of the tenant and the
    item's id, with the item's place in `items`."""
    time: float = 0.0


class ResponseStore(Protocol):
    """Keeps recorded responses."""

    async def save(self, response: RecordedResponse) -> bool:
        """Record a response, whole or not at all; the newest of one key counts.

        Those that build on what it replaces keep the items they share with that. To record the
        same twice is harmless. False, with nothing stored, when `base` is not (or no longer) known
        under its anchor or has not as many items, and when the place is taken by something that
        must not be overwritten: it is of a newer version, or not ours.
        """
        ...

    async def load(self, key: bytes) -> RecordedResponse | None:
        """Return a response with all its items: without a base. None when it is not known whole.

        `names` is left empty.
        """
        ...

    async def has(self, key: bytes) -> bool:
        """Tell whether a response is known; much less work than loading it."""
        ...

    async def load_items(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """Return the items that are known of these keys, as raw JSON by key.

        The newest item of a key counts, whole or not at all.
        """
        ...

    async def forget(self, key: bytes) -> bool:
        """Delete a response; False when unknown.

        Items that another response of its anchor needs stay until that one goes too, and are
        known by their names as long.
        """
        ...

    async def expire(self, now: float) -> int:
        """Apply the retention limits; return how many responses went.

        The responses of an anchor go together, when none was recorded for the time of retention.
        `SessionStore.expire` does this too.
        """
        ...

    def all_responses(self, note: Note = ignore) -> AsyncIterator[RecordedResponse]:
        """Yield every response, each after its base, so that another store can save them in order.

        What it has from responses that are not known any more counts as its own. Values that
        cannot be read are left out, each with a note, and so is what builds on them.
        """
        ...
