"""Recorded responses in a file: what they share with the archive, old files, and crashes.

Run as a program it is the writer that the test kills.
"""

import asyncio
import hashlib
import random
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from proxy.errors import StoreUnavailable
from proxy.sessions import sqlite_response_rows, sqlite_schema
from proxy.sessions.responses import RecordedResponse
from proxy.sessions.sqlite_store import SqliteStore
from proxy.sessions.state import Archived, Change
from tests.contract.response_store_contract import (
    exported,
    items_of,
    name,
    record,
    response,
    texts,
)
from tests.contract.session_store_contract import (
    ANCHOR,
    DAY,
    GENEROUS,
    NOW,
    OTHER,
    archive_of,
    checkpoint_change,
    make_checkpoint,
    noise,
)
from tests.contract.test_sqlite_store import SqliteHarness, harness

__all__ = ["harness"]

_ROOT = Path(__file__).parents[2]


def archived(text: str, archive_id: str = "a", *, time: float = NOW) -> Change:
    return Change(ANCHOR, "s1", time, archive=archive_of(*items_of(text)), archive_id=archive_id)


async def test_an_item_that_is_archived_too_is_stored_once(harness: SqliteHarness) -> None:
    store = await harness.open()
    await store.commit(archived("abc"))
    # Of another anchor, so that no session's deletion takes it along.
    await record(store.responses, response("r1", "bcd", anchor=OTHER))
    assert await harness.blobs() == 4
    await store.commit(archived("de", "more"))
    assert await harness.blobs() == 5

    assert await store.responses.forget(name("r1")) is True
    assert await store.archived("s1", "a") == [*archive_of(*items_of("abc"))]
    assert await store.archived("s1", "more") == [*archive_of(*items_of("de"))]
    assert await harness.blobs() == 5

    await record(store.responses, response("r1", "bcd", anchor=OTHER))
    assert await store.delete_session("s1") is True
    assert await texts(store.responses, "r1") == ["bcd"]
    assert await harness.blobs() == 3


def large(id_: str, *seeds: int, anchor: bytes, time: float) -> RecordedResponse:
    raws = tuple(noise(5_000, seed) for seed in seeds)
    return RecordedResponse(name(id_), anchor, b"", 0, raws, time=time)


async def test_over_the_cap_what_is_oldest_goes_first(harness: SqliteHarness) -> None:
    store = await harness.open(archive_bytes=27_000)
    anchors = [b"anchor-%013d" % n for n in range(3)]
    old, used, young = anchors
    await record(
        store.responses,
        large("old", 1, anchor=old, time=NOW),
        large("used", 2, anchor=used, time=NOW + 1),
        large("young", 3, anchor=young, time=NOW + 9),
        large("used too", 4, anchor=used, time=NOW + 8),
    )
    for n, time in ((5, NOW + 2), (6, NOW + 7)):
        archive = archive_of(noise(5_000, n))
        await store.commit(Change(ANCHOR, "s1", time, archive=archive, archive_id=f"a{n}"))
    assert await harness.blobs() == 6

    assert await store.responses.expire(NOW + 10) == 1
    assert await store.responses.load(name("old")) is None
    assert await harness.blobs() == 5
    await record(store.responses, large("young too", 7, 8, anchor=young, time=NOW + 9))
    assert await store.expire(NOW + 10) == 0
    assert [len(await store.archived("s1", f"a{n}")) for n in (5, 6)] == [0, 0]
    assert await harness.blobs() == 5
    await record(store.responses, large("more", 9, 10, anchor=young, time=NOW + 10))
    # The responses of an anchor go together, by the newest.
    assert await store.responses.expire(NOW + 10) == 2
    assert [await store.responses.load(name(id_)) for id_ in ("used", "used too")] == [None, None]
    assert await harness.blobs() == 5


async def test_what_two_parts_have_in_common_is_freed_with_the_second(
    harness: SqliteHarness,
) -> None:
    store = await harness.open(archive_bytes=8_000)
    archive = (Archived(0, noise(5_000, 1)),)
    await store.commit(Change(ANCHOR, "s1", NOW, archive=archive, archive_id="a"))
    await record(
        store.responses,
        large("r1", 1, anchor=OTHER, time=NOW + 1),
        large("r2", 2, anchor=ANCHOR, time=NOW + 2),
    )
    assert await store.responses.expire(NOW + 3) == 1
    assert await store.archived("s1", "a") == []
    assert await harness.blobs() == 1
    assert await store.responses.load(name("r2")) is not None


async def test_a_file_of_the_format_before_becomes_one_of_today(
    harness: SqliteHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = make_checkpoint("cp1")
    with monkeypatch.context() as patch:
        patch.setattr(sqlite_schema, "SCHEMA_VERSION", 2)
        patch.setattr(sqlite_schema, "_MIGRATIONS", sqlite_schema._MIGRATIONS[:2])
        harness.path.parent.mkdir()
        with closing(sqlite3.connect(harness.path, isolation_level=None)) as db:
            sqlite_schema.migrate(db)
            change = checkpoint_change(checkpoint)
            sqlite_schema.apply(db, change, [(b"d" * 32, 1, b"x", 0)])
    store = await harness.open()
    assert await store.load_checkpoint(ANCHOR, "cp1") == checkpoint
    assert await exported(store.responses) == []
    await record(store.responses, response("r1", "ab"), response("r2", "c", "r1", 1))
    assert await texts(store.responses, "r2") == ["ac"]
    with closing(sqlite3.connect(harness.path)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (sqlite_schema.SCHEMA_VERSION,)


async def test_responses_are_told_across_pages(
    harness: SqliteHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_response_rows, "PAGE", 3)
    store = (await harness.open()).responses
    for n in range(10):
        await record(store, response(f"r{n}", "ab", f"r{n - 1}" if n else "", 2 * n))
    told = []
    async for one in store.all_responses():
        told.append(one)
        if len(told) == 1:
            await store.forget(name("r4"))
    assert [one.key for one in told] == [name(f"r{n}") for n in range(10) if n != 4]
    after = told[4]
    assert (after.base, after.shared, len(after.items)) == (name("r3"), 8, 4)


async def test_rows_that_are_missing_are_never_believed(harness: SqliteHarness) -> None:
    store = (await harness.open()).responses
    await record(
        store,
        response("r1", "ab"),
        response("r2", "c", "r1", 2),
        response("r3", "d", "r2", 3),
        response("r4", "e"),
    )
    with closing(sqlite3.connect(harness.path)) as db, db:
        db.execute("DELETE FROM response_items WHERE response = 2")
        db.execute(
            "DELETE FROM blobs WHERE digest = ?", (hashlib.sha256(items_of("e")[0]).digest(),)
        )
    assert await texts(store, "r1", "r2", "r3", "r4") == ["ab", None, None, None]
    assert [one.key for one in await exported(store)] == [name("r1")]
    with closing(sqlite3.connect(harness.path)) as db, db:
        db.execute("DELETE FROM responses WHERE id = 2")
    assert await texts(store, "r1", "r3") == ["ab", None]
    await record(store, response("r5", "x", "r3", 4))
    assert await texts(store, "r5") == [None]
    assert await store.forget(name("r3")) is True
    assert [one.key for one in await exported(store)] == [name("r1")]


async def test_a_record_that_fails_half_way_is_undone(harness: SqliteHarness) -> None:
    store = await harness.open()
    await record(store.responses, response("r1", "ab"))
    with closing(sqlite3.connect(harness.path)) as db:
        (schema,) = db.execute("SELECT sql FROM sqlite_master WHERE name = 'item_names'").fetchone()
        # Names are written last.
        db.execute("DROP TABLE item_names")
        for one in (response("r2", "cd", "r1", 1, names={"c": 0}), response("r1", "x")):
            with pytest.raises(StoreUnavailable, match="SQLITE_ERROR"):
                await store.responses.save(one)
        with pytest.raises(StoreUnavailable, match="SQLITE_ERROR"):
            await store.responses.forget(name("r1"))
        with pytest.raises(StoreUnavailable, match="SQLITE_ERROR"):
            await store.responses.expire(NOW * 2)
        assert await texts(store.responses, "r1", "r2") == ["ab", None]
        assert await harness.stored_items() == 2
        db.execute(schema)
    await record(store.responses, response("r2", "cd", "r1", 1, names={"c": 0}))
    assert await texts(store.responses, "r1", "r2") == ["ab", "acd"]


async def test_a_full_disk_leaves_nothing_half_written(harness: SqliteHarness) -> None:
    store = await harness.open()
    await record(store.responses, large("r1", 1, anchor=ANCHOR, time=NOW))
    pages = "PRAGMA max_page_count = 60"
    await store._file.run(lambda: store._file.db().execute(pages).fetchall())
    too_much = large("r2", *range(2, 60), anchor=ANCHOR, time=NOW)
    with pytest.raises(StoreUnavailable, match="FULL"):
        await store.responses.save(too_much)
    assert await store.responses.load(name("r2")) is None
    assert await harness.stored_items() == 1
    await record(store.responses, large("r3", 2, anchor=ANCHOR, time=NOW))
    assert await store.responses.load(name("r3")) is not None


# --- crashes ---


def _crash_response(number: int) -> RecordedResponse:
    own = (noise(6_000, number), b"%d" % number)
    below = name(f"r{number - 1}") if number else b""
    names = ((name(f"i{number}"), 1),)
    return RecordedResponse(name(f"r{number}"), ANCHOR, below, number * 2, own, names, NOW)


async def test_a_killed_writer_leaves_each_response_whole_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "sessions.db"
    rng, written = random.Random(7), 0
    for _ in range(3):
        writer = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.contract.test_sqlite_responses",
            str(path),
            str(written),
            stdout=asyncio.subprocess.PIPE,
            cwd=_ROOT,
        )
        assert writer.stdout is not None
        for _ in range(rng.randrange(1, 25)):
            await writer.stdout.readline()
        writer.send_signal(signal.SIGKILL)
        rest, _ = await writer.communicate()
        store = SqliteStore(path, retention_seconds=DAY, archive_bytes=GENEROUS)
        await store.open()
        told = await exported(store.responses)
        assert told == [_crash_response(n) for n in range(len(told))]
        # What was told before the kill counts, a line cut short does not.
        acknowledged = [int(line) for line in rest.split(b"\n")[:-1]]
        assert len(told) > max(acknowledged, default=written)
        whole = await store.responses.load(told[-1].key)
        assert whole is not None
        assert whole.items == tuple(raw for one in told for raw in one.items)
        written = len(told)
        await store.close()
    assert written > 6


async def _write(path: Path, number: int) -> None:
    store = SqliteStore(path, retention_seconds=DAY, archive_bytes=GENEROUS)
    await store.open()
    while True:
        await record(store.responses, _crash_response(number))
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        number += 1


if __name__ == "__main__":
    asyncio.run(_write(Path(sys.argv[1]), int(sys.argv[2])))
