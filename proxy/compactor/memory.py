"""What this process remembers of the store, and how it copes without one.

State is cached per anchor. Only this cache talks to the store: with a time limit, and never
fatally. While the store is down, cached state still serves, and what could not be stored is
kept and stored later.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Literal

from proxy.compaction.checkpoint import Checkpoint
from proxy.compactor.breaker import RETRY_SECONDS
from proxy.compactor.entries import (
    NOTHING,
    Entry,
    Found,
    clips_of,
    lost_checkpoint,
    lost_clips,
    stored_again,
    with_change,
)
from proxy.compactor.storage import (
    CALL_SECONDS,
    COMMIT_SECONDS,
    DAMAGED,
    FAILED,
    NoAnswer,
    StoreCalls,
)
from proxy.errors import LeaseLost
from proxy.sessions.state import AnchorState, Change, Lease
from proxy.sessions.store import SessionStore
from proxy.telemetry import EventSink
from proxy.transcript import Transcript

FRESH_SECONDS = 30.0
PATIENCE_SECONDS = 2.0
"""How long a request waits for the embedded store."""

WORTHWHILE_SECONDS = 1.0
"""How long a request waits for the store when a compaction depends on the answer."""

LARGE_BYTES = 256 * 1024

LEASE_SECONDS = 10.0
TOUCH_SECONDS = 3600.0
MAX_ANCHORS = 2048
MAX_PENDING = 256


class SessionMemory:
    """Reads and writes session state for one process."""

    def __init__(
        self,
        store: SessionStore,
        sink: EventSink,
        now: Callable[[], float],
        *,
        patience: float = PATIENCE_SECONDS,
        shared: bool = False,
    ) -> None:
        """Take the store, where to report its failures, and the clock (seconds since epoch).

        Args:
            store: where state is kept.
            sink: gets a `store_failed` event for every failure.
            now: the clock.
            patience: longest that a request waits for an answer, in seconds.
            shared: whether other processes use the store too.
        """
        self.shared = shared
        self._store = store
        self._now = now
        self.calls = StoreCalls(sink, now, patience)
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        self._pending: deque[Change] = deque()
        self._committing = 0
        self._touched: OrderedDict[str, float] = OrderedDict()
        self._touches: dict[str, bytes] = {}

    @property
    def store_down(self) -> bool:
        """Whether the last call to the store failed or something still waits to be stored."""
        calls = self.calls
        return calls.reads.is_open or calls.writes.is_open or bool(self._pending)

    @property
    def pending(self) -> int:
        """How many changes are not stored yet."""
        return len(self._pending) + self._committing

    def knows_nothing_of(self, anchor: bytes) -> bool:
        """Tell whether nothing is stored for an anchor; False when the store must be asked."""
        entry = self._entries.get(anchor)
        if entry is None or not entry.is_blank or self._is_stale(entry):
            return False
        self._entries.move_to_end(anchor)
        return True

    async def find(self, transcript: Transcript) -> Found:
        """Return the state of a request's prefix; without a store, what this process knows."""
        anchor = transcript.anchor
        entry = self._entries.get(anchor)
        if entry is None or self._is_stale(entry):
            entry, _ = await self._read(transcript, None)
        else:
            self._entries.move_to_end(anchor)
        if not entry.state.cuts and not entry.state.clip_sets:
            struggle = entry.state.struggle
            return NOTHING if struggle == NOTHING.struggle else replace(NOTHING, struggle=struggle)
        found = await self._match(entry, transcript)
        if found.session:
            self._note_use(anchor, found.session)
        return found

    async def refresh(self, transcript: Transcript) -> Found | None:
        """Ask the store whatever is remembered, since much depends on it; then as `find`.

        None when it does not answer.
        """
        entry = self._entries.get(transcript.anchor)
        if entry is None or not entry.pending:
            entry, answered = await self._read(transcript, WORTHWHILE_SECONDS)
            if not answered:
                return None
        return await self.find(transcript)

    async def checkpoint(self, anchor: bytes, checkpoint_id: str) -> Checkpoint | None:
        """Return one checkpoint of an anchor by id."""
        entry = self._entries.get(anchor)
        if entry is None:
            return None
        return await self._load(anchor, entry, checkpoint_id)

    async def commit(self, change: Change) -> bool:
        """Store a change and use it from then on; False when it is to be stored later.

        Raises:
            LeaseLost: when somebody else made the compaction; nothing is kept of the change.
        """
        entry = self._entry(change.anchor)
        if entry.asked:
            change = replace(change, version=entry.state.version)
        # Until it is stored, what this process knows is newer than what the store says.
        entry.pending += 1
        entry.changed += 1
        if self._must_follow(change) or not self.calls.writes.allows():
            entry.state = with_change(entry.state, change)
            self._postpone(change)
            return False
        # Goes on when the caller leaves: others may have seen that it was made.
        task = self.calls.start(self._commit(change, entry))
        # A summary is worth a wait; clips are not.
        patience = self.calls.patience if change.lease is None else WORTHWHILE_SECONDS
        if await self.calls.within(task, patience):
            return task.result()
        if sum(len(item.raw) for item in change.archive) <= LARGE_BYTES:
            # More than that may simply take its time.
            self.calls.failed(self.calls.writes, "commit", "timeout")
        entry.state = with_change(entry.state, change)
        return False

    async def acquire(self, anchor: bytes, cut_digest: bytes) -> Lease | Literal["held", "down"]:
        """Take the right to make a compaction, unless another process has it."""
        if not self.calls.writes.allows():
            return "down"
        acquire = partial(self._store.acquire_lease, anchor, cut_digest, LEASE_SECONDS)
        work = self.calls.attempt(self.calls.writes, "lease", acquire, CALL_SECONDS)
        task = self.calls.start(work)
        answered = False
        try:
            answered = await self.calls.within(task, self.calls.patience)
        finally:
            if not answered:
                # Late, or the caller left: nobody will use it, and others should not wait for it.
                task.add_done_callback(self._give_back)
        if not answered:
            self.calls.failed(self.calls.writes, "lease", "timeout")
            return "down"
        lease = task.result()
        return "down" if isinstance(lease, NoAnswer) else lease or "held"

    async def renew(self, lease: Lease) -> None:
        """Keep a lease; when that fails somebody else may take it over, and the commit tells."""
        await self.calls.ask(
            self.calls.writes,
            "lease",
            lambda: self._store.renew_lease(lease, LEASE_SECONDS),
            WORTHWHILE_SECONDS,
        )

    def release(self, lease: Lease) -> None:
        """Give a lease back, without waiting."""
        release = partial(self._store.release_lease, lease)
        _ = self.calls.start(self.calls.ask(self.calls.writes, "lease", release))

    def _give_back(self, task: "asyncio.Task[Lease | NoAnswer | None]") -> None:
        lease = None if task.cancelled() or task.exception() else task.result()
        if isinstance(lease, Lease):
            self.release(lease)

    async def flush(self) -> None:
        """Store what could not be stored before; called from time to time."""
        stuck = set[bytes]()
        for change in list(self._pending):
            # One that is refused for itself must not keep the others waiting, but changes of one
            # anchor stay in order.
            if change.anchor in stuck or not await self._store_late(change):
                stuck.add(change.anchor)
            if self.calls.silent:
                return

    async def close(self) -> None:
        """Finish what is under way and store what waits."""
        await self.calls.settle()
        await self.flush()

    async def note_uses(self) -> None:
        """Tell the store which sessions were used; called from time to time."""
        while self._touches:
            session, anchor = self._touches.popitem()
            touch = partial(self._store.touch, anchor, session, self._now())
            if await self.calls.ask(self.calls.writes, "touch", touch, 1.0) is FAILED:
                self._touched.pop(session, None)

    def _note_use(self, anchor: bytes, session: str) -> None:
        now = self._now()
        if self._touched.get(session, 0.0) + TOUCH_SECONDS > now:
            return
        self._touched[session] = now
        self._touches[session] = anchor
        if len(self._touched) > MAX_ANCHORS:
            self._touched.popitem(last=False)

    def _is_stale(self, entry: Entry) -> bool:
        if entry.pending:
            return False
        # While the store was away others went on too.
        if entry.read_at < self.calls.recovered_at:
            return True
        # A clock that was set back must not make old knowledge last.
        return not 0 <= self._now() - entry.read_at < FRESH_SECONDS

    def _entry(self, anchor: bytes) -> Entry:
        entry = self._entries.get(anchor)
        if entry is None:
            entry = self._entries[anchor] = Entry(AnchorState(), self._now())
            self._evict()
        self._entries.move_to_end(anchor)
        return entry

    def _evict(self) -> None:
        spare = len(self._entries) - MAX_ANCHORS
        for anchor in list(islice(self._entries, max(0, spare))):
            # What is not stored yet must not be forgotten.
            if not self._entries[anchor].pending:
                del self._entries[anchor]

    async def _read(self, transcript: Transcript, patience: float | None) -> tuple[Entry, bool]:
        """Return the entry of an anchor, and whether the store answered in time."""
        anchor = transcript.anchor
        old = self._entries.get(anchor)
        known = tuple(old.state.checkpoints) if old is not None else ()
        chain = [item.digest for item in transcript.items[:-1]]
        changed = old.changed if old is not None else 0

        async def read() -> None:
            state = await self._store.find(anchor, chain, known)
            self._take(transcript, changed, state)

        answer = await self.calls.ask(
            self.calls.reads, "find", read, patience, anyway=patience is not None
        )
        entry = self._entry(anchor)
        if isinstance(answer, NoAnswer) and (old is None or self._is_stale(entry)):
            # What is known has to do; a late answer is taken when it comes.
            again = FRESH_SECONDS if answer is DAMAGED else RETRY_SECONDS
            entry.read_at = self._now() - FRESH_SECONDS + again
        return entry, answer is None

    def _take(self, transcript: Transcript, changed: int, state: AnchorState) -> None:
        """Remember what the store said, unless this process knows better by now."""
        entry = self._entry(transcript.anchor)
        if entry.pending or entry.changed != changed:
            return
        entry.read_at, entry.asked = self._now(), True
        if state.corrupt:
            self.calls.report("find", "corrupt_values", count=state.corrupt)
        lost = lost_checkpoint(entry.state, state, transcript)
        clips = lost_clips(entry.state, state, transcript)
        loaded = {**entry.state.checkpoints, **state.checkpoints}
        known = {i: c for i, c in loaded.items() if i in state.cuts.values()}
        entry.state = replace(state, checkpoints=known)
        # A failover or a restart without a log lost what we use; it is stored again.
        for change in stored_again(transcript, lost, clips, self._now()):
            self.calls.report("find", "lost_checkpoint" if change.checkpoint else "lost_clips")
            entry.state = with_change(entry.state, change)
            _ = self.calls.start(self.commit(change))

    async def _match(self, entry: Entry, transcript: Transcript) -> Found:
        state, items = entry.state, transcript.items
        checkpoint = None
        for item in reversed(items[:-1]):
            found = state.cuts.get(item.digest)
            if found is not None:
                checkpoint = await self._load(transcript.anchor, entry, found)
                if checkpoint is not None:
                    break
        clip_set = clips_of(state, checkpoint.id if checkpoint else "", transcript)
        clips = clip_set.clips if clip_set else {}
        session = checkpoint.session if checkpoint else clip_set.session if clip_set else ""
        return Found(checkpoint, clips, state.struggle, session, state.version)

    async def _load(self, anchor: bytes, entry: Entry, checkpoint_id: str) -> Checkpoint | None:
        known = entry.state.checkpoints.get(checkpoint_id)
        if known is not None:
            return known
        load = partial(self._store.load_checkpoint, anchor, checkpoint_id)
        loaded = await self.calls.ask(self.calls.reads, "load", load)
        if not isinstance(loaded, Checkpoint):
            return None
        checkpoints = {**entry.state.checkpoints, checkpoint_id: loaded}
        entry.state = replace(entry.state, checkpoints=checkpoints)
        return loaded

    async def _commit(self, change: Change, entry: Entry) -> bool:
        self._committing += 1
        stored: NoAnswer | None = FAILED
        try:
            stored = await self.calls.attempt(
                self.calls.writes,
                "commit",
                partial(self._store.commit, change),
                COMMIT_SECONDS,
            )
        except LeaseLost:
            stored = None
            self._forget(change)
            raise
        else:
            entry.state = with_change(entry.state, change)
        finally:
            self._committing -= 1
            # Whatever came up: it is stored later, or no longer waits.
            if stored is FAILED:
                self._postpone(change)
            else:
                self._settled(change)
        return stored is None

    def _must_follow(self, change: Change) -> bool:
        return any(waiting.anchor == change.anchor for waiting in self._pending)

    async def _store_late(self, change: Change) -> bool:
        commit = partial(self._store.commit, change)
        try:
            # A breaker of its own: one change that is refused for itself stops nothing else.
            stored = await self.calls.attempt(self.calls.late, "commit", commit, COMMIT_SECONDS)
        except LeaseLost:
            self._forget(change)
            stored = None
        if stored is FAILED:
            return False
        if stored is None:
            self.calls.writes.succeeded()
        if change in self._pending:
            self._pending.remove(change)
            self._settled(change)
        return True

    def _postpone(self, change: Change) -> None:
        self._pending.append(change)
        if len(self._pending) > MAX_PENDING:
            self._settled(self._pending.popleft())
            self.calls.report("commit", "pending_overflow", count=1)

    def _settled(self, change: Change) -> None:
        entry = self._entries.get(change.anchor)
        if entry is not None:
            entry.pending = max(0, entry.pending - 1)
            self._evict()

    def _forget(self, change: Change) -> None:
        """Let go of a change that another process's has taken the place of."""
        entry = self._entries.get(change.anchor)
        if entry is None:
            return
        entry.read_at = 0.0
        if change.checkpoint is not None:
            id_ = change.checkpoint.id
            cuts = {cut: known for cut, known in entry.state.cuts.items() if known != id_}
            checkpoints = {k: c for k, c in entry.state.checkpoints.items() if k != id_}
            entry.state = replace(entry.state, cuts=cuts, checkpoints=checkpoints)
