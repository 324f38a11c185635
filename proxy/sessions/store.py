"""The port that every session store implements.

One contract suite in `tests/contract` runs against each adapter. All methods may raise
`StoreUnavailable`; none leaves anything half written. Times are seconds since the epoch and
are given by the caller; only leases run on the store's own clock, so that many processes agree.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from typing import Protocol

from proxy.compaction.checkpoint import Checkpoint, Fold
from proxy.sessions.responses import ResponseStore
from proxy.sessions.state import (
    AnchorState,
    Archived,
    Change,
    Lease,
    Note,
    SessionRow,
    ignore,
)
from proxy.telemetry import Event


class SessionStore(Protocol):
    """Keeps checkpoints, clips and the archive of replaced items."""

    async def find(
        self, anchor: bytes, chain: Sequence[bytes], known: Collection[str] = ()
    ) -> AnchorState:
        """Return what is known for an anchor, with the deepest checkpoint of `chain` read.

        `chain` holds the digests of the request's prefixes, shortest first, all of one length.
        Checkpoints in `known` are in the caller's hands already and are not read again.
        Damaged values are left out and counted in `corrupt`.
        """
        ...

    async def load_checkpoint(self, anchor: bytes, checkpoint_id: str) -> Checkpoint | None:
        """Return one checkpoint; None when unknown, damaged or written by a newer version."""
        ...

    async def commit(self, change: Change) -> None:
        """Store a change, whole or not at all. Committing the same change twice is harmless.

        Raises:
            LeaseLost: when the change names a lease that somebody else took over meanwhile, or
                a version before the latest deletion.
        """
        ...

    async def save_fold(
        self, anchor: bytes, fold: Fold, time: float, version: int | None = None
    ) -> None:
        """Keep a running summary until its session goes; one under the same key is replaced.

        Of each anchor the newest `MAX_FOLDS` are kept. With a `version`, nothing is kept once a
        deletion has raised the anchor's above it. What a newer version of the program wrote is
        not overwritten.
        """
        ...

    async def load_folds(self, anchor: bytes) -> list[Fold]:
        """Return the running summaries of an anchor that can be read, in no order."""
        ...

    async def drop_folds(self, anchor: bytes, keys: Collection[bytes]) -> None:
        """Delete running summaries that are needed no longer; unknown keys are harmless."""
        ...

    async def acquire_lease(self, anchor: bytes, cut_digest: bytes, seconds: float) -> Lease | None:
        """Take the right to make a compaction; None while somebody else has it.

        It lapses after `seconds` on the store's clock unless renewed.
        """
        ...

    async def renew_lease(self, lease: Lease, seconds: float) -> bool:
        """Keep a lease for `seconds` more; False when somebody else took it over."""
        ...

    async def release_lease(self, lease: Lease) -> None:
        """Give a lease back; harmless when it lapsed or was taken over."""
        ...

    async def touch(self, anchor: bytes, session: str, time: float) -> None:
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

    def all_sessions(self) -> AsyncIterator[str]:
        """Yield the id of every session once, in no order.

        Sessions that come or go meanwhile may be told or not; all others are, however often
        they are used meanwhile.
        """
        ...

    async def delete_session(self, session: str) -> bool:
        """Delete a session and all that no other session reaches; False when unknown.

        With the last session of an anchor go the responses that were recorded under it. All
        running summaries of its anchor go with any session: they are soon made again.
        """
        ...

    async def expire(self, now: float) -> int:
        """Apply the retention limits, also to recorded responses; return how many sessions went."""
        ...

    async def secret(self, name: str) -> bytes:
        """Return a random 32-byte secret, drawn at its first use and kept ever after."""
        ...

    async def known_secret(self, name: str) -> bytes | None:
        """Return a secret; None when none was drawn or adopted."""
        ...

    async def adopt_secret(self, name: str, value: bytes) -> bytes:
        """Keep a secret that comes from another store, unless there is one; return what stands."""
        ...

    def export(self, session: str, note: Note = ignore) -> AsyncIterator[Change]:
        """Yield changes that recreate a session when another store commits them in order.

        Values that cannot be read are left out, each with a note. So are running summaries:
        what they were made for makes them again.
        """
        ...

    async def close(self) -> None:
        """Release everything; committed data stays."""
        ...


class WholeStore(SessionStore, Protocol):
    """A session store with that of the responses recorded beside the sessions."""

    @property
    def responses(self) -> ResponseStore:
        """What it keeps of the Responses API; opened, closed and expired with it."""
        ...
