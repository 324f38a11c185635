"""The SQLite store: the common suite, and what only a file can do.

Run as a program it is the writer that the tests kill or let run out of disk.
"""

import asyncio
import hashlib
import random
import resource
import signal
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from proxy.compaction.checkpoint import Fold
from proxy.errors import StateCorrupt, StoreTooNew, StoreUnavailable
from proxy.sessions import sqlite_export, sqlite_schema, sqlite_store, state
from proxy.sessions.sqlite_store import SqliteStore
from proxy.sessions.state import AnchorState, Change, ClipSet, SessionRow, Struggle
from proxy.sessions.store import SessionStore
from tests.contract import session_store_contract as suite
from tests.contract.response_store_contract import ResponseHarness, ResponseStoreContract
from tests.contract.session_store_contract import (
    ANCHOR,
    DAY,
    GENEROUS,
    NOW,
    SessionStoreContract,
    StoreHarness,
    archive_of,
    checkpoint_change,
    damage,
    digest,
    event,
    make_checkpoint,
    make_clips,
    noise,
    numbers,
)

_ROOT = Path(__file__).parents[2]


def _store(path: Path) -> SqliteStore:
    return SqliteStore(path, retention_seconds=DAY, archive_bytes=GENEROUS)


class SqliteHarness(ResponseHarness):
    """One file, several stores over it, and a connection of our own to look inside."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened: list[SqliteStore] = []
        self._others = 0

    async def open(
        self, *, retention_seconds: float = DAY, archive_bytes: int = GENEROUS
    ) -> SqliteStore:
        store = SqliteStore(
            self.path, retention_seconds=retention_seconds, archive_bytes=archive_bytes
        )
        await store.open()
        self.opened.append(store)
        return store

    async def stored_checkpoint(self, checkpoint_id: str) -> bytes:
        return self._bytes("SELECT data FROM checkpoints WHERE id = ?", checkpoint_id)

    async def put_checkpoint(self, checkpoint_id: str, data: bytes) -> None:
        self._put("UPDATE checkpoints SET data = ? WHERE id = ?", data, checkpoint_id)

    async def stored_clips(self, anchor: bytes, clips: ClipSet) -> bytes:
        return self._bytes(
            "SELECT data FROM clip_sets WHERE anchor = ? AND digest = ? AND checkpoint = ?",
            anchor,
            clips.digest,
            clips.checkpoint,
        )

    async def put_clips(self, anchor: bytes, clips: ClipSet, data: bytes) -> None:
        self._put(
            "UPDATE clip_sets SET data = ? WHERE anchor = ? AND digest = ? AND checkpoint = ?",
            data,
            anchor,
            clips.digest,
            clips.checkpoint,
        )

    async def put_fold(self, anchor: bytes, fold: Fold, data: bytes) -> None:
        self._put("UPDATE folds SET data = ? WHERE anchor = ? AND key = ?", data, anchor, fold.key)

    async def blobs(self) -> int:
        with closing(sqlite3.connect(self.path)) as db:
            return int(db.execute("SELECT count(*) FROM blobs").fetchone()[0])

    def another(self) -> "SqliteHarness":
        self._others += 1
        return SqliteHarness(self.path.with_name(f"other{self._others}.db"))

    async def close(self) -> None:
        for store in self.opened:
            if store._file.is_open:
                await store.close()

    async def stored_items(self) -> int:
        with closing(sqlite3.connect(self.path)) as db:
            query = "SELECT count(*) FROM blobs WHERE digest NOT IN (SELECT blob FROM archive)"
            return int(db.execute(query).fetchone()[0])

    async def spoil_item(self, anchor: bytes, raw: bytes, how: str) -> None:
        address = hashlib.sha256(raw).digest()
        stored = self._bytes("SELECT data FROM blobs WHERE digest = ?", address)
        self._put("UPDATE blobs SET data = ? WHERE digest = ?", damage(stored, how), address)

    def _bytes(self, query: str, *values: str | bytes) -> bytes:
        with closing(sqlite3.connect(self.path)) as db:
            return bytes(db.execute(query, values).fetchone()[0])

    def _put(self, query: str, *values: str | bytes) -> None:
        with closing(sqlite3.connect(self.path)) as db, db:
            assert db.execute(query, values).rowcount == 1


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[SqliteHarness]:
    harness = SqliteHarness(tmp_path / "folder" / "sessions.db")
    yield harness
    await harness.close()


class TestSqliteStore(SessionStoreContract, ResponseStoreContract):
    """The common suite, and the limits that only a file has."""

    async def test_events_of_no_session_expire_too(self, store: SessionStore) -> None:
        await store.append_events([event(1, "gone"), event(2, "gone", NOW + 50)])
        await store.expire(NOW + DAY + 10)
        assert numbers(await store.events("gone")) == [2]

    async def test_a_full_archive_drops_its_oldest_part_and_no_checkpoint(
        self, harness: StoreHarness
    ) -> None:
        store = await harness.open(archive_bytes=25_000)
        names = ["cp2", "cp0", "cp1"]
        for age, name in enumerate(names):
            change = checkpoint_change(
                make_checkpoint(name),
                time=NOW + age,
                archive=archive_of(noise(5_000, age * 2), noise(5_000, age * 2 + 1)),
            )
            await store.commit(change)

        assert await store.expire(NOW + 10) == 0

        assert [len(await store.archived("s1", name)) for name in names] == [0, 2, 2]
        assert await store.archived("s1", "cp0") == [*archive_of(noise(5_000, 2), noise(5_000, 3))]
        assert await harness.blobs() == 4
        for name in names:
            assert await store.load_checkpoint(ANCHOR, name) == make_checkpoint(name)


async def test_sessions_are_told_across_pages(
    harness: SqliteHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_export, "PAGE", 3)
    store = await harness.open()
    for n in range(10):
        await store.commit(Change(ANCHOR, f"s{n}", NOW))
    await store.delete_session("s4")
    told = []
    async for session in store.all_sessions():
        told.append(session)
        await store.touch(ANCHOR, session, NOW + 60)
        if session == "s0":
            await store.delete_session("s3")
    assert sorted(told) == ["s0", "s1", "s2", "s5", "s6", "s7", "s8", "s9"]


# --- opening ---


async def test_the_file_is_its_owners_alone(harness: SqliteHarness) -> None:
    store = await harness.open()
    await store.commit(checkpoint_change(make_checkpoint("cp1")))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in harness.path.parent.iterdir()}
    assert modes["sessions.db"] == 0o600
    assert set(modes.values()) == {0o600}
    assert "sessions.db-wal" in modes
    assert stat.S_IMODE(harness.path.parent.stat().st_mode) == 0o700


def _files(path: Path) -> tuple[Path, Path]:
    return path, path.with_name(path.name + "-wal")


async def test_a_store_of_a_newer_version_is_refused_and_not_touched(tmp_path: Path) -> None:
    source, path = tmp_path / "source.db", tmp_path / "newer.db"
    with closing(sqlite3.connect(source)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE invented_later (x)")
        db.execute(f"PRAGMA user_version = {sqlite_schema.SCHEMA_VERSION + 1}")
        db.execute("INSERT INTO invented_later VALUES (1)")
        db.commit()
        # As a crash leaves it: the last commits are in the log only.
        for old, new in zip(_files(source), _files(path), strict=True):
            new.write_bytes(old.read_bytes())
    before = [file.read_bytes() for file in _files(path)]
    assert all(before)

    store = _store(path)
    with pytest.raises(StoreTooNew, match="newer foldgate"):
        await store.open()
    await store.close()

    assert [file.read_bytes() for file in _files(path)] == before
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT x FROM invented_later").fetchall() == [(1,)]


async def test_a_file_that_is_no_database_is_refused_and_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("These are my notes, not a database.\n" * 100)
    store = _store(path)
    with pytest.raises(StoreUnavailable, match=r"SQLite store failed.*NOTADB"):
        await store.open()
    await store.close()
    assert path.read_text() == "These are my notes, not a database.\n" * 100


async def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    harness = SqliteHarness(path)
    store = await harness.open()
    await store.commit(Change(ANCHOR, "s1", NOW))
    assert [row.id for row in await store.sessions()] == ["s1"]
    await store.close()


@pytest.mark.parametrize("place", ["below a file", "a folder", "a kernel folder"])
async def test_a_place_that_cannot_hold_a_file_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("x")
    path = {
        "below a file": tmp_path / "file" / "sessions.db",
        "a folder": tmp_path,
        "a kernel folder": Path("/proc/foldgate/sessions.db"),
    }[place]
    store = _store(path)
    with pytest.raises(StoreUnavailable, match="SQLite store failed"):
        await store.open()
    with pytest.raises(StoreUnavailable, match="not open"):
        await store.find(ANCHOR, [])
    await store.close()


async def test_many_processes_may_create_the_store_at_once(tmp_path: Path) -> None:
    for round_number in range(5):
        stores = [_store(tmp_path / f"{round_number}.db") for _ in range(5)]
        await asyncio.gather(*(store.open() for store in stores))
        await asyncio.gather(*(store.commit(Change(ANCHOR, "s1", NOW)) for store in stores))
        assert await stores[0].sessions() == [SessionRow("s1", NOW, NOW, 0)]
        for store in stores:
            await store.close()


# --- failures while it is open ---


async def test_a_lock_held_too_long_makes_it_unavailable_until_it_is_released(
    harness: SqliteHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "BUSY_SECONDS", 0.1)
    store = await harness.open()
    checkpoint = make_checkpoint("cp1")
    await store.commit(checkpoint_change(checkpoint))
    with closing(sqlite3.connect(harness.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="BUSY"):
            await store.commit(checkpoint_change(make_checkpoint("cp2", 2)))
        # Reading goes on.
        assert (await store.find(ANCHOR, [digest(1)])).checkpoints == {"cp1": checkpoint}
        other.execute("ROLLBACK")
    assert await store.load_checkpoint(ANCHOR, "cp2") is None
    await store.commit(checkpoint_change(make_checkpoint("cp2", 2)))
    assert await store.load_checkpoint(ANCHOR, "cp2") == make_checkpoint("cp2", 2)


async def test_a_short_lock_is_waited_for(harness: SqliteHarness) -> None:
    store = await harness.open()
    with closing(sqlite3.connect(harness.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        commit = asyncio.ensure_future(store.commit(Change(ANCHOR, "s1", NOW)))
        done, _ = await asyncio.wait([commit], timeout=0.1)
        assert not done
        other.execute("ROLLBACK")
        await commit
    assert [row.id for row in await store.sessions()] == ["s1"]


async def _pragma(store: SqliteStore, statement: str) -> None:
    await store._file.run(lambda: store._file.db().execute(f"PRAGMA {statement}").fetchall())


async def test_a_store_that_cannot_be_written_can_still_be_read(harness: SqliteHarness) -> None:
    store = await harness.open()
    checkpoint = make_checkpoint("cp1")
    await store.commit(checkpoint_change(checkpoint, archive=archive_of(b"x")))
    await _pragma(store, "query_only = ON")

    writes = [
        store.commit(checkpoint_change(make_checkpoint("cp2", 2))),
        store.append_events([suite.event(1)]),
        store.touch(ANCHOR, "s1", NOW + 1),
    ]
    for write in writes:
        with pytest.raises(StoreUnavailable, match="READONLY"):
            await write
    with pytest.raises(StoreUnavailable, match="READONLY"):
        await store.secret("tenant")
    with pytest.raises(StoreUnavailable, match="READONLY"):
        await store.expire(NOW * 2)
    with pytest.raises(StoreUnavailable, match="READONLY"):
        await store.delete_session("s1")
    assert (await store.find(ANCHOR, [digest(1)])).checkpoints == {"cp1": checkpoint}
    assert await store.archived("s1", "cp1") == [*archive_of(b"x")]

    await _pragma(store, "query_only = OFF")
    await store.commit(checkpoint_change(make_checkpoint("cp2", 2)))
    assert [row.checkpoints for row in await store.sessions()] == [2]


def _large_change(number: int, size: int = 300_000) -> Change:
    session = f"s{number}"
    return Change(
        ANCHOR,
        session,
        NOW + number,
        make_checkpoint(f"cp{number}", number, session=session),
        make_clips(number, f"cp{number}", session),
        Struggle(number, NOW, digest(number), b""),
        archive_of(suite.noise(size, number), b"small %d" % number),
        f"cp{number}",
        (suite.event(number, session),),
    )


async def _wholeness(store: SqliteStore, change: Change) -> str:
    """Tell whether a change is there `whole`, `absent`, or else what is there of it."""
    assert change.checkpoint is not None
    assert change.clip_set is not None
    found = await store.find(ANCHOR, [change.checkpoint.cut_digest])
    there = {
        "checkpoint": found.checkpoints == {change.archive_id: change.checkpoint},
        "clips": change.clip_set in found.clip_sets,
        "archive": await store.archived(change.session, change.archive_id) == [*change.archive],
        "events": suite.numbers(await store.events(change.session))
        == [event.fields["number"] for event in change.events],
        "session": SessionRow(change.session, change.time, change.time, 1)
        in await store.sessions(100_000),
    }
    if all(there.values()):
        return "whole"
    return ", ".join(part for part, present in there.items() if present) or "absent"


async def test_a_full_disk_leaves_nothing_half_written(harness: SqliteHarness) -> None:
    store = await harness.open()
    await store.commit(_large_change(1))
    await _pragma(store, "max_page_count = 110")

    with pytest.raises(StoreUnavailable, match="FULL"):
        await store.commit(_large_change(2))

    assert await _wholeness(store, _large_change(1)) == "whole"
    assert await _wholeness(store, _large_change(2)) == "absent"
    assert (await store.find(ANCHOR, [])).struggle == _large_change(1).struggle
    await store.delete_session("s1")
    await store.commit(_large_change(3))
    assert await _wholeness(store, _large_change(3)) == "whole"


async def test_a_file_that_cannot_grow_leaves_nothing_half_written(tmp_path: Path) -> None:
    code, output = await _program("fill", tmp_path / "sessions.db")
    assert (code, output.split()) == (0, ["refused", "absent", "whole", "whole"])


# --- crashes ---


async def test_a_killed_writer_leaves_each_commit_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    rng = random.Random(7)
    written = 0
    for _ in range(6):
        writer = await _start("write", path, str(written))
        assert writer.stdout is not None
        acknowledged = written
        for _ in range(rng.randrange(1, 25)):
            acknowledged = int(await writer.stdout.readline()) + 1
        await asyncio.sleep(rng.random() * 0.004)
        writer.send_signal(signal.SIGKILL)
        rest, _ = await writer.communicate()
        # What was told before the kill counts, a line cut short does not.
        for line in rest.split(b"\n")[:-1]:
            acknowledged = int(line) + 1
        assert writer.returncode == -signal.SIGKILL

        store = _store(path)
        await store.open()
        last = acknowledged
        if await _wholeness(store, _crash_change(last)) == "whole":
            last += 1  # committed, but killed before it could tell
        for number in range(written, last):
            assert await _wholeness(store, _crash_change(number)) == "whole"
        assert await _wholeness(store, _crash_change(last)) == "absent"
        assert len(await store.sessions(100_000)) == last
        assert (await store.find(ANCHOR, [])).struggle == _crash_change(last - 1).struggle
        await store.close()
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        written = last
    assert written > 12


def _crash_change(number: int) -> Change:
    return _large_change(number, size=20_000)


async def _start(*arguments: str | Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.contract.test_sqlite_store",
        *map(str, arguments),
        stdout=asyncio.subprocess.PIPE,
        cwd=_ROOT,
    )


async def _program(*arguments: str | Path) -> tuple[int | None, str]:
    process = await _start(*arguments)
    output, _ = await process.communicate()
    return process.returncode, output.decode()


async def _write(path: Path, number: int) -> None:
    store = _store(path)
    await store.open()
    while True:
        await store.commit(_crash_change(number))
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        number += 1


async def _fill(path: Path) -> None:
    store = _store(path)
    await store.open()
    await store.commit(_large_change(1))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = sum(file.stat().st_size for file in _files(path))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100_000, hard))
    try:
        await store.commit(_large_change(2))
    except StoreUnavailable:
        sys.stdout.write("refused\n")
    sys.stdout.write(await _wholeness(store, _large_change(2)) + "\n")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await store.commit(_large_change(3))
    for number in (1, 3):
        sys.stdout.write(await _wholeness(store, _large_change(number)) + "\n")
    await store.close()


# --- stored values ---


def test_no_damage_to_a_stored_value_is_believed() -> None:
    checkpoint, clips = make_checkpoint("cp1"), make_clips(1).clips
    stored, packed = state.dump_checkpoint(checkpoint), state.dump_clips(clips)
    assert state.load_checkpoint(stored) == checkpoint
    assert state.load_clips(packed) == clips
    for bit in range(len(stored) * 8):
        try:
            assert state.load_checkpoint(_flip(stored, bit)) == checkpoint
        except StateCorrupt:
            continue
    for bit in range(len(packed) * 8):
        try:
            assert state.load_clips(_flip(packed, bit)) == clips
        except StateCorrupt:
            continue
    for end in range(len(stored)):
        with pytest.raises(StateCorrupt):
            state.load_checkpoint(stored[:end])


def _flip(data: bytes, bit: int) -> bytes:
    flipped = bytearray(data)
    flipped[bit // 8] ^= 1 << bit % 8
    return bytes(flipped)


async def test_a_commit_that_fails_half_way_is_undone(harness: SqliteHarness) -> None:
    store = await harness.open()
    with closing(sqlite3.connect(harness.path)) as db:
        (schema,) = db.execute("SELECT sql FROM sqlite_master WHERE name = 'events'").fetchone()
        # Events are written last.
        db.execute("DROP TABLE events")
        change = _large_change(1, size=100)
        with pytest.raises(StoreUnavailable):
            await store.commit(change)
        assert await suite.look(store, [digest(1)]) == AnchorState()
        assert await store.sessions() == []
        assert await store.archived("s1", "cp1") == []
        db.execute(schema)
    await store.commit(change)
    assert await _wholeness(store, change) == "whole"


async def test_errors_name_no_path_and_no_content(harness: SqliteHarness) -> None:
    store = await harness.open()
    with closing(sqlite3.connect(harness.path)) as db:
        db.execute("DROP TABLE events")
    with pytest.raises(StoreUnavailable) as caught:
        await store.append_events([suite.event(1, "secret-session")])
    assert "secret" not in str(caught.value)
    assert str(harness.path) not in str(caught.value)
    assert await suite.look(store) == AnchorState()


if __name__ == "__main__":
    if sys.argv[1] == "write":
        asyncio.run(_write(Path(sys.argv[2]), int(sys.argv[3])))
    else:
        asyncio.run(_fill(Path(sys.argv[2])))
