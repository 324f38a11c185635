"""How keys are named in Redis, and how replies are narrowed to what a script promises.

Everything of one anchor has the anchor as its hash tag and so stands in one slot. Listings over
all anchors have a tag of their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from proxy.errors import StateCorrupt
from proxy.sessions.redis_cluster import Reply

ADDRESS_BYTES = 32


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of keys under one prefix."""

    prefix: str

    def state(self, anchor: bytes) -> str:
        """Index, checkpoints, clips, struggle, leases and sessions of an anchor."""
        return f"{self.prefix}:{{{anchor.hex()}}}:state"

    def events(self, anchor: bytes, session: str) -> str:
        """Events of a session; without an anchor those that came before it was known."""
        return f"{self.prefix}:{{{anchor.hex() or session}}}:events:{session}"

    def entries(self, anchor: bytes, session: str, archive_id: str) -> str:
        """Positions and addresses of the items archived under an id."""
        return f"{self.prefix}:{{{anchor.hex()}}}:archive:{session}:{archive_id}"

    def references(self, anchor: bytes) -> str:
        """How many entries name each blob of an anchor."""
        return f"{self.prefix}:{{{anchor.hex()}}}:references"

    def blob(self, anchor: bytes, address: bytes) -> str:
        """One archived item; what follows its address in an entry is not part of the name."""
        return f"{self.prefix}:{{{anchor.hex()}}}:blob:{address[:ADDRESS_BYTES].hex()}"

    def folds(self, anchor: bytes) -> str:
        """Running summaries of an anchor."""
        return f"{self.prefix}:{{{anchor.hex()}}}:folds"

    def responses(self, anchor: bytes) -> str:
        """All recorded responses of an anchor, with their items."""
        return f"{self.prefix}:{{{anchor.hex()}}}:responses"

    def response(self, key: bytes) -> str:
        """The anchor of a recorded response."""
        return f"{self.prefix}:response:{key.hex()}"

    def item(self, key: bytes) -> str:
        """The anchor and the place of an item that may be referred to."""
        return f"{self.prefix}:item:{key.hex()}"

    @property
    def recorded(self) -> str:
        """Anchors by when a response was last recorded."""
        return f"{self.prefix}:{{sessions}}:recorded"

    @property
    def used(self) -> str:
        """Sessions by last use."""
        return f"{self.prefix}:{{sessions}}:used"

    @property
    def anchors(self) -> str:
        """The anchor of each session."""
        return f"{self.prefix}:{{sessions}}:anchors"

    @property
    def repaired(self) -> str:
        """Present while the listing was repaired not long ago."""
        return f"{self.prefix}:{{sessions}}:repaired"

    def secret(self, name: str) -> str:
        """A secret."""
        return f"{self.prefix}:secret:{name}"

    def probe(self, name: str) -> str:
        """A key that is written and deleted to see whether that can be done."""
        return f"{self.prefix}:probe:{name}"

    @property
    def states(self) -> str:
        """A pattern for the state keys of all anchors."""
        return f"{_escaped(self.prefix)}:{{*}}:state"

    @property
    def all_responses(self) -> str:
        """A pattern for the recorded responses of all anchors."""
        return f"{_escaped(self.prefix)}:{{*}}:responses"

    def anchor_of(self, key: bytes) -> bytes:
        """Return the anchor that a key of one of these patterns has; empty when it is not ours."""
        text = key.decode("utf-8", "replace").removeprefix(f"{self.prefix}:{{")
        try:
            return bytes.fromhex(text.rpartition("}:")[0])
        except ValueError:
            return b""


def _escaped(text: str) -> str:
    return "".join(f"\\{c}" if c in "*?[]\\" else c for c in text)


def items(reply: Reply) -> Sequence[Reply]:
    """Narrow to an array; what is none counts as empty."""
    return reply if isinstance(reply, list | tuple) else ()


def data(reply: Reply) -> bytes:
    """Narrow to a string.

    Raises:
        StateCorrupt: when it is none, so not what we wrote.
    """
    if isinstance(reply, bytes):
        return reply
    raise StateCorrupt("Redis holds something else than was written")


def text(reply: Reply) -> str:
    """Narrow to a string of ours, which is ASCII."""
    return data(reply).decode("ascii", "replace")


def tuples(reply: Reply, size: int) -> Iterator[Sequence[Reply]]:
    """Take a flat array apart into groups of `size`."""
    members = items(reply)
    return (members[n : n + size] for n in range(0, len(members) - size + 1, size))
