"""What a process remembers of the store: bounded waits, nothing lost, nothing forced on it."""

import asyncio
import itertools
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import cast

import pytest

from proxy.compaction.checkpoint import Checkpoint
from proxy.compaction.clip import Clipped
from proxy.compactor import memory as module
from proxy.compactor.breaker import RETRY_SECONDS
from proxy.compactor.entries import Found, with_change
from proxy.compactor.memory import FRESH_SECONDS, TOUCH_SECONDS, SessionMemory
from proxy.errors import LeaseLost, StoreUnavailable
from proxy.sessions.state import AnchorState, Change, ClipSet, Lease, Struggle
from proxy.sessions.store import SessionStore
from proxy.transcript import Caps, Size, Transcript
from tests import builders as b
from tests.contract.session_store_contract import make_checkpoint
from tests.strategies import to_transcript
from tests.unit.test_breaker import Clock
from tests.unit.test_storage import Told


class FakeStore:
    """The part of the port that the memory uses, in this process, with trouble on demand."""

    def __init__(self) -> None:
        self.states: dict[bytes, AnchorState] = {}
        self.log: list[str] = []
        """Calls, in order; a commit with its session."""
        self.touched: list[tuple[str, float]] = []
        self.failure = ""
        """The reason that everything fails with."""
        self.unwilling = ""
        """The same for what writes."""
        self.poison = set[bytes]()
        """Anchors whose changes are refused."""
        self.lost = set[int]()
        """Tokens of leases that somebody else took over."""
        self.held = dict[tuple[bytes, bytes], int]()
        self.gate: asyncio.Event | None = None
        """Calls wait for it."""
        self._tokens = itertools.count(1)

    @property
    def port(self) -> SessionStore:
        return cast(SessionStore, self)

    @property
    def committed(self) -> list[str]:
        return [what.removeprefix("commit ") for what in self.log if what.startswith("commit")]

    async def _call(self, what: str, *, writes: bool = False) -> None:
        self.log.append(what)
        failure = self.failure or (self.unwilling if writes else "")
        if self.gate is not None:
            await self.gate.wait()
        if failure:
            raise StoreUnavailable("down", failure)

    async def find(
        self, anchor: bytes, chain: Sequence[bytes], known: Collection[str] = ()
    ) -> AnchorState:
        await self._call("find")
        state = self.states.get(anchor, AnchorState())
        deepest = next((state.cuts[d] for d in reversed(chain) if d in state.cuts), "")
        read = {deepest: state.checkpoints[deepest]} if deepest not in {"", *known} else {}
        return replace(state, checkpoints=read)

    async def load_checkpoint(self, anchor: bytes, checkpoint_id: str) -> Checkpoint | None:
        await self._call("load")
        return self.states.get(anchor, AnchorState()).checkpoints.get(checkpoint_id)

    async def commit(self, change: Change) -> None:
        if change.anchor in self.poison:
            self.log.append("refused")
            raise StoreUnavailable("no", "refused")
        await self._call(f"commit {change.session}", writes=True)
        if change.lease is not None and change.lease.token in self.lost:
            raise LeaseLost("taken over")
        old = self.states.get(change.anchor, AnchorState())
        self.states[change.anchor] = with_change(old, change)

    async def acquire_lease(self, anchor: bytes, cut_digest: bytes, seconds: float) -> Lease | None:
        await self._call("acquire", writes=True)
        if (anchor, cut_digest) in self.held:
            return None
        token = self.held[anchor, cut_digest] = next(self._tokens)
        return Lease(anchor, cut_digest, token)

    async def renew_lease(self, lease: Lease, seconds: float) -> bool:
        await self._call("renew", writes=True)
        return self.held.get((lease.anchor, lease.cut_digest)) == lease.token

    async def release_lease(self, lease: Lease) -> None:
        await self._call("release", writes=True)
        if self.held.get((lease.anchor, lease.cut_digest)) == lease.token:
            del self.held[lease.anchor, lease.cut_digest]

    async def touch(self, anchor: bytes, session: str, time: float) -> None:
        await self._call("touch", writes=True)
        self.touched.append((session, time))


def conversation(name: str) -> Transcript:
    return to_transcript([b.user(name), *b.turn_session(4, system=None)])


ONE, TWO, THREE = (conversation(name) for name in ("one", "two", "three"))


def checkpoint_of(transcript: Transcript, cut: int = 4, id_: str = "") -> Checkpoint:
    id_ = id_ or f"cp{transcript.anchor.hex()[:4]}{cut}"
    made = make_checkpoint(id_, session=f"s-{id_}")
    return replace(made, cut_digest=transcript.items[cut - 1].digest, cut_length=cut, parent=None)


def change_of(
    transcript: Transcript, cut: int = 4, id_: str = "", lease: Lease | None = None
) -> Change:
    checkpoint = checkpoint_of(transcript, cut, id_)
    return Change(transcript.anchor, checkpoint.session, 1.0, checkpoint, lease=lease)


def id_of(found: Found | None) -> str:
    return found.checkpoint.id if found is not None and found.checkpoint else ""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def memory(
    store: FakeStore, told: Told, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> SessionMemory:
    monkeypatch.setattr(module, "WORTHWHILE_SECONDS", 0.02)
    return SessionMemory(store.port, told, clock, patience=0.01, shared=True)


async def settled(memory: SessionMemory) -> None:
    async with asyncio.timeout(5):
        await memory.calls.settle()


async def outage(memory: SessionMemory, store: FakeStore, *changes: Change) -> None:
    """These changes are made while the store refuses everything; then it works again."""
    store.failure = "unreachable"
    for change in changes:
        await memory.commit(change)
    store.failure = ""
    store.log.clear()


async def test_what_the_store_said_is_used_for_a_while(
    memory: SessionMemory, store: FakeStore, clock: Clock
) -> None:
    assert not memory.knows_nothing_of(ONE.anchor)
    assert id_of(await memory.find(ONE)) == ""
    assert memory.knows_nothing_of(ONE.anchor)
    await store.commit(change_of(ONE))
    clock.time += FRESH_SECONDS - 0.1
    assert id_of(await memory.find(ONE)) == ""
    clock.time += 0.1
    assert not memory.knows_nothing_of(ONE.anchor)
    assert id_of(await memory.find(ONE)) == checkpoint_of(ONE).id
    assert store.log.count("find") == 2


async def test_a_refresh_asks_whatever_is_remembered(
    memory: SessionMemory, store: FakeStore
) -> None:
    await memory.find(ONE)
    await store.commit(change_of(ONE))
    assert id_of(await memory.refresh(ONE)) == checkpoint_of(ONE).id


async def test_what_is_not_stored_yet_is_newer_than_what_the_store_says(
    memory: SessionMemory, store: FakeStore, clock: Clock
) -> None:
    await outage(memory, store, change_of(ONE))
    clock.time += 2 * FRESH_SECONDS
    for found in (await memory.find(ONE), await memory.refresh(ONE)):
        assert id_of(found) == checkpoint_of(ONE).id
    assert store.log == []


@pytest.mark.parametrize("back", [60.0, 86_400.0])
async def test_a_clock_set_back_does_not_make_old_knowledge_last(
    memory: SessionMemory, store: FakeStore, clock: Clock, back: float
) -> None:
    await memory.find(ONE)
    await store.commit(change_of(ONE))
    clock.time -= back
    await memory.find(ONE)
    clock.time += FRESH_SECONDS
    assert id_of(await memory.find(ONE)) == checkpoint_of(ONE).id


async def test_a_late_answer_is_used_by_the_next_request(
    memory: SessionMemory, store: FakeStore, told: Told
) -> None:
    await store.commit(change_of(ONE))
    store.gate = asyncio.Event()
    assert id_of(await memory.find(ONE)) == ""
    assert memory.store_down
    store.gate.set()
    await settled(memory)
    assert id_of(await memory.find(ONE)) == checkpoint_of(ONE).id
    assert store.log.count("find") == 1
    assert told == [("find", "timeout")]


async def test_a_store_that_answered_late_is_not_called_down_ever_after(
    memory: SessionMemory, store: FakeStore, clock: Clock
) -> None:
    """Most processes read all the time and seldom write."""
    store.gate = asyncio.Event()
    await memory.find(ONE)
    store.gate.set()
    await settled(memory)
    for transcript in (ONE, TWO, THREE):
        clock.time += FRESH_SECONDS
        await memory.find(transcript)
    assert not memory.store_down


async def test_a_late_answer_does_not_undo_what_was_made_meanwhile(
    memory: SessionMemory, store: FakeStore
) -> None:
    store.gate = asyncio.Event()
    await memory.find(ONE)
    await memory.commit(change_of(ONE))
    store.gate.set()
    await settled(memory)
    assert id_of(await memory.find(ONE)) == checkpoint_of(ONE).id


async def test_a_store_that_failed_is_asked_again_soon_not_at_once(
    memory: SessionMemory, store: FakeStore, clock: Clock
) -> None:
    await store.commit(change_of(ONE))
    store.failure = "unreachable"
    assert [id_of(await memory.find(ONE)) for _ in range(3)] == [""] * 3
    assert store.log.count("find") == 1
    store.failure = ""
    clock.time += RETRY_SECONDS
    assert id_of(await memory.find(ONE)) == checkpoint_of(ONE).id


async def test_known_state_outlives_an_outage(
    memory: SessionMemory, store: FakeStore, clock: Clock
) -> None:
    await memory.commit(change_of(ONE))
    store.failure = "timeout"
    for _ in range(5):
        clock.time += FRESH_SECONDS
        assert id_of(await memory.find(ONE)) == checkpoint_of(ONE).id


async def test_changes_wait_and_are_stored_in_their_order(
    memory: SessionMemory, store: FakeStore
) -> None:
    changes = [change_of(ONE, 2), change_of(TWO), change_of(ONE, 4), change_of(ONE, 6)]
    await outage(memory, store, *changes)
    assert (memory.pending, memory.store_down) == (4, True)
    # The store is back but this one must not overtake.
    last = change_of(ONE, 8)
    await memory.commit(last)
    assert store.log == []
    await memory.flush()
    assert store.committed == [c.session for c in [*changes, last]]
    assert (memory.pending, memory.store_down) == (0, False)


async def test_a_change_that_is_refused_does_not_block_those_of_others(
    memory: SessionMemory, store: FakeStore
) -> None:
    changes = [change_of(ONE, 2), change_of(TWO), change_of(ONE, 4), change_of(THREE)]
    await outage(memory, store, *changes)
    store.poison = {ONE.anchor}
    await memory.flush()
    assert store.committed == [changes[1].session, changes[3].session]
    assert store.log.count("refused") == 1
    assert memory.pending == 2
    store.poison.clear()
    await memory.flush()
    assert store.committed[2:] == [changes[0].session, changes[2].session]
    assert memory.pending == 0


async def test_a_change_that_is_refused_does_not_shut_others_out(
    memory: SessionMemory, store: FakeStore, clock: Clock
) -> None:
    """The store works for them: their leases, reads and commits."""
    store.poison = {ONE.anchor}
    await memory.commit(change_of(ONE))
    for number in range(3):
        clock.time += RETRY_SECONDS * 1.1
        await memory.flush()
        assert isinstance(await memory.acquire(TWO.anchor, b"%d" % number), Lease)
    await memory.commit(change_of(TWO))
    assert store.committed == [change_of(TWO).session]


async def test_a_silent_store_is_not_asked_for_each_change(
    memory: SessionMemory, store: FakeStore
) -> None:
    await outage(memory, store, *(change_of(t) for t in (ONE, TWO, THREE)))
    store.failure = "timeout"
    await memory.flush()
    assert len(store.log) == 1
    assert memory.pending == 3


async def test_closing_stores_what_waits(memory: SessionMemory, store: FakeStore) -> None:
    await outage(memory, store, change_of(ONE))
    await memory.close()
    assert store.committed == [change_of(ONE).session]
    assert memory.pending == 0


async def test_too_much_that_waits_loses_the_oldest(
    memory: SessionMemory, store: FakeStore, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 2)
    await outage(memory, store, *(change_of(t) for t in (ONE, TWO, THREE)))
    assert memory.pending == 2
    assert told.count(("commit", "pending_overflow")) == 1
    await memory.flush()
    assert store.committed == [change_of(t).session for t in (TWO, THREE)]


async def test_what_is_not_stored_is_not_forgotten_for_lack_of_room(
    memory: SessionMemory, store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_ANCHORS", 1)
    await outage(memory, store, change_of(ONE), change_of(TWO))
    store.failure = "unreachable"
    await memory.find(THREE)
    for transcript in (ONE, TWO):
        assert id_of(await memory.find(transcript)) == checkpoint_of(transcript).id
    store.failure = ""
    await memory.flush()
    await memory.find(conversation("four"))
    assert len(memory._entries) == 1


async def test_a_slow_commit_is_used_at_once_and_stored_once(
    memory: SessionMemory, store: FakeStore
) -> None:
    store.gate = asyncio.Event()
    await memory.commit(change_of(ONE))
    assert memory.pending == 1
    assert id_of(await memory.find(ONE)) == checkpoint_of(ONE).id
    store.gate.set()
    await settled(memory)
    await memory.flush()
    assert store.committed == [change_of(ONE).session]
    assert memory.pending == 0


async def test_a_commit_goes_on_when_its_request_is_cancelled(
    memory: SessionMemory, store: FakeStore
) -> None:
    store.gate = asyncio.Event()
    task = asyncio.get_running_loop().create_task(memory.commit(change_of(ONE)))
    while not store.committed:  # noqa: ASYNC110  -- nothing else tells
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    store.gate.set()
    await settled(memory)
    assert id_of(await memory.find(ONE)) == checkpoint_of(ONE).id
    assert (ONE.anchor in store.states, memory.pending) == (True, 0)


async def test_a_lost_lease_leaves_nothing_of_the_change(
    memory: SessionMemory, store: FakeStore, told: Told
) -> None:
    lease = await memory.acquire(ONE.anchor, ONE.items[3].digest)
    assert isinstance(lease, Lease)
    store.lost = {lease.token}
    await store.commit(change_of(ONE, id_="theirs"))
    with pytest.raises(LeaseLost):
        await memory.commit(change_of(ONE, lease=lease))
    assert (memory.pending, memory.store_down) == (0, False)
    assert id_of(await memory.find(ONE)) == "theirs"
    assert told == []


async def test_a_lease_that_turns_out_lost_later_is_let_go_of(
    memory: SessionMemory, store: FakeStore, clock: Clock
) -> None:
    """The change was in use meanwhile; what the other process made takes its place."""
    lease = Lease(ONE.anchor, ONE.items[3].digest, 7)
    await outage(memory, store, change_of(ONE, lease=lease))
    assert id_of(await memory.find(ONE)) == checkpoint_of(ONE).id
    store.lost = {7}
    await store.commit(change_of(ONE, id_="theirs"))
    await memory.flush()
    assert memory.pending == 0
    clock.time += RETRY_SECONDS
    assert id_of(await memory.find(ONE)) == "theirs"
    assert not memory.store_down


async def test_leases_are_held_or_cannot_be_had(memory: SessionMemory, store: FakeStore) -> None:
    assert isinstance(await memory.acquire(ONE.anchor, b"cut"), Lease)
    assert await memory.acquire(ONE.anchor, b"cut") == "held"
    store.unwilling = "read_only"
    assert await memory.acquire(ONE.anchor, b"other") == "down"


async def test_a_late_lease_is_given_back(memory: SessionMemory, store: FakeStore) -> None:
    store.gate = asyncio.Event()
    assert await memory.acquire(ONE.anchor, b"cut") == "down"
    store.gate.set()
    await settled(memory)
    assert store.held == {}
    assert store.log == ["acquire", "release"]
    assert isinstance(await memory.acquire(ONE.anchor, b"cut"), Lease)


async def test_what_the_store_lost_is_stored_again(
    memory: SessionMemory, store: FakeStore, clock: Clock, told: Told
) -> None:
    await memory.commit(change_of(ONE))
    store.states.clear()
    clock.time += FRESH_SECONDS
    assert id_of(await memory.find(ONE)) == checkpoint_of(ONE).id
    await settled(memory)
    assert store.states[ONE.anchor].checkpoints == {checkpoint_of(ONE).id: checkpoint_of(ONE)}
    assert store.committed == [change_of(ONE).session] * 2
    assert told == [("find", "lost_checkpoint")]


async def test_what_was_deleted_is_not_stored_again(
    memory: SessionMemory, store: FakeStore, clock: Clock, told: Told
) -> None:
    await memory.commit(change_of(ONE))
    store.states[ONE.anchor] = AnchorState(version=1)
    clock.time += FRESH_SECONDS
    assert id_of(await memory.find(ONE)) == ""
    await settled(memory)
    assert store.states[ONE.anchor] == AnchorState(version=1)
    assert told == []


async def test_what_is_damaged_is_not_stored_again(
    memory: SessionMemory, store: FakeStore, clock: Clock, told: Told
) -> None:
    await memory.commit(change_of(ONE))
    store.states[ONE.anchor] = AnchorState(corrupt=1)
    clock.time += FRESH_SECONDS
    await memory.find(ONE)
    await settled(memory)
    assert store.committed == [change_of(ONE).session]
    assert told == [("find", "corrupt_values")]


async def test_lost_clips_are_stored_again(
    memory: SessionMemory, store: FakeStore, clock: Clock
) -> None:
    """Without them the next request would be clipped otherwise, for all the upstream cached."""
    clips = ClipSet(ONE.items[5].digest, "", "s", {3: Clipped(Caps(512, 512), Size(500, 100))})
    await memory.commit(Change(ONE.anchor, "s", 1.0, clip_set=clips))
    store.states.clear()
    clock.time += FRESH_SECONDS
    assert (await memory.find(ONE)).clips == clips.clips
    await settled(memory)
    assert [*store.states[ONE.anchor].clip_sets] == [clips]


async def test_a_struggle_is_known_without_a_session(
    memory: SessionMemory, store: FakeStore
) -> None:
    struggle = Struggle(failures=2)
    await memory.commit(Change(ONE.anchor, "", 1.0, struggle=struggle))
    assert (await memory.find(ONE)).struggle == struggle
    assert not memory.knows_nothing_of(ONE.anchor)


async def test_uses_are_noted_once_an_hour(
    memory: SessionMemory, store: FakeStore, clock: Clock
) -> None:
    session = change_of(ONE).session
    await memory.commit(change_of(ONE))
    start = clock.time
    for _ in range(5):
        clock.time += TOUCH_SECONDS * 0.3
        await memory.find(ONE)
        await memory.note_uses()
        await memory.note_uses()
    assert [name for name, _ in store.touched] == [session] * 2
    assert store.touched[1][1] - store.touched[0][1] >= TOUCH_SECONDS
    assert store.touched[0][1] - start <= TOUCH_SECONDS


async def test_a_use_that_could_not_be_noted_is_noted_later(
    memory: SessionMemory, store: FakeStore, clock: Clock
) -> None:
    await memory.commit(change_of(ONE))
    await memory.find(ONE)
    store.failure = "unreachable"
    await memory.note_uses()
    store.failure = ""
    clock.time += RETRY_SECONDS
    await memory.find(ONE)
    await memory.note_uses()
    assert [name for name, _ in store.touched] == [change_of(ONE).session]


async def test_an_older_checkpoint_is_read_when_a_branch_needs_it(
    memory: SessionMemory, store: FakeStore
) -> None:
    for cut in (2, 4):
        await store.commit(change_of(ONE, cut))
    short = replace_items(ONE, 4)
    assert id_of(await memory.find(ONE)) == checkpoint_of(ONE, 4).id
    assert id_of(await memory.find(short)) == checkpoint_of(ONE, 2).id
    assert store.log[-1] == "load"
    assert await memory.checkpoint(ONE.anchor, "unknown") is None
    assert await memory.checkpoint(b"never seen", "x") is None


def replace_items(transcript: Transcript, count: int) -> Transcript:
    return Transcript(transcript.instructions, transcript.items[:count])
