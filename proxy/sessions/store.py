"""The port that every session store implements.

One contract suite in `tests/contract` runs against each adapter. All methods may raise
`StoreUnavailable`; none leaves anything half written. Times are seconds since the epoch and
are given by the caller.
"""

from collections.abc import Sequence
from typing import Protocol

from proxy.compaction.checkpoint import Checkpoint
from proxy.sessions.state import AnchorState, Archived, Change, SessionRow
from proxy.telemetry import Event


class SessionStore(Protocol):
    """Keeps checkpoints, clips and the archive of replaced items."""

    async def find(self, anchor: bytes, chain: Sequence[bytes]) -> AnchorState:
        """Return what is known for an anchor, with the deepest checkpoint of `chain` read.

        `chain` holds the digests of the request's prefixes, shortest first. Damaged values are
        left out and counted in `corrupt`.
        """
        ...

    async def load_checkpoint(self, checkpoint_id: str) -> Checkpoint | None:
        """Return one checkpoint; None when unknown, damaged or written by a newer version."""
        ...

    async def commit(self, change: Change) -> None:
        """Store a change, whole or not at all. Committing the same change twice is harmless."""
        ...

    async def touch(self, session: str, time: float) -> None:
        """Note that a session was used."""
        ...

    async def append_events(self, events: Sequence[Event]) -> None:
        """Keep events with their sessions; those without a session are dropped."""
        ...

    async def events(self, session: str) -> list[str]:
        """Return the events of a session as JSON lines, oldest first."""
        ...

    async def archived(self, session: str, archive_id: str) -> list[Archived]:
        """Return the items archived under a checkpoint id or clip digest, in order."""
        ...

    async def sessions(self, limit: int = 100) -> list[SessionRow]:
        """List sessions, the most recently used first."""
        ...

    async def delete_session(self, session: str) -> bool:
        """Delete a session and all that no other session reaches; False when unknown."""
        ...

    async def expire(self, now: float) -> int:
        """Apply the retention limits; return how many sessions went."""
        ...

    async def secret(self, name: str) -> bytes:
        """Return a random 32-byte secret, drawn at its first use and kept ever after."""
        ...

    async def close(self) -> None:
        """Release everything; committed data stays."""
        ...
