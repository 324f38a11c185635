"""The suite that every session store must pass.

An adapter subclasses `SessionStoreContract` and gives the `harness` fixture. After tampering the
store is opened anew, because an adapter may remember immutable records per process.
"""

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import pytest

from proxy import codec
from proxy.codec import JsonObject
from proxy.compaction.checkpoint import SCHEMA_VERSION, Checkpoint, Fold
from proxy.compaction.clip import Clipped
from proxy.errors import LeaseLost
from proxy.sessions import state
from proxy.sessions.state import (
    AnchorState,
    Archived,
    Change,
    ClipSet,
    Lease,
    SessionRow,
    Struggle,
    Unreadable,
)
from proxy.sessions.store import SessionStore
from proxy.telemetry import Event
from proxy.transcript import Caps, Size

NOW = 1_800_000_000.25
DAY = 86_400.0
ANCHOR, OTHER = b"anchor-one-20-bytes-", b"anchor-two-20-bytes-"
GENEROUS = 1 << 30


class StoreHarness(ABC):
    """What the suite needs of an adapter besides the port: opening, and a look inside."""

    @abstractmethod
    async def open(
        self, *, retention_seconds: float = DAY, archive_bytes: int = GENEROUS
    ) -> SessionStore:
        """Return one more opened store over the same data; the harness closes it."""

    @abstractmethod
    async def stored_checkpoint(self, checkpoint_id: str) -> bytes:
        """Return the stored bytes of a checkpoint."""

    @abstractmethod
    async def put_checkpoint(self, checkpoint_id: str, data: bytes) -> None:
        """Overwrite the stored bytes of a checkpoint."""

    @abstractmethod
    async def stored_clips(self, anchor: bytes, clips: ClipSet) -> bytes:
        """Return the stored bytes of a clip set."""

    @abstractmethod
    async def put_clips(self, anchor: bytes, clips: ClipSet, data: bytes) -> None:
        """Overwrite the stored bytes of a clip set."""

    @abstractmethod
    async def put_fold(self, anchor: bytes, fold: Fold, data: bytes) -> None:
        """Overwrite the stored bytes of a running summary."""

    @abstractmethod
    async def blobs(self) -> int:
        """Count the stored archive blobs."""


def digest(number: int) -> bytes:
    """A digest with every kind of byte in it."""
    return bytes([0, 255, 10, 39]) + number.to_bytes(16, "big")


def make_checkpoint(id: str, cut: int = 1, session: str = "s1", created: float = NOW) -> Checkpoint:
    """A record with no field at its default."""
    sections: JsonObject = {
        "goal": "réparer 🙂 \x00 'quoted'",
        "discoveries": ["a", 1, 1.0, 2.5, True, None, 2**70, {"deep": [[], {}]}],
    }
    return Checkpoint(
        id=id,
        session=session,
        cut_digest=digest(cut),
        cut_length=cut + 3,
        kept=(1, 4),
        front=(0,),
        pinned=(2, 3),
        frontier=digest(cut + 1000),
        parent="parent-" + id,
        rendered=f"<record {id}>\n" + "rendered \u2028 \ufffd\n" * 20,
        chars=111,
        tokens=22,
        sections=sections,
        text="text of " + id,
        partial=True,
        extractive=True,
        tokens_before=9000,
        tokens_after=4000,
        span_items=7,
        span_tokens=5000,
        omitted=3,
        model="model-x",
        created=created,
        covered=2,
    )


def make_fold(number: int, form: str = "1", text: str = "") -> Fold:
    """A running summary: sections without `text`."""
    sections: JsonObject = {"goal": "réparer 🙂 \x00", "discoveries": ["a"]}
    return Fold(
        digest=digest(number),
        form=form,
        covered=number + 1,
        left_out=(0, 2),
        sections=None if text else sections,
        text=text,
        partial=bool(text),
        created=NOW + number,
    )


def by_key(folds: Sequence[Fold]) -> list[Fold]:
    return sorted(folds, key=lambda fold: fold.key)


def checkpoint_change(
    checkpoint: Checkpoint,
    *,
    anchor: bytes = ANCHOR,
    time: float = NOW,
    archive: tuple[Archived, ...] = (),
    events: tuple[Event, ...] = (),
) -> Change:
    return Change(
        anchor,
        checkpoint.session,
        time,
        checkpoint=checkpoint,
        archive=archive,
        archive_id=checkpoint.id,
        events=events,
    )


def make_clips(
    number: int, checkpoint: str = "", session: str = "s1", text: int | None = 512
) -> ClipSet:
    clips = {
        0: Clipped(Caps(text=text), Size(512, 128)),
        17: Clipped(Caps(text=None, arguments=256), Size(300, 70)),
    }
    return ClipSet(digest(number), checkpoint, session, clips)


def clips_change(clips: ClipSet, *, anchor: bytes = ANCHOR, time: float = NOW) -> Change:
    return Change(anchor, clips.session, time, clip_set=clips)


def event(number: int, session: str = "s1", time: float = NOW) -> Event:
    return Event("compaction_completed", time, session, {"number": number, "é": "🙂\n"})


def numbers(lines: list[str]) -> list[int]:
    found = []
    for line in lines:
        value = codec.loads(line)
        assert isinstance(value, dict)
        assert isinstance(value["number"], int)
        found.append(value["number"])
    return found


def noise(size: int, seed: int) -> bytes:
    """Bytes that cannot be compressed."""
    return random.Random(seed).randbytes(size)


def archive_of(*raws: bytes) -> tuple[Archived, ...]:
    return tuple(Archived(index * 3, raw) for index, raw in enumerate(raws))


async def look(
    store: SessionStore, chain: Sequence[bytes] = (), anchor: bytes = ANCHOR
) -> AnchorState:
    """What the store finds, in shapes that compare."""
    found = await store.find(anchor, chain)
    clip_sets = sorted(found.clip_sets, key=lambda clips: (clips.digest, clips.checkpoint))
    return AnchorState(
        dict(found.cuts), tuple(clip_sets), found.struggle, dict(found.checkpoints), found.corrupt
    )


class SessionStoreContract:
    """The laws of `SessionStore`."""

    @pytest.fixture
    async def store(self, harness: StoreHarness) -> SessionStore:
        return await harness.open()

    # --- finding ---

    async def test_an_unknown_anchor_has_no_state(self, store: SessionStore) -> None:
        assert await look(store, [digest(1)]) == AnchorState()
        assert await look(store) == AnchorState()
        assert await store.load_checkpoint(ANCHOR, "nothing") is None
        assert await store.archived("s1", "nothing") == []
        assert await store.events("s1") == []
        assert await store.sessions() == []

    async def test_a_checkpoint_comes_back_equal_in_every_field(self, store: SessionStore) -> None:
        checkpoint = make_checkpoint("cp1")
        await store.commit(checkpoint_change(checkpoint))

        found = await look(store, [digest(1)])

        assert found == AnchorState({digest(1): "cp1"}, checkpoints={"cp1": checkpoint})
        loaded = await store.load_checkpoint(ANCHOR, "cp1")
        assert loaded == checkpoint
        assert loaded is not None
        # 1, 1.0 and True are equal, but not the same JSON.
        assert codec.dumps(loaded.sections) == codec.dumps(checkpoint.sections)

    async def test_a_text_only_checkpoint_comes_back_equal(self, store: SessionStore) -> None:
        plain = replace(make_checkpoint("cp1"), sections=None, parent=None, kept=(), partial=False)
        await store.commit(checkpoint_change(plain))
        assert await store.load_checkpoint(ANCHOR, "cp1") == plain

    async def test_the_deepest_checkpoint_of_the_chain_is_read(self, store: SessionStore) -> None:
        # Committed in another order than their depth.
        checkpoints = {n: make_checkpoint(f"cp{n}", n, created=NOW - n) for n in (2, 1, 3)}
        for checkpoint in checkpoints.values():
            await store.commit(checkpoint_change(checkpoint))
        for depth in (1, 2, 3):
            chain = [digest(n) for n in (*(50, 1, 60, 2, 70, 3)[: depth * 2], 99)]
            found = await look(store, chain)
            assert dict(found.checkpoints) == {f"cp{depth}": checkpoints[depth]}
            assert dict(found.cuts) == {digest(n): f"cp{n}" for n in (1, 2, 3)}

    async def test_branches_find_their_own_checkpoint(self, store: SessionStore) -> None:
        left, right = make_checkpoint("left", 10), make_checkpoint("right", 20)
        await store.commit(checkpoint_change(left))
        await store.commit(checkpoint_change(right))
        assert (await look(store, [digest(1), digest(10)])).checkpoints == {"left": left}
        assert (await look(store, [digest(1), digest(20)])).checkpoints == {"right": right}
        assert (await look(store, [digest(1)])).checkpoints == {}

    async def test_anchors_do_not_see_each_other(self, store: SessionStore) -> None:
        one, two = make_checkpoint("one"), make_checkpoint("two", session="s2")
        struggle = Struggle(failures=1)
        await store.commit(checkpoint_change(one))
        await store.commit(clips_change(make_clips(1)))
        await store.commit(Change(ANCHOR, "s1", NOW, struggle=struggle))
        assert await look(store, [digest(1)], OTHER) == AnchorState()

        await store.commit(checkpoint_change(two, anchor=OTHER))

        assert await look(store, [digest(1)], OTHER) == AnchorState(
            {digest(1): "two"}, checkpoints={"two": two}
        )
        first = await look(store, [digest(1)])
        assert (first.cuts, first.checkpoints) == ({digest(1): "one"}, {"one": one})
        assert (first.clip_sets, first.struggle) == ((make_clips(1),), struggle)

    async def test_the_newest_of_two_checkpoints_of_one_cut_is_found(
        self, store: SessionStore
    ) -> None:
        newer, older = make_checkpoint("newer"), make_checkpoint("older", created=NOW - 60)
        await store.commit(checkpoint_change(newer))
        await store.commit(checkpoint_change(older))
        found = await look(store, [digest(1)])
        assert (found.cuts, found.checkpoints) == ({digest(1): "newer"}, {"newer": newer})
        assert await store.load_checkpoint(ANCHOR, "older") == older

    async def test_of_two_checkpoints_of_one_cut_and_time_the_later_is_found(
        self, store: SessionStore
    ) -> None:
        for name in ("b", "a", "c"):
            await store.commit(checkpoint_change(make_checkpoint(name)))
        assert [*(await look(store, [digest(1)])).checkpoints] == ["c"]

    # --- clips and struggle ---

    async def test_clip_sets_come_back_equal(self, store: SessionStore) -> None:
        sets = [make_clips(1), make_clips(1, "cp1"), make_clips(2, "cp1", text=None)]
        empty = ClipSet(digest(3), "", "s1", {})
        for clips in (*sets, empty):
            await store.commit(clips_change(clips))
        assert (await look(store)).clip_sets == (*sets, empty)

    async def test_a_clip_set_of_the_same_prefix_and_checkpoint_is_replaced(
        self, store: SessionStore
    ) -> None:
        await store.commit(clips_change(make_clips(1, "cp1")))
        await store.commit(clips_change(make_clips(1, "cp2")))
        await store.commit(clips_change(make_clips(1, "cp1", text=1024)))
        assert (await look(store)).clip_sets == (
            make_clips(1, "cp1", text=1024),
            make_clips(1, "cp2"),
        )

    async def test_struggle_comes_back_equal_and_is_replaced(self, store: SessionStore) -> None:
        first = Struggle(2, NOW + 60.5, digest(1), digest(2))
        await store.commit(Change(ANCHOR, "s1", NOW, struggle=first))
        assert (await look(store)).struggle == first
        await store.commit(Change(ANCHOR, "s1", NOW, struggle=Struggle()))
        assert (await look(store)).struggle == Struggle()

    async def test_a_change_leaves_alone_what_it_does_not_name(self, store: SessionStore) -> None:
        checkpoint, struggle = make_checkpoint("cp1"), Struggle(1, 2.0, b"a", b"b")
        await store.commit(checkpoint_change(checkpoint, events=(event(1),)))
        await store.commit(Change(ANCHOR, "s1", NOW, struggle=struggle))
        await store.commit(clips_change(make_clips(1)))
        await store.commit(Change(ANCHOR, "s1", NOW + 1))
        assert await look(store, [digest(1)]) == AnchorState(
            {digest(1): "cp1"}, (make_clips(1),), struggle, {"cp1": checkpoint}
        )
        assert numbers(await store.events("s1")) == [1]

    # --- archive and events ---

    async def test_the_archive_keeps_the_bytes_under_session_and_id(
        self, store: SessionStore
    ) -> None:
        raws = (b'{"a": 1.0 }', b"", b"\x00\xff not JSON", noise(200_000, 1), b'{"a": 1.0 }')
        archive = archive_of(*raws)
        await store.commit(checkpoint_change(make_checkpoint("cp1"), archive=archive))
        await store.commit(checkpoint_change(make_checkpoint("cp2"), archive=archive[:1]))
        await store.commit(
            checkpoint_change(make_checkpoint("cp3", session="s2"), archive=archive[1:2])
        )
        assert await store.archived("s1", "cp1") == [*archive]
        assert await store.archived("s1", "cp2") == [archive[0]]
        assert await store.archived("s2", "cp3") == [archive[1]]
        assert await store.archived("s2", "cp1") == []
        assert await store.archived("s1", "cp3") == []

    async def test_the_archive_is_in_order_of_position(self, store: SessionStore) -> None:
        archive = [Archived(index, b"%d" % index) for index in (200, 3, 11, 0)]
        await store.commit(Change(ANCHOR, "s1", NOW, archive=tuple(archive), archive_id="x"))
        found = await store.archived("s1", "x")
        assert found == sorted(archive, key=lambda archived: archived.index)

    async def test_equal_items_are_stored_once(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        archive = archive_of(b"same", b"same", b"other")
        for name in ("cp1", "cp2"):
            await store.commit(checkpoint_change(make_checkpoint(name), archive=archive))
        assert await harness.blobs() == 2
        assert await store.archived("s1", "cp2") == [*archive]

    async def test_events_are_kept_in_order_and_only_with_a_session(
        self, store: SessionStore
    ) -> None:
        await store.commit(Change(ANCHOR, "s1", NOW, events=(event(1), event(2))))
        await store.append_events([event(3, time=NOW - 5), event(4, ""), event(5)])
        await store.append_events([event(6, "s2")])
        await store.append_events([event(7, "")])
        await store.append_events([])
        await store.commit(Change(ANCHOR, "s1", NOW, events=(event(8, ""), event(9))))
        assert numbers(await store.events("s1")) == [1, 2, 3, 5, 9]
        assert numbers(await store.events("s2")) == [6]
        assert await store.events("") == []
        assert [codec.loads(line) for line in await store.events("s2")] == [
            event(6, "s2").to_json()
        ]

    # --- sessions, retention, deletion ---

    async def test_sessions_are_listed_by_last_use(self, store: SessionStore) -> None:
        for number, session in enumerate(["a", "b", "c"]):
            checkpoint = make_checkpoint(f"cp-{session}", session=session)
            await store.commit(checkpoint_change(checkpoint, time=NOW + number))
        await store.commit(
            checkpoint_change(make_checkpoint("more", 2, session="a"), time=NOW + 10)
        )
        rows = [
            SessionRow("a", NOW, NOW + 10, 2),
            SessionRow("c", NOW + 2, NOW + 2, 1),
            SessionRow("b", NOW + 1, NOW + 1, 1),
        ]
        assert await store.sessions() == rows
        assert await store.sessions(2) == rows[:2]

    async def test_touching_notes_the_latest_use(self, store: SessionStore) -> None:
        await store.commit(Change(ANCHOR, "s1", NOW))
        await store.touch(ANCHOR, "s1", NOW + 5)
        await store.touch(ANCHOR, "s1", NOW - 5)
        await store.commit(Change(ANCHOR, "s1", NOW + 1))
        await store.touch(ANCHOR, "unknown", NOW)
        assert await store.sessions() == [SessionRow("s1", NOW, NOW + 5, 0)]

    async def test_a_change_without_a_session_makes_none(self, store: SessionStore) -> None:
        await store.commit(Change(ANCHOR, "", NOW, struggle=Struggle(failures=1)))
        assert await store.sessions() == []
        assert (await look(store)).struggle.failures == 1

    async def test_expired_sessions_vanish_with_everything(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        struggle = Struggle(failures=1)
        await store.commit(
            checkpoint_change(
                make_checkpoint("cp1"), archive=archive_of(b"own", b"shared"), events=(event(1),)
            )
        )
        await store.commit(clips_change(make_clips(1)))
        await store.commit(Change(ANCHOR, "s1", NOW, struggle=struggle))
        live = make_checkpoint("cp2", 2, session="s2")
        shared = archive_of(b"shared")
        await store.commit(checkpoint_change(live, time=NOW + 50, archive=shared))

        assert await store.expire(NOW + DAY) == 0
        assert (await look(store, [digest(1)])).struggle == struggle
        assert await store.expire(NOW + DAY + 10) == 1

        assert await look(store, [digest(1), digest(2)]) == AnchorState(
            {digest(2): "cp2"}, checkpoints={"cp2": live}
        )
        assert await store.load_checkpoint(ANCHOR, "cp1") is None
        assert await store.archived("s1", "cp1") == []
        assert await store.events("s1") == []
        assert [row.id for row in await store.sessions()] == ["s2"]
        assert await store.archived("s2", "cp2") == [*shared]
        assert await harness.blobs() == 1
        assert await store.expire(NOW + DAY + 10) == 0

    async def test_a_touched_session_stays(self, store: SessionStore) -> None:
        checkpoint = make_checkpoint("cp1")
        await store.commit(checkpoint_change(checkpoint, archive=archive_of(b"x")))
        await store.touch(ANCHOR, "s1", NOW + 100)
        assert await store.expire(NOW + DAY + 50) == 0
        assert await store.load_checkpoint(ANCHOR, "cp1") == checkpoint
        assert await store.archived("s1", "cp1") == [*archive_of(b"x")]
        assert await store.expire(NOW + DAY + 101) == 1

    async def test_deleting_a_session_leaves_what_others_reach(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        struggle = Struggle(failures=2)
        live = make_checkpoint("cp2", 2, session="s2")
        shared = archive_of(b"shared")
        await store.commit(
            checkpoint_change(
                make_checkpoint("cp1"), archive=archive_of(b"shared", b"own"), events=(event(1),)
            )
        )
        await store.commit(clips_change(make_clips(1)))
        await store.commit(checkpoint_change(live, archive=shared, events=(event(2, "s2"),)))
        await store.commit(clips_change(make_clips(2, session="s2")))
        await store.commit(Change(ANCHOR, "s2", NOW, struggle=struggle))

        assert await store.delete_session("s1") is True
        assert await store.delete_session("s1") is False
        assert await store.delete_session("never") is False

        assert await look(store, [digest(1), digest(2)]) == AnchorState(
            {digest(2): "cp2"}, (make_clips(2, session="s2"),), struggle, {"cp2": live}
        )
        assert await store.load_checkpoint(ANCHOR, "cp1") is None
        assert await store.archived("s1", "cp1") == []
        assert await store.events("s1") == []
        assert await store.archived("s2", "cp2") == [*shared]
        assert numbers(await store.events("s2")) == [2]
        assert await harness.blobs() == 1

        assert await store.delete_session("s2") is True
        assert await look(store, [digest(2)]) == AnchorState()
        assert await harness.blobs() == 0

    # --- running summaries ---

    async def test_running_summaries_are_found_by_anchor(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        assert await store.load_folds(ANCHOR) == []
        folds = [make_fold(1), make_fold(2, text="plain"), make_fold(1, form="1:ab")]
        for fold in folds:
            await store.save_fold(ANCHOR, fold, NOW)
        await store.save_fold(OTHER, make_fold(9), NOW)
        again = await harness.open()
        assert by_key(await again.load_folds(ANCHOR)) == by_key(folds)
        assert await again.load_folds(OTHER) == [make_fold(9)]

    async def test_a_running_summary_takes_the_place_of_the_one_before(
        self, store: SessionStore
    ) -> None:
        await store.save_fold(ANCHOR, make_fold(1), NOW)
        await store.save_fold(ANCHOR, make_fold(1, text="better"), NOW)
        assert await store.load_folds(ANCHOR) == [make_fold(1, text="better")]

    async def test_only_the_newest_running_summaries_are_kept(self, store: SessionStore) -> None:
        await store.save_fold(OTHER, make_fold(0), NOW)
        for number in (*range(20), 1):
            await store.save_fold(ANCHOR, make_fold(number), NOW)
        kept = {fold.covered - 1 for fold in await store.load_folds(ANCHOR)}
        assert kept == {*range(20 - state.MAX_FOLDS + 1, 20), 1}
        assert await store.load_folds(OTHER) == [make_fold(0)]

    async def test_running_summaries_are_dropped_by_key(self, store: SessionStore) -> None:
        folds = [make_fold(number) for number in range(4)]
        for fold in folds:
            await store.save_fold(ANCHOR, fold, NOW)
        await store.drop_folds(ANCHOR, [])
        await store.drop_folds(OTHER, [folds[0].key])
        await store.drop_folds(ANCHOR, [folds[0].key, folds[2].key, b"unknown"])
        assert by_key(await store.load_folds(ANCHOR)) == [folds[1], folds[3]]
        await store.drop_folds(ANCHOR, [fold.key for fold in folds])
        assert await store.load_folds(ANCHOR) == []

    async def test_running_summaries_go_with_a_session_of_their_anchor(
        self, store: SessionStore
    ) -> None:
        await store.commit(checkpoint_change(make_checkpoint("cp1")))
        await store.commit(checkpoint_change(make_checkpoint("cp2", session="s2"), anchor=OTHER))
        for anchor in (ANCHOR, OTHER):
            await store.save_fold(anchor, make_fold(1), NOW)
        assert await store.delete_session("s1") is True
        assert await store.load_folds(ANCHOR) == []
        assert await store.load_folds(OTHER) == [make_fold(1)]

    async def test_running_summaries_go_with_expired_sessions(self, store: SessionStore) -> None:
        await store.commit(checkpoint_change(make_checkpoint("cp1")))
        await store.save_fold(ANCHOR, make_fold(1), NOW)
        assert await store.expire(NOW + DAY - 1) == 0
        assert await store.load_folds(ANCHOR) == [make_fold(1)]
        assert await store.expire(NOW + DAY + 1) == 1
        assert await store.load_folds(ANCHOR) == []

    async def test_after_a_deletion_nothing_comes_back_that_was_read_before(
        self, store: SessionStore
    ) -> None:
        await store.commit(checkpoint_change(make_checkpoint("cp1")))
        before = (await look(store)).version
        await store.save_fold(ANCHOR, make_fold(1), NOW, before)
        assert await store.load_folds(ANCHOR) == [make_fold(1)]
        await store.delete_session("s1")
        await store.save_fold(ANCHOR, make_fold(1), NOW, before)
        assert await store.load_folds(ANCHOR) == []
        await store.save_fold(ANCHOR, make_fold(1), NOW, before + 1)
        assert await store.load_folds(ANCHOR) == [make_fold(1)]

    async def test_a_running_summary_that_cannot_be_read_counts_as_absent(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        for number in (1, 2, 3):
            await store.save_fold(ANCHOR, make_fold(number), NOW)
        newer = state.pack(codec.dumps({"schema_version": SCHEMA_VERSION + 1, "invented": 1}))
        await harness.put_fold(ANCHOR, make_fold(1), b"damaged")
        await harness.put_fold(ANCHOR, make_fold(2), newer)
        assert await store.load_folds(ANCHOR) == [make_fold(3)]
        # What a newer version wrote is not ours to overwrite.
        for number in (1, 2):
            await store.save_fold(ANCHOR, make_fold(number), NOW)
        assert by_key(await store.load_folds(ANCHOR)) == [make_fold(1), make_fold(3)]

    async def test_an_export_leaves_running_summaries_out(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        await store.commit(checkpoint_change(make_checkpoint("cp1")))
        await store.save_fold(ANCHOR, make_fold(1), NOW)
        changes = [change async for change in store.export("s1")]
        await store.delete_session("s1")
        for change in changes:
            await store.commit(change)
        assert await store.load_checkpoint(ANCHOR, "cp1") == make_checkpoint("cp1")
        assert await store.load_folds(ANCHOR) == []

    # --- secrets ---

    async def test_a_secret_is_drawn_once_for_each_name(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        other = await harness.open()
        drawn = await asyncio.gather(*(s.secret("tenant") for s in (store, other) * 5))
        assert len(set(drawn)) == 1
        assert len(drawn[0]) == 32
        assert await store.secret("admin") != drawn[0]
        assert await (await harness.open()).secret("tenant") == drawn[0]
        await store.expire(NOW * 2)
        assert await store.secret("tenant") == drawn[0]

    # --- wholeness ---

    async def test_committing_twice_is_harmless(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        change = Change(
            ANCHOR,
            "s1",
            NOW,
            make_checkpoint("cp1"),
            make_clips(1, "cp1"),
            Struggle(1, 2.0, b"a", b"b"),
            archive_of(b"one", b"two"),
            "cp1",
            (event(1), event(2)),
        )

        async def everything() -> tuple[AnchorState, list[Archived], list[str], list[SessionRow]]:
            return (
                await look(store, [digest(1)]),
                await store.archived("s1", "cp1"),
                await store.events("s1"),
                await store.sessions(),
            )

        await store.commit(change)
        once, blobs = await everything(), await harness.blobs()
        await store.commit(change)
        await (await harness.open()).commit(change)

        assert await everything() == once
        assert await harness.blobs() == blobs
        assert numbers(once[2]) == [1, 2]

    async def test_a_checkpoint_never_changes(self, store: SessionStore) -> None:
        checkpoint = make_checkpoint("cp1")
        await store.commit(checkpoint_change(checkpoint))
        await store.commit(checkpoint_change(replace(checkpoint, text="another")))
        assert await store.load_checkpoint(ANCHOR, "cp1") == checkpoint

    async def test_many_tasks_commit_at_once(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        other = await harness.open()
        changes = [
            checkpoint_change(
                make_checkpoint(f"cp{n}", n, session=f"s{n % 5}"),
                archive=archive_of(b"shared", b"own %d" % n),
                events=(event(n, f"s{n % 5}"),),
            )
            for n in range(40)
        ]
        await asyncio.gather(
            *((store, other)[n % 2].commit(change) for n, change in enumerate(changes)),
            *(store.find(ANCHOR, [digest(n)]) for n in range(10)),
        )
        found = await look(store, [digest(n) for n in range(40)])
        assert dict(found.cuts) == {digest(n): f"cp{n}" for n in range(40)}
        for change in changes:
            assert change.checkpoint is not None
            assert await other.load_checkpoint(ANCHOR, change.archive_id) == change.checkpoint
            assert await other.archived(change.session, change.archive_id) == [*change.archive]
        for session in range(5):
            expected = [n for n in range(40) if n % 5 == session]
            assert sorted(numbers(await store.events(f"s{session}"))) == expected
        assert sorted((row.id, row.checkpoints) for row in await store.sessions()) == [
            (f"s{n}", 8) for n in range(5)
        ]
        assert await harness.blobs() == 41

    async def test_a_store_that_is_opened_again_sees_all_that_was_committed(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        checkpoint, struggle = make_checkpoint("cp1"), Struggle(1, 2.0, b"a", b"b")
        change = checkpoint_change(checkpoint, archive=archive_of(b"x"), events=(event(1),))
        await store.commit(change)
        await store.commit(replace(clips_change(make_clips(1)), struggle=struggle))
        await store.close()

        again = await harness.open()

        assert await look(again, [digest(1)]) == AnchorState(
            {digest(1): "cp1"}, (make_clips(1),), struggle, {"cp1": checkpoint}
        )
        assert await again.archived("s1", "cp1") == [*archive_of(b"x")]
        assert numbers(await again.events("s1")) == [1]
        assert await again.sessions() == [SessionRow("s1", NOW, NOW, 1)]

    # --- leases ---

    async def test_a_lease_has_one_holder_until_it_ends(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        other = await harness.open()
        lease = await store.acquire_lease(ANCHOR, digest(1), 60.0)
        assert lease is not None
        assert (lease.anchor, lease.cut_digest) == (ANCHOR, digest(1))
        assert await other.acquire_lease(ANCHOR, digest(1), 60.0) is None
        assert await store.acquire_lease(ANCHOR, digest(1), 60.0) is None
        # Other compactions are nobody's business.
        assert await other.acquire_lease(ANCHOR, digest(2), 60.0) is not None
        assert await other.acquire_lease(OTHER, digest(1), 60.0) is not None
        assert await store.renew_lease(lease, 60.0) is True

        await store.release_lease(lease)

        second = await other.acquire_lease(ANCHOR, digest(1), 60.0)
        assert second is not None
        assert second.token > lease.token
        await store.release_lease(lease)
        assert await store.renew_lease(lease, 60.0) is False
        assert await store.acquire_lease(ANCHOR, digest(1), 60.0) is None

    async def test_a_lapsed_lease_goes_to_one_of_those_who_ask(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        other = await harness.open()
        lease = await store.acquire_lease(ANCHOR, digest(1), 0.2)
        assert lease is not None
        assert await store.renew_lease(lease, 0.05) is True
        taken: list[Lease] = []
        async with asyncio.timeout(10):
            while not taken:
                answers = await asyncio.gather(
                    *(s.acquire_lease(ANCHOR, digest(1), 60.0) for s in (store, other) * 4)
                )
                taken += [answer for answer in answers if answer is not None]
        assert len(taken) == 1
        assert taken[0].token > lease.token
        assert await store.renew_lease(lease, 60.0) is False

    async def test_a_lapsed_lease_that_nobody_took_is_still_good(self, store: SessionStore) -> None:
        lease = await store.acquire_lease(ANCHOR, digest(1), 0.001)
        assert lease is not None
        await asyncio.sleep(0.01)  # the lease is over by then on any clock
        await store.commit(replace(checkpoint_change(make_checkpoint("cp1")), lease=lease))
        assert await store.load_checkpoint(ANCHOR, "cp1") == make_checkpoint("cp1")

    async def test_a_commit_under_a_lease_that_was_taken_over_writes_nothing(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        lease = await store.acquire_lease(ANCHOR, digest(1), 60.0)
        assert lease is not None
        await store.release_lease(lease)
        other = await harness.open()
        second = await other.acquire_lease(ANCHOR, digest(1), 60.0)
        assert second is not None
        late = checkpoint_change(
            make_checkpoint("late"), archive=archive_of(b"x"), events=(event(1),)
        )
        late = replace(
            late, lease=lease, struggle=Struggle(1), clip_set=make_clips(1), time=NOW + 5
        )

        with pytest.raises(LeaseLost):
            await store.commit(late)

        assert await look(store, [digest(1)]) == AnchorState()
        assert await store.events("s1") == []
        assert await store.sessions() == []
        assert await store.archived("s1", "late") == []
        await other.commit(replace(checkpoint_change(make_checkpoint("cp1")), lease=second))
        with pytest.raises(LeaseLost):
            await store.commit(late)
        found = await look(store, [digest(1)])
        assert found == AnchorState({digest(1): "cp1"}, checkpoints={"cp1": make_checkpoint("cp1")})

    async def test_a_commit_gives_its_lease_back(self, store: SessionStore) -> None:
        lease = await store.acquire_lease(ANCHOR, digest(1), 60.0)
        change = replace(checkpoint_change(make_checkpoint("cp1")), lease=lease)
        await store.commit(change)
        await store.commit(change)
        assert await store.acquire_lease(ANCHOR, digest(1), 60.0) is not None

    # --- known checkpoints, versions, copying ---

    async def test_what_the_caller_holds_is_not_read_again(self, store: SessionStore) -> None:
        shallow, deep = make_checkpoint("shallow", 1), make_checkpoint("deep", 2)
        await store.commit(checkpoint_change(shallow))
        await store.commit(checkpoint_change(deep))
        chain = [digest(1), digest(2)]
        cuts = {digest(1): "shallow", digest(2): "deep"}
        found = await store.find(ANCHOR, chain, ["deep", "else"])
        assert (dict(found.cuts), dict(found.checkpoints)) == (cuts, {})
        found = await store.find(ANCHOR, chain, ["shallow"])
        assert (dict(found.cuts), dict(found.checkpoints)) == (cuts, {"deep": deep})

    async def test_a_deletion_raises_the_version(self, store: SessionStore) -> None:
        await store.commit(checkpoint_change(make_checkpoint("cp1")))
        before = await store.find(ANCHOR, [])
        await store.commit(checkpoint_change(make_checkpoint("cp2", 2)))
        assert (await store.find(ANCHOR, [])).version == before.version
        await store.delete_session("s1")
        assert (await store.find(ANCHOR, [])).version > before.version

    async def test_what_was_known_before_a_deletion_is_not_committed(
        self, store: SessionStore
    ) -> None:
        await store.commit(checkpoint_change(make_checkpoint("cp1")))
        version = (await store.find(ANCHOR, [])).version
        late = replace(checkpoint_change(make_checkpoint("cp2", 2)), version=version)
        await store.commit(late)
        await store.delete_session("s1")
        with pytest.raises(LeaseLost):
            await store.commit(late)
        assert await store.sessions() == []
        assert await store.load_checkpoint(ANCHOR, "cp2") is None
        now = (await store.find(ANCHOR, [])).version
        await store.commit(replace(late, version=now))
        assert [row.id for row in await store.sessions()] == ["s1"]

    async def test_a_secret_of_another_store_is_kept_unless_there_is_one(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        assert await store.adopt_secret("tenant", b"t" * 32) == b"t" * 32
        assert await store.adopt_secret("tenant", b"u" * 32) == b"t" * 32
        assert await (await harness.open()).secret("tenant") == b"t" * 32

    async def test_an_exported_session_can_be_recreated(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        struggle = Struggle(2, NOW + 60.5, digest(1), digest(2))
        archive = archive_of(b"one", noise(600_000, 3), b"", b"one")
        for n in (1, 2):
            checkpoint = make_checkpoint(f"cp{n}", n, created=NOW + n)
            change = checkpoint_change(checkpoint, time=NOW + n, archive=archive[n:])
            await store.commit(replace(change, events=(event(n), event(n + 10))))
        clips = make_clips(3, "cp2")
        await store.commit(
            replace(clips_change(clips), archive=archive[:1], archive_id="clip", struggle=struggle)
        )
        await store.commit(checkpoint_change(make_checkpoint("else", 9, session="s2")))
        await store.touch(ANCHOR, "s1", NOW + 50)

        async def everything() -> tuple[object, ...]:
            rows = [row for row in await store.sessions() if row.id == "s1"]
            archives = [await store.archived("s1", name) for name in ("cp1", "cp2", "clip")]
            found = await look(store, [digest(1), digest(2)])
            return (found, archives, await store.events("s1"), rows)

        before = await everything()
        changes = [change async for change in store.export("s1")]
        assert [change async for change in store.export("nobody")] == []
        assert {change.session for change in changes} == {"s1"}
        await store.delete_session("s1")
        await store.delete_session("s2")
        for change in changes:
            await store.commit(change)
        # What belongs to the other session only.
        await store.commit(checkpoint_change(make_checkpoint("else", 9, session="s2")))

        after = await everything()

        assert after == before
        assert len(before[1][0]) == 3  # type: ignore[index]

    async def test_every_session_is_told_once_whatever_happens_meanwhile(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        other = await harness.open()
        anchors = [b"anchor-%013d" % n for n in range(15)]
        expected = {f"s{n}" for n in range(45)}
        for n in range(45):
            await store.commit(Change(anchors[n % 15], f"s{n}", NOW + n))
        told: list[str] = []
        async for session in store.all_sessions():
            told.append(session)
            n = int(session.removeprefix("s"))
            # Used, and more of them, while we look.
            await other.touch(anchors[n % 15], session, NOW + 1000 + n)
            if n < 45:
                await other.commit(Change(anchors[n % 15], f"s{n + 100}", NOW + 2000))
        assert len(told) == len(set(told))
        assert expected <= set(told) <= expected | {f"s{n + 100}" for n in range(45)}
        assert sorted([session async for session in other.all_sessions()]) == sorted(
            expected | {f"s{n + 100}" for n in range(45)}
        )

    async def test_no_session_is_told_when_there_is_none(self, store: SessionStore) -> None:
        await store.commit(Change(ANCHOR, "", NOW, struggle=Struggle(failures=1)))
        await store.append_events([event(1, "never committed")])
        assert [session async for session in store.all_sessions()] == []

    async def test_a_secret_is_known_once_it_was_drawn(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        assert await store.known_secret("tenant") is None
        assert await store.known_secret("tenant") is None
        drawn = await store.secret("tenant")
        assert await (await harness.open()).known_secret("tenant") == drawn
        await store.adopt_secret("other", b"o" * 32)
        assert await store.known_secret("other") == b"o" * 32

    async def test_an_export_leaves_out_what_cannot_be_read_and_says_so(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        for n in (1, 2, 3):
            archive = archive_of(b"of %d" % n, b"shared")
            await store.commit(
                checkpoint_change(make_checkpoint(f"cp{n}", n), archive=archive, events=(event(n),))
            )
        good, bad = make_clips(1), make_clips(2)
        for clips in (good, bad):
            await store.commit(clips_change(clips))
        await harness.put_checkpoint("cp1", b"damaged")
        newer = codec.dumps({"schema_version": SCHEMA_VERSION + 1})
        await harness.put_checkpoint("cp2", state.pack(newer))
        await harness.put_clips(ANCHOR, bad, b"damaged")
        again = await harness.open()

        notes: list[Unreadable] = []
        changes = [change async for change in again.export("s1", notes.append)]

        assert sorted(note.why for note in notes) == ["damaged", "damaged", "newer"]
        await again.delete_session("s1")
        for change in changes:
            await again.commit(change)
        assert await look(again, [digest(n) for n in (1, 2, 3)]) == AnchorState(
            {digest(3): "cp3"}, (good,), checkpoints={"cp3": make_checkpoint("cp3", 3)}
        )
        # What a lost checkpoint stood for is not lost.
        for n in (1, 2, 3):
            assert await again.archived("s1", f"cp{n}") == [*archive_of(b"of %d" % n, b"shared")]
        assert numbers(await again.events("s1")) == [1, 2, 3]
        assert await again.sessions() == [SessionRow("s1", NOW, NOW, 1)]

    # --- damaged and newer values ---

    async def test_a_newer_clip_set_is_absent_and_not_overwritten(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        clips = make_clips(1)
        await store.commit(clips_change(clips))
        newer = state.pack(codec.dumps({"schema_version": SCHEMA_VERSION + 1, "clips": "other"}))
        await harness.put_clips(ANCHOR, clips, newer)
        again = await harness.open()

        assert await look(again) == AnchorState()
        await again.commit(clips_change(clips))
        assert await harness.stored_clips(ANCHOR, clips) == newer

    @pytest.mark.parametrize("how", ["cut", "flipped", "empty", "other JSON", "no JSON", "a list"])
    async def test_a_damaged_checkpoint_is_absent_and_stays_as_it_is(
        self, harness: StoreHarness, store: SessionStore, how: str
    ) -> None:
        shallow, deep = make_checkpoint("shallow", 1), make_checkpoint("deep", 2)
        await store.commit(checkpoint_change(shallow))
        await store.commit(checkpoint_change(deep, archive=archive_of(b"x")))
        damaged = damage(await harness.stored_checkpoint("deep"), how)
        await harness.put_checkpoint("deep", damaged)
        again = await harness.open()

        found = await look(again, [digest(1), digest(2)])

        assert found == AnchorState(
            {digest(1): "shallow"}, checkpoints={"shallow": shallow}, corrupt=1
        )
        assert await again.load_checkpoint(ANCHOR, "deep") is None
        await again.commit(checkpoint_change(deep))
        assert await harness.stored_checkpoint("deep") == damaged
        assert await again.archived("s1", "deep") == [*archive_of(b"x")]

    async def test_an_older_checkpoint_of_the_cut_stands_in_for_a_damaged_one(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        older, newer = make_checkpoint("older"), make_checkpoint("newer", created=NOW + 1)
        await store.commit(checkpoint_change(older))
        await store.commit(checkpoint_change(newer))
        await harness.put_checkpoint("newer", b"damaged")
        found = await look(await harness.open(), [digest(1)])
        assert found == AnchorState({digest(1): "older"}, checkpoints={"older": older}, corrupt=1)

    @pytest.mark.parametrize("how", ["cut", "flipped", "empty", "other JSON", "no JSON", "a list"])
    async def test_a_damaged_clip_set_is_absent_and_stays_as_it_is(
        self, harness: StoreHarness, store: SessionStore, how: str
    ) -> None:
        good, bad = make_clips(1), make_clips(2)
        await store.commit(clips_change(good))
        await store.commit(clips_change(bad))
        damaged = damage(await harness.stored_clips(ANCHOR, bad), how)
        await harness.put_clips(ANCHOR, bad, damaged)
        again = await harness.open()
        assert await look(again) == AnchorState(clip_sets=(good,), corrupt=1)
        await again.commit(clips_change(good))
        assert await harness.stored_clips(ANCHOR, bad) == damaged

    async def test_a_newer_checkpoint_is_absent_and_never_overwritten(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        shallow, deep = make_checkpoint("shallow", 1), make_checkpoint("deep", 2)
        await store.commit(checkpoint_change(shallow))
        await store.commit(checkpoint_change(deep))
        document = codec.loads(state.unpack(await harness.stored_checkpoint("deep")))
        assert isinstance(document, dict)
        # Still readable as an old one, but for its version.
        changes: JsonObject = {"schema_version": SCHEMA_VERSION + 1, "invented_later": [1]}
        newer = state.pack(codec.dumps({**document, **changes}))
        await harness.put_checkpoint("deep", newer)
        again = await harness.open()

        found = await look(again, [digest(1), digest(2)])

        assert (found.cuts, found.checkpoints) == ({digest(1): "shallow"}, {"shallow": shallow})
        assert await again.load_checkpoint(ANCHOR, "deep") is None
        await again.commit(checkpoint_change(deep))
        assert await harness.stored_checkpoint("deep") == newer

    async def test_a_version_of_today_is_read(
        self, harness: StoreHarness, store: SessionStore
    ) -> None:
        """The control of the test above: the same tampering without a newer version is read."""
        checkpoint = make_checkpoint("cp1")
        await store.commit(checkpoint_change(checkpoint))
        document = codec.loads(state.unpack(await harness.stored_checkpoint("cp1")))
        assert isinstance(document, dict)
        assert document["schema_version"] == SCHEMA_VERSION
        await harness.put_checkpoint("cp1", state.pack(codec.dumps({**document, "text": "new"})))
        loaded = await (await harness.open()).load_checkpoint(ANCHOR, "cp1")
        assert loaded == replace(checkpoint, text="new")


def damage(data: bytes, how: str) -> bytes:
    """Spoil a stored value."""
    match how:
        case "cut":
            return data[: len(data) // 2]
        case "flipped":
            middle = len(data) // 2
            return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
        case "empty":
            return b""
        case "other JSON":
            return state.pack(b'{"schema_version":1,"id":7}')
        case "a list":
            return state.pack(b"[1]")
        case _:
            return state.pack(b"{")
