"""Copying all sessions between real stores of every kind."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from proxy import codec
from proxy.compaction.checkpoint import SCHEMA_VERSION
from proxy.errors import StoreUnavailable
from proxy.server.stores import OpenableStore
from proxy.sessions import state
from proxy.sessions.migration import TENANCY, Migration, Stage, carry_key
from proxy.sessions.redis_response_scripts import NODE_VERSION
from proxy.sessions.responses import RecordedResponse
from proxy.sessions.state import Archived, Change, Struggle, Unreadable
from tests import redis_servers as servers
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
    NOW,
    OTHER,
    archive_of,
    checkpoint_change,
    clips_change,
    digest,
    event,
    look,
    make_checkpoint,
    make_clips,
    noise,
    numbers,
)
from tests.contract.test_redis_responses import make_newer
from tests.contract.test_redis_store import SECRET, RedisHarness
from tests.contract.test_sqlite_store import SqliteHarness

needs_redis = pytest.mark.skipif(servers.default_binary() is None, reason=servers.NO_SERVER)
KINDS = ("sqlite", "redis", "encrypted")
PAIRS = [(one, other) for one in KINDS for other in KINDS]


def quiet(stage: Stage, done: int, total: int | None) -> None:
    assert (total is None) == (stage == "responses")
    assert total is None or 0 <= done <= total, stage


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def redis_url(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    if servers.default_binary() is None:
        yield ""
        return
    async with servers.RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


class Harnesses:
    """Makes as many places for stores as a test wants."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._made: list[SqliteHarness | RedisHarness] = []

    def make(self, kind: str) -> SqliteHarness | RedisHarness:
        harness: SqliteHarness | RedisHarness
        if kind == "sqlite":
            harness = SqliteHarness(self._folder / f"{len(self._made)}.db")
        elif kind == "redis":
            harness = RedisHarness(self._url)
        else:
            harness = RedisHarness(self._url, SECRET)
        self._made.append(harness)
        return harness

    async def close(self) -> None:
        for harness in self._made:
            if isinstance(harness, RedisHarness):
                await harness.close()
            else:
                for store in harness.opened:
                    await store.close()


@pytest.fixture
async def places(redis_url: str, tmp_path: Path) -> AsyncIterator[Harnesses]:
    harnesses = Harnesses(tmp_path, redis_url)
    yield harnesses
    await harnesses.close()


async def fill(store: OpenableStore) -> None:
    """Two sessions of one conversation, one of another with a struggle, and responses of both."""
    for n in (1, 2):
        checkpoint = make_checkpoint(f"cp{n}", n, created=NOW + n)
        archive = archive_of(b"%d" % n, b"shared", noise(300_000, n), b"")
        change = checkpoint_change(checkpoint, time=NOW + n, archive=archive)
        await store.commit(replace(change, events=(event(n), event(n + 10))))
    await store.commit(clips_change(make_clips(3, "cp2")))
    second = make_checkpoint("cp3", 3, session="s2")
    await store.commit(checkpoint_change(second, archive=archive_of(b"shared")))
    await store.commit(
        Change(OTHER, "s3", NOW + 5, struggle=Struggle(2, NOW + 60.5, digest(1), digest(2)))
    )
    await store.append_events([event(99, "s3"), event(100, "s3")])
    await store.touch(ANCHOR, "s1", NOW + 500)
    large = RecordedResponse(name("r5"), OTHER, b"", 0, (noise(700_000, 9), b"{}"), time=NOW)
    await record(
        store.responses,
        response("r1", "abc", names={"a": 0, "c": 2}),
        response("r2", "de", "r1", 3, names={"e": 1}, time=NOW + 1),
        response("gone", "f", "r2", 5, names={"f": 0}),
        response("r3", "g", "gone", 6),
        response("r4", "h", "r2", 2),
        large,
    )
    await store.responses.forget(name("gone"))


async def everything(store: OpenableStore) -> dict[str, object]:
    """All that the port tells."""
    archives: dict[str, list[Archived]] = {
        name: await store.archived(session, name)
        for session, name in (("s1", "cp1"), ("s1", "cp2"), ("s2", "cp3"))
    }
    return {
        "one": await look(store, [digest(n) for n in (1, 2, 3)]),
        "other": await look(store, [digest(1)], OTHER),
        "sessions": await store.sessions(),
        "archives": archives,
        "events": [await store.events(f"s{n}") for n in (1, 2, 3)],
        "responses": [await store.responses.load(name(f"r{n}")) for n in range(1, 6)],
        "items": await store.responses.load_items([name(id_) for id_ in "abcdef"]),
    }


@pytest.mark.parametrize(("one", "other"), PAIRS)
async def test_everything_arrives_and_a_repetition_changes_nothing(
    places: Harnesses, one: str, other: str
) -> None:
    if (one, other) != ("sqlite", "sqlite") and servers.default_binary() is None:
        pytest.skip(servers.NO_SERVER)
    source, there = await places.make(one).open(), places.make(other)
    target = await there.open()
    await fill(source)
    before = await everything(source)
    shown: list[tuple[Stage, int, int | None]] = []
    migration = Migration(source, target, lambda *line: shown.append(line))

    await migration.copy()
    await migration.verify()

    assert await everything(target) == before
    tally = migration.tally.to_json()
    assert [tally[name] for name in ("sessions", "checkpoints", "clip_decisions", "archived")] == [
        3, 3, 2, 9
    ]  # fmt: skip
    assert [tally[name] for name in ("events", "verified", "different", "out_of_reach")] == [
        6, 3, [], 0
    ]  # fmt: skip
    assert isinstance(tally["bytes"], int)
    assert tally["bytes"] > 600_000
    assert (tally["responses"], tally["different_responses"]) == (5, 0)
    stages: list[tuple[Stage, int, int | None]] = [("copying", n, 3) for n in range(4)]
    stages += [("responses", n, None) for n in range(1, 6)]
    assert shown == [*stages, *(("verifying", n, 3) for n in range(4))]
    blobs = await there.blobs(), await there.stored_items()
    again = Migration(source, target, quiet)
    await again.copy()
    await again.verify()
    assert await everything(target) == before
    assert (await there.blobs(), await there.stored_items()) == blobs
    assert again.tally.verified == 3
    assert await everything(source) == before

    # And back, where all of it is still there.
    back = Migration(target, source, quiet)
    await back.copy()
    await back.verify()
    assert await everything(source) == before
    assert back.tally.verified == 3


@needs_redis
async def test_what_was_done_meanwhile_comes_with_the_next_copy(places: Harnesses) -> None:
    source, target = await places.make("sqlite").open(), await places.make("redis").open()
    await fill(source)
    await Migration(source, target, quiet).copy()
    await source.commit(checkpoint_change(make_checkpoint("cp9", 9, created=NOW + 900)))
    await source.append_events([event(21), event(22)])
    await source.commit(Change(OTHER, "s4", NOW))
    migration = Migration(source, target, quiet)

    await migration.copy()
    await migration.verify()

    assert migration.tally.verified == 4
    found = await look(target, [digest(9)])
    assert found.checkpoints == {"cp9": make_checkpoint("cp9", 9, created=NOW + 900)}
    assert numbers(await target.events("s1")) == numbers(await source.events("s1"))
    assert len([s async for s in target.all_sessions()]) == 4


@needs_redis
async def test_sessions_that_come_while_copying_do_not_disturb(places: Harnesses) -> None:
    source, target = await places.make("redis").open(), await places.make("sqlite").open()
    for n in range(20):
        await source.commit(Change(b"anchor-%013d" % n, f"s{n}", NOW))
    numbers_seen: list[int] = []

    class Busy:
        """The target, while somebody goes on using the source."""

        def __getattr__(self, name: str) -> object:
            return getattr(target, name)

        async def commit(self, change: Change) -> None:
            await target.commit(change)
            n = len(numbers_seen)
            numbers_seen.append(n)
            await source.commit(Change(b"anchor+%013d" % n, f"new{n}", NOW))

    migration = Migration(source, Busy(), quiet)  # type: ignore[arg-type]
    await migration.copy()
    await migration.verify()
    there = {session async for session in target.all_sessions()}
    assert {f"s{n}" for n in range(20)} <= there
    assert migration.tally.verified == migration.tally.sessions == len(there)


@pytest.mark.parametrize("kind", KINDS)
async def test_what_cannot_be_read_is_counted(places: Harnesses, kind: str) -> None:
    if kind != "sqlite" and servers.default_binary() is None:
        pytest.skip(servers.NO_SERVER)
    here = places.make(kind)
    await fill(await here.open())
    await here.put_checkpoint("cp1", b"damaged")
    newer = state.pack(codec.dumps({"schema_version": SCHEMA_VERSION + 1}))
    await here.put_checkpoint("cp3", newer)
    source, target = await here.open(), await places.make("sqlite").open()
    migration = Migration(source, target, quiet)

    await migration.copy()
    await migration.verify()

    tally = migration.tally
    assert dict(tally.unreadable) == {Unreadable("damaged"): 1, Unreadable("newer"): 1}
    assert (tally.checkpoints, tally.verified, tally.left_behind) == (1, 3, 1)
    assert len(await target.archived("s1", "cp1")) == 4


@needs_redis
async def test_a_missing_encryption_key_is_named(places: Harnesses) -> None:
    here = places.make("encrypted")
    assert isinstance(here, RedisHarness)
    await fill(await here.open())
    without = RedisHarness(here.url)
    without.prefix = here.prefix
    target = await places.make("sqlite").open()
    try:
        migration = Migration(await without.open(), target, quiet)
        await migration.copy()
    finally:
        await without.close()
    unreadable = migration.tally.unreadable
    assert set(unreadable) == {Unreadable("locked", "k2")}
    # Of one response each item that is its own; what builds on it is left out with it.
    assert unreadable[Unreadable("locked", "k2")] == 3 + 1 + 1 + 9 + 3 + 4
    assert migration.tally.responses == 0
    assert migration.tally.left_behind == sum(unreadable.values())
    assert (await everything(target))["archives"] == {"cp1": [], "cp2": [], "cp3": []}


@needs_redis
async def test_a_target_that_holds_damaged_values_is_not_called_equal(places: Harnesses) -> None:
    source, there = await places.make("sqlite").open(), places.make("redis")
    await fill(source)
    target = await there.open()
    await Migration(source, target, quiet).copy()
    await there.put_checkpoint("cp2", b"damaged")
    migration = Migration(source, target, quiet)
    await migration.copy()
    await migration.verify()
    assert migration.tally.different == ["s1"]
    assert migration.tally.verified == 2


@needs_redis
async def test_old_checkpoints_that_nobody_finds_may_stay_behind(
    places: Harnesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("sqlite_store", "redis_store"):
        monkeypatch.setattr(f"proxy.sessions.{module}.MAX_CUTS", 4)
    source, target = await places.make("sqlite").open(), await places.make("redis").open()
    for n in range(7):
        await source.commit(checkpoint_change(make_checkpoint(f"cp{n}", n, created=NOW + n)))
    migration = Migration(source, target, quiet)
    await migration.copy()
    await migration.verify()
    assert (migration.tally.verified, migration.tally.out_of_reach) == (1, 3)
    chain = [digest(n) for n in range(7)]
    assert await look(target, chain) == await look(source, chain)


@needs_redis
async def test_more_events_than_redis_keeps_stay_in_order(
    places: Harnesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.sessions.redis_events.MAX_EVENTS", 10)
    monkeypatch.setattr("proxy.sessions.migration.EVENTS_AT_ONCE", 4)
    source, target = await places.make("sqlite").open(), await places.make("redis").open()
    await source.commit(Change(ANCHOR, "s1", NOW))
    await source.append_events([event(n, time=NOW + n) for n in range(25)])
    for _ in range(3):
        await Migration(source, target, quiet).copy()
        assert numbers(await target.events("s1")) == list(range(15, 25))
    await source.append_events([event(25)])
    await Migration(source, target, quiet).copy()
    assert numbers(await target.events("s1")) == list(range(16, 26))
    # Back: what the file dropped nothing of is there once.
    await Migration(target, source, quiet).copy()
    assert numbers(await source.events("s1")) == list(range(26))


async def test_without_a_target_everything_is_read_only(places: Harnesses) -> None:
    source = await places.make("sqlite").open()
    await fill(source)
    before = await everything(source)
    migration = Migration(source, None, quiet)
    await migration.copy()
    await migration.verify()
    assert (migration.tally.sessions, migration.tally.archived) == (3, 9)
    assert (migration.tally.verified, migration.tally.responses) == (0, 5)
    assert await carry_key(source, None) == "none"
    assert await source.known_secret(TENANCY) is None
    assert await everything(source) == before


async def test_a_store_that_fails_stops_the_copy(places: Harnesses) -> None:
    source, target = await places.make("sqlite").open(), await places.make("sqlite").open()
    await fill(source)
    commits: list[Change] = []

    class Failing:
        def __getattr__(self, name: str) -> object:
            return getattr(target, name)

        async def commit(self, change: Change) -> None:
            if len(commits) == 4:
                raise StoreUnavailable("full")
            commits.append(change)
            await target.commit(change)

    migration = Migration(source, Failing(), quiet)  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable):
        await migration.copy()
    assert (migration.tally.total, migration.tally.sessions) == (3, 0)
    again = Migration(source, target, quiet)
    await again.copy()
    assert await everything(target) == await everything(source)


@pytest.mark.parametrize(
    ("here", "there", "fate"),
    [
        (None, None, "none"),
        (None, b"t", "none"),
        (b"s", None, "copied"),
        (b"s", b"s", "kept"),
        (b"s", b"t", "other"),
    ],
)
async def test_what_becomes_of_the_tenancy_key(
    places: Harnesses, here: bytes | None, there: bytes | None, fate: str
) -> None:
    source, target = await places.make("sqlite").open(), await places.make("sqlite").open()
    for store, key in ((source, here), (target, there)):
        if key is not None:
            await store.adopt_secret(TENANCY, key * 32)
    assert await carry_key(source, target) == fate
    stands = there or here
    assert await target.known_secret(TENANCY) == (stands * 32 if stands else None)


@needs_redis
async def test_a_lost_listing_does_not_hide_sessions(places: Harnesses) -> None:
    here = places.make("redis")
    assert isinstance(here, RedisHarness)
    await fill(await here.open())
    await here.client.pipeline([("DEL", here.keys.used), ("DEL", here.keys.anchors)])
    source, target = await here.open(), await places.make("sqlite").open()
    migration = Migration(source, target, quiet)
    await migration.copy()
    await migration.verify()
    assert migration.tally.verified == 3
    assert {row.id for row in await target.sessions()} == {"s1", "s2", "s3"}


@needs_redis
async def test_keys_of_somebody_else_stop_nothing(places: Harnesses) -> None:
    here = places.make("redis")
    assert isinstance(here, RedisHarness)
    source, target = await here.open(), await places.make("sqlite").open()
    await fill(source)
    for key in (here.keys.entries(ANCHOR, "s1", "cp1"), here.keys.state(b"another-20-bytes----")):
        await here.client.call("SET", key, "of somebody else")
    migration = Migration(source, target, quiet)
    await migration.copy()
    await migration.verify()
    tally = migration.tally
    assert dict(tally.unreadable) == {Unreadable("damaged"): 1}
    assert (tally.sessions, tally.checkpoints, tally.archived, tally.verified) == (3, 3, 5, 3)
    assert await source.relist() == 3


# --- recorded responses ---


@needs_redis
@pytest.mark.parametrize(("one", "other"), [("sqlite", "encrypted"), ("redis", "sqlite")])
async def test_responses_that_come_meanwhile_come_with_the_next_copy(
    places: Harnesses, one: str, other: str
) -> None:
    here, there = places.make(one), places.make(other)
    source, target = await here.open(), await there.open()
    await fill(source)
    await Migration(source, target, quiet).copy()
    # Both are used meanwhile.
    await record(source.responses, response("r6", "x", "r3", 7), response("r1", "new"))
    await record(target.responses, response("r7", "y", "r2", 5))
    await target.responses.forget(name("r4"))
    migration = Migration(source, target, quiet)
    await migration.copy()
    await migration.verify()
    assert (migration.tally.responses, migration.tally.different_responses) == (6, 0)
    ids = ["r1", "r2", "r3", "r4", "r6", "r7"]
    assert await texts(target.responses, *ids) == [
        "new", "abcde", "abcdefg", "abh", "abcdefgx", "abcdey"
    ]  # fmt: skip
    assert await texts(source.responses, *ids[:-1]) == await texts(target.responses, *ids[:-1])


@pytest.mark.parametrize("stop", range(5))
async def test_an_interrupted_copy_of_responses_goes_on(places: Harnesses, stop: int) -> None:
    source, target = await places.make("sqlite").open(), await places.make("sqlite").open()
    await fill(source)
    saves: list[RecordedResponse] = []

    class Failing:
        async def save(self, response: RecordedResponse) -> bool:
            if len(saves) == stop:
                raise StoreUnavailable("full")
            saves.append(response)
            return await target.responses.save(response)

    class Target:
        responses = Failing()

        def __getattr__(self, name: str) -> object:
            return getattr(target, name)

    broken = Migration(source, Target(), quiet)  # type: ignore[arg-type]
    with pytest.raises(StoreUnavailable):
        await broken.copy()
    assert broken.tally.responses == stop
    again = Migration(source, target, quiet)
    await again.copy()
    await again.verify()
    assert (again.tally.responses, again.tally.different_responses) == (5, 0)
    assert await everything(target) == await everything(source)
    told = await exported(target.responses)
    assert len(told) == 5


@needs_redis
@pytest.mark.parametrize("kind", KINDS)
async def test_damaged_items_leave_out_what_builds_on_them(places: Harnesses, kind: str) -> None:
    here = places.make(kind)
    await fill(await here.open())
    await here.spoil_item(ANCHOR, items_of("e")[0], "flipped")
    source, target = await here.open(), await places.make("sqlite").open()
    migration = Migration(source, target, quiet)
    await migration.copy()
    await migration.verify()
    tally = migration.tally
    assert dict(tally.unreadable) == {Unreadable("damaged"): 1}
    assert (tally.responses, tally.different_responses) == (3, 0)
    assert await texts(target.responses, "r1", "r2", "r3", "r4") == ["abc", None, None, "abh"]


@needs_redis
async def test_responses_that_are_not_equal_are_told(places: Harnesses) -> None:
    source, there = await places.make("sqlite").open(), places.make("redis")
    assert isinstance(there, RedisHarness)
    await fill(source)
    target = await there.open()
    migration = Migration(source, target, quiet)
    await migration.copy()
    await there.spoil_item(ANCHOR, items_of("h")[0], "cut")
    await record(target.responses, response("r3", "xyz"))
    await migration.verify()
    assert (migration.tally.responses, migration.tally.different_responses) == (5, 2)
    # A place that cannot be used for them takes none.
    await there.client.call("SET", there.keys.responses(ANCHOR), "of somebody else")
    refused = Migration(source, target, quiet)
    await refused.copy()
    await refused.verify()
    assert (refused.tally.responses, refused.tally.different_responses) == (1, 4)


@needs_redis
async def test_what_builds_on_something_newer_in_the_target_is_taken(places: Harnesses) -> None:
    source, there = await places.make("sqlite").open(), places.make("redis")
    assert isinstance(there, RedisHarness)
    await record(
        source.responses,
        response("r1", "a"),
        response("r2", "b", "r1", 1),
        response("r3", "c", "r2", 2),
    )
    target = await there.open()
    await Migration(source, target, quiet).copy()
    await make_newer(there, "r1", NODE_VERSION + 1)
    migration = Migration(source, target, quiet)
    await migration.copy()
    await migration.verify()
    # The first stays as it is, the second cannot be taken again, the third is taken as it was.
    assert (migration.tally.responses, migration.tally.different_responses) == (1, 2)
