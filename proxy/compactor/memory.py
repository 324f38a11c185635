"""What this process remembers of the store, and how it copes without one.

State is cached per anchor. Only this cache talks to the store: with a time limit, and never
fatally. While the store is down, cached state still serves, and what could not be stored is
kept and stored later.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from proxy.codec import JsonObject
from proxy.compaction.checkpoint import Checkpoint
from proxy.compaction.clip import Clipped
from proxy.errors import StoreError
from proxy.sessions.state import MAX_CLIP_SETS, AnchorState, Change, ClipSet, Struggle
from proxy.sessions.store import SessionStore
from proxy.telemetry import STORE_FAILED, Event, EventSink
from proxy.transcript import Transcript

FRESH_SECONDS = 30.0
RETRY_SECONDS = 5.0
"""After a failed read the store is asked again this soon."""

STORE_SECONDS = 2.0
TOUCH_SECONDS = 3600.0
MAX_ANCHORS = 2048
MAX_PENDING = 256

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Found:
    """What is known about one request's prefix."""

    checkpoint: Checkpoint | None
    clips: Mapping[int, Clipped]
    struggle: Struggle
    session: str
    """Session of the checkpoint or clips found; empty when there are none."""


NOTHING = Found(None, {}, Struggle(), "")


@dataclass(slots=True)
class _Entry:
    state: AnchorState
    read_at: float
    pending: int = 0

    @property
    def is_blank(self) -> bool:
        """Nothing at all is known for the anchor."""
        state = self.state
        return not state.cuts and not state.clip_sets and state.struggle == NOTHING.struggle


class SessionMemory:
    """Reads and writes session state for one process."""

    def __init__(self, store: SessionStore, sink: EventSink, now: Callable[[], float]) -> None:
        """Take the store, where to report its failures, and the clock (seconds since epoch)."""
        self._store = store
        self._sink = sink
        self._now = now
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._pending: deque[Change] = deque()
        self._touched: OrderedDict[str, float] = OrderedDict()
        self._down = False

    @property
    def store_down(self) -> bool:
        """Whether the last call to the store failed or something still waits to be stored."""
        return self._down or bool(self._pending)

    @property
    def pending(self) -> int:
        """How many changes wait to be stored."""
        return len(self._pending)

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
            entry = await self._read(anchor, transcript, entry)
        else:
            self._entries.move_to_end(anchor)
        if not entry.state.cuts and not entry.state.clip_sets:
            struggle = entry.state.struggle
            return NOTHING if struggle == NOTHING.struggle else replace(NOTHING, struggle=struggle)
        return await self._match(entry, transcript)

    async def checkpoint(self, anchor: bytes, checkpoint_id: str) -> Checkpoint | None:
        """Return one checkpoint of an anchor by id."""
        entry = self._entries.get(anchor)
        if entry is None:
            return None
        return await self._load(entry, checkpoint_id)

    async def commit(self, change: Change) -> None:
        """Remember a change at once and store it; when the store fails it is stored later."""
        entry = self._entry(change.anchor)
        entry.state = _with(entry.state, change)
        if self._pending:
            self._postpone(change, entry)
            return
        # Until it is stored, what this process knows is newer than what the store says.
        entry.pending += 1
        stored = False
        try:
            stored = await self._try("commit", lambda: self._store.commit(change)) is not False
        finally:
            entry.pending -= 1
            if not stored:
                # Also when the caller was cancelled: the state is in use already.
                self._postpone(change, entry)

    async def flush(self) -> None:
        """Store what could not be stored before; called from time to time."""
        while self._pending:
            change = self._pending[0]
            if await self._try("commit", partial(self._store.commit, change)) is False:
                return
            if self._pending and self._pending[0] is change:
                self._settled(self._pending.popleft())

    async def touch(self, session: str) -> None:
        """Note that a session was used; reaches the store at most once an hour."""
        now = self._now()
        if self._touched.get(session, 0.0) + TOUCH_SECONDS > now:
            return
        self._touched[session] = now
        if len(self._touched) > MAX_ANCHORS:
            self._touched.popitem(last=False)
        await self._try("touch", lambda: self._store.touch(session, now))

    def needs_touch(self, session: str) -> bool:
        """Tell whether `touch` would reach the store."""
        return self._touched.get(session, 0.0) + TOUCH_SECONDS <= self._now()

    def _is_stale(self, entry: _Entry) -> bool:
        return entry.pending == 0 and entry.read_at + FRESH_SECONDS <= self._now()

    def _entry(self, anchor: bytes) -> _Entry:
        entry = self._entries.get(anchor)
        if entry is None:
            entry = self._entries[anchor] = _Entry(AnchorState(), self._now())
            self._evict()
        self._entries.move_to_end(anchor)
        return entry

    def _evict(self) -> None:
        # What is not stored yet must not be forgotten.
        for anchor in list(self._entries)[: max(0, len(self._entries) - MAX_ANCHORS)]:
            if not self._entries[anchor].pending:
                del self._entries[anchor]

    async def _read(self, anchor: bytes, transcript: Transcript, old: _Entry | None) -> _Entry:
        chain = [item.digest for item in transcript.items[:-1]]
        before = old.state if old is not None else None
        state = await self._try("find", lambda: self._store.find(anchor, chain))
        entry = self._entries.get(anchor)
        if entry is not None and (entry.state is not before or entry.pending):
            # Something was committed or read meanwhile: newer than what the store had to say.
            return entry
        entry = self._entry(anchor)
        entry.read_at = self._now()
        if isinstance(state, AnchorState):
            if state.corrupt:
                self._report("find", "corrupt_values", count=state.corrupt)
            loaded = {**entry.state.checkpoints, **state.checkpoints} if old else state.checkpoints
            known = {i: c for i, c in loaded.items() if i in state.cuts.values()}
            entry.state = replace(state, checkpoints=known)
        else:
            entry.read_at -= FRESH_SECONDS - RETRY_SECONDS
        return entry

    async def _match(self, entry: _Entry, transcript: Transcript) -> Found:
        state, items = entry.state, transcript.items
        checkpoint = None
        for item in reversed(items[:-1]):
            found = state.cuts.get(item.digest)
            if found is not None:
                checkpoint = await self._load(entry, found)
                if checkpoint is not None:
                    break
        in_force = checkpoint.id if checkpoint else ""
        sets = {s.digest: s for s in state.clip_sets if s.checkpoint == in_force}
        clip_set: ClipSet | None = None
        if sets:
            clip_set = next((sets[i.digest] for i in reversed(items) if i.digest in sets), None)
        session = checkpoint.session if checkpoint else clip_set.session if clip_set else ""
        return Found(checkpoint, clip_set.clips if clip_set else {}, state.struggle, session)

    async def _load(self, entry: _Entry, checkpoint_id: str) -> Checkpoint | None:
        known = entry.state.checkpoints.get(checkpoint_id)
        if known is not None:
            return known
        loaded = await self._try("load", lambda: self._store.load_checkpoint(checkpoint_id))
        if not isinstance(loaded, Checkpoint):
            return None
        checkpoints = {**entry.state.checkpoints, checkpoint_id: loaded}
        entry.state = replace(entry.state, checkpoints=checkpoints)
        return loaded

    def _postpone(self, change: Change, entry: _Entry) -> None:
        self._pending.append(change)
        entry.pending += 1
        if len(self._pending) > MAX_PENDING:
            self._settled(self._pending.popleft())
            self._report("commit", "pending_overflow", count=1)

    def _settled(self, change: Change) -> None:
        entry = self._entries.get(change.anchor)
        if entry is not None:
            entry.pending = max(0, entry.pending - 1)

    async def _try(self, what: str, call: Callable[[], Awaitable[_T]]) -> _T | bool:
        try:
            async with asyncio.timeout(STORE_SECONDS):
                result = await call()
        except (StoreError, TimeoutError) as error:
            self._report(what, "timeout" if isinstance(error, TimeoutError) else "unavailable")
            self._down = True
            return False
        self._down = False
        return result

    def _report(self, operation: str, reason: str, count: int = 1) -> None:
        fields: JsonObject = {"operation": operation, "reason": reason, "count": count}
        self._sink.emit(Event(STORE_FAILED, self._now(), "", fields))


def _with(state: AnchorState, change: Change) -> AnchorState:
    cuts, checkpoints = dict(state.cuts), dict(state.checkpoints)
    if change.checkpoint is not None:
        cuts[change.checkpoint.cut_digest] = change.checkpoint.id
        checkpoints[change.checkpoint.id] = change.checkpoint
    clip_sets = list(state.clip_sets)
    if change.clip_set is not None:
        new = change.clip_set
        clip_sets = [
            s for s in clip_sets if (s.digest, s.checkpoint) != (new.digest, new.checkpoint)
        ]
        clip_sets = [*clip_sets, new][-MAX_CLIP_SETS:]
    return replace(
        state,
        cuts=cuts,
        checkpoints=checkpoints,
        clip_sets=clip_sets,
        struggle=change.struggle or state.struggle,
    )
