"""What a check says of real stores, healthy and ill."""

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from proxy import codec
from proxy.codec import Json
from proxy.compaction.checkpoint import SCHEMA_VERSION
from proxy.errors import StateLocked
from proxy.sessions import state
from proxy.sessions.redis_check import RedisCheck
from proxy.sessions.sealing import Sealer
from proxy.sessions.sqlite_check import SqliteCheck
from proxy.sessions.store_check import Finding, reachable
from proxy.sessions.store_url import parse_store_url
from tests import redis_servers as servers
from tests.contract.response_store_contract import name, record, response
from tests.contract.session_store_contract import (
    ANCHOR,
    NOW,
    OTHER,
    checkpoint_change,
    clips_change,
    make_checkpoint,
    make_clips,
)
from tests.contract.test_redis_store import PLAIN, SECRET, RedisHarness
from tests.contract.test_sqlite_store import SqliteHarness

needs_redis = pytest.mark.skipif(servers.default_binary() is None, reason=servers.NO_SERVER)
HEALTHY = [
    "reachable", "server", "mode", "writable", "persistence", "memory", "contents", "values",
    "listing",
]  # fmt: skip


async def check(
    url: str,
    *,
    prefix: str = "foldgate",
    sealer: Sealer = PLAIN,
    timeout_ms: int = 1000,
    repair: Callable[[], Awaitable[int]] | None = None,
) -> dict[str, Finding]:
    """The findings by name; the last of several counts."""
    looking = RedisCheck(parse_store_url(url), prefix, sealer, timeout_ms, repair)
    try:
        found = {finding.name: finding async for finding in looking.findings()}
    finally:
        await looking.close()
    for finding in found.values():
        assert bool(finding.fix) == (finding.status != "ok"), finding
    return found


def statuses(found: dict[str, Finding]) -> dict[str, str]:
    return {name: finding.status for name, finding in found.items() if finding.status != "ok"}


@asynccontextmanager
async def filled(url: str, sealer: Sealer = PLAIN) -> AsyncIterator[RedisHarness]:
    harness = RedisHarness(url, sealer)
    try:
        store = await harness.open()
        await store.commit(checkpoint_change(make_checkpoint("cp1")))
        await store.commit(checkpoint_change(make_checkpoint("cp2", 2, session="s2")))
        await store.commit(
            checkpoint_change(make_checkpoint("cp3", session="s3"), anchor=OTHER, time=NOW + 1)
        )
        await store.commit(clips_change(make_clips(1)))
        await record(
            store.responses,
            response("r1", "a"),
            response("r2", "b", "r1", 1),
            response("r3", "c", anchor=OTHER),
        )
        yield harness
    finally:
        await harness.close()


Deployment = servers.RedisServer | servers.RedisCluster | servers.RedisSentinel


def deployment(kind: str, folder: Path, binary: Path) -> Deployment:
    match kind:
        case "single":
            return servers.RedisServer(folder, binary)
        case "cluster":
            return servers.RedisCluster(folder, binary, nodes=3)
        case _:
            return servers.RedisSentinel(folder, binary)


@pytest.mark.parametrize("binary", servers.binaries())
@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("single", "single server"),
        pytest.param("cluster", "cluster, 3 primary nodes", marks=pytest.mark.slow),
        ("sentinel", "sentinel, service mymaster"),
    ],
)
async def test_a_healthy_server_of_every_kind(
    tmp_path: Path, binary: str, kind: str, mode: str
) -> None:
    path = servers.binaries()[binary]
    async with deployment(kind, tmp_path, path) as server, filled(server.url) as harness:
        found = await check(server.url, prefix=harness.prefix)
        before = {key async for key in harness.client.keys("*")}
        await check(server.url, prefix=harness.prefix)
        assert {key async for key in harness.client.keys("*")} == before
    assert list(found) == HEALTHY
    # Nothing is persisted here.
    assert statuses(found) == {"persistence": "warn"}
    version = ".".join(map(str, servers.version(path)))
    assert found["server"].text == f"Redis {version}"
    assert found["mode"].text == mode
    assert found["contents"].text == ("3 sessions, 3 checkpoints, 1 clip set, 3 recorded responses")
    facts: dict[str, Json] = {"sessions": 3, "checkpoints": 3, "clip_sets": 1, "responses": 3}
    assert found["contents"].facts == facts


@needs_redis
@pytest.mark.parametrize(
    ("args", "status", "text"),
    [
        ((("appendonly", "yes"),), "ok", "append-only file"),
        ((("save", "60 1"),), "ok", "snapshots"),
        ((), "warn", "neither"),
    ],
)
async def test_persistence(
    tmp_path: Path, args: tuple[tuple[str, str], ...], status: str, text: str
) -> None:
    async with servers.RedisServer(tmp_path) as server:
        for name, value in args:
            await server.command("CONFIG", "SET", name, value)
        finding = (await check(server.url))["persistence"]
    assert finding.status == status, finding.text
    assert text in finding.text


@needs_redis
@pytest.mark.parametrize(
    ("policy", "limit", "status"),
    [
        ("noeviction", "100mb", "ok"),
        ("volatile-ttl", "100mb", "ok"),
        ("volatile-lru", "100mb", "warn"),
        ("volatile-lru", "0", "ok"),
        ("allkeys-lru", "100mb", "warn"),
        ("allkeys-lfu", "0", "warn"),
        ("noeviction", "100kb", "warn"),
    ],
)
async def test_memory(tmp_path: Path, policy: str, limit: str, status: str) -> None:
    async with servers.RedisServer(tmp_path) as server:
        await server.command("CONFIG", "SET", "maxmemory", limit)
        await server.command("CONFIG", "SET", "maxmemory-policy", policy)
        found = await check(server.url)
    assert found["memory"].status == status
    assert policy in found["memory"].text
    assert found["memory"].facts["policy"] == policy
    full = limit == "100kb"
    assert found["writable"].status == ("FAIL" if full else "ok")
    if full:
        assert "maxmemory" in found["writable"].fix


@needs_redis
async def test_a_replica(tmp_path: Path) -> None:
    async with servers.RedisSentinel(tmp_path) as group:
        found = await check(group.replica.url)
    assert found["writable"].status == "FAIL"
    assert "primary" in found["writable"].fix


@pytest.mark.slow
@needs_redis
async def test_a_url_of_the_wrong_mode(tmp_path: Path) -> None:
    async with servers.RedisSentinel(tmp_path / "s") as group:
        sentinel = await check(f"redis://{servers.HOST}:{group.sentinel.port}/0")
        cluster_url = group.master.url.replace("redis://", "redis+cluster://").removesuffix("/0")
        single = await check(cluster_url)
    async with servers.RedisCluster(tmp_path / "c", nodes=3) as cluster:
        node = await check(cluster.servers[0].url)
    assert (sentinel["mode"].status, list(sentinel)[-1]) == ("FAIL", "mode")
    assert "redis+sentinel://" in sentinel["mode"].fix
    assert (node["mode"].status, list(node)[-1]) == ("FAIL", "mode")
    assert "redis+cluster://" in node["mode"].fix
    assert statuses(single) == {"reachable": "FAIL"}
    assert "redis://" in single["reachable"].fix


@pytest.mark.slow
@needs_redis
async def test_a_cluster_that_lost_a_node(tmp_path: Path) -> None:
    async with servers.RedisCluster(tmp_path, nodes=3) as cluster:
        await check(cluster.url)
        await cluster.servers[2].kill()
        await servers.wait_until(
            lambda: _knows_of_failure(cluster.servers[0]), 30.0, "the others notice"
        )
        found = await check(cluster.url)
    failed = [finding for finding in found.values() if finding.status == "FAIL"]
    assert len(failed) == 1
    assert "nodes" in failed[0].fix


async def _knows_of_failure(server: servers.RedisServer) -> bool:
    info = await server.command("CLUSTER", "INFO")
    return isinstance(info, bytes) and b"cluster_state:fail" in info


@needs_redis
async def test_a_user_that_may_not_ask_is_no_failure(tmp_path: Path) -> None:
    async with servers.RedisServer(tmp_path) as server, filled(server.url) as harness:
        await server.command(
            "ACL", "SETUSER", "bob", "on", ">pw", f"~{harness.prefix}:*", "+@all", "-@dangerous",
            "-@admin",
        )  # fmt: skip
        found = await check(
            server.url.replace("redis://", "redis://bob:pw@"), prefix=harness.prefix
        )
    assert statuses(found) == {}
    for unknown in ("server", "persistence", "memory"):
        assert "unknown" in found[unknown].text
    assert found["contents"].facts["sessions"] == 3


@needs_redis
async def test_a_user_that_may_only_read(tmp_path: Path) -> None:
    async with servers.RedisServer(tmp_path) as server, filled(server.url) as harness:
        await server.command("ACL", "SETUSER", "bob", "on", ">pw", "~*", "+@read")
        found = await check(
            server.url.replace("redis://", "redis://bob:pw@"), prefix=harness.prefix
        )
    assert found["reachable"].status == "ok"
    assert found["writable"].status == "FAIL"
    assert "scripts" in found["writable"].fix


@pytest.mark.slow
@needs_redis
async def test_a_slow_server(tmp_path: Path) -> None:
    async with (
        servers.RedisServer(tmp_path) as server,
        servers.StallingProxy(server.port, delay=0.05) as relay,
    ):
        relay.mode = "slow"
        finding = (await check(relay.url, timeout_ms=60))["reachable"]
        enough = (await check(relay.url, timeout_ms=2000))["reachable"]
    assert (finding.status, enough.status) == ("warn", "ok")
    assert "store.timeout_ms" in finding.fix
    milliseconds = finding.facts["milliseconds"]
    assert isinstance(milliseconds, float)
    assert 50 <= milliseconds < 200


@needs_redis
@pytest.mark.parametrize("mode", ["hang", "cut", "refuse"])
async def test_a_server_that_does_not_answer(tmp_path: Path, mode: servers.Mode) -> None:
    async with (
        servers.RedisServer(tmp_path) as server,
        servers.StallingProxy(server.port) as relay,
    ):
        relay.mode = mode
        found = await check(relay.url)
    assert statuses(found) == {"reachable": "FAIL"}


@needs_redis
async def test_values_that_cannot_be_read(tmp_path: Path) -> None:
    async with servers.RedisServer(tmp_path) as server, filled(server.url, SECRET) as harness:
        await harness.put_checkpoint("cp1", b"damaged")
        newer = state.pack(codec.dumps({"schema_version": SCHEMA_VERSION + 1}))
        await harness.put_checkpoint("cp2", newer)
        looking = RedisCheck(parse_store_url(server.url), harness.prefix, SECRET, 1000)
        values = [f async for f in looking.findings() if f.name == "values"]
        await looking.close()
        without = await check(server.url, prefix=harness.prefix)
    assert [(f.status, f.text) for f in values] == [
        ("warn", "1 value damaged"),
        ("warn", "1 value of a newer version of Foldgate"),
    ]
    assert without["values"].facts == {
        "damaged": 1, "newer": 1, "locked": 2, "missing_keys": ["k2"],
    }  # fmt: skip


@needs_redis
async def test_an_incomplete_listing_is_told_and_repaired(tmp_path: Path) -> None:
    async with servers.RedisServer(tmp_path) as server, filled(server.url) as harness:
        await harness.client.call("ZREM", harness.keys.used, "s1")
        await harness.client.call("HDEL", harness.keys.anchors, "s2")
        found = await check(server.url, prefix=harness.prefix)
        store = await harness.open()
        repaired = await check(server.url, prefix=harness.prefix, repair=store.relist)
        after = await check(server.url, prefix=harness.prefix)
        assert {row.id for row in await store.sessions()} == {"s1", "s2", "s3"}
    assert found["listing"].status == "warn"
    assert found["listing"].facts == {"unlisted": 2}
    assert "--repair" in found["listing"].fix
    assert repaired["listing"].text == "made anew: 3 sessions"
    assert after["listing"].status == "ok"


@needs_redis
async def test_keys_of_somebody_else(tmp_path: Path) -> None:
    """A prefix that another program uses for something of another type."""
    async with servers.RedisServer(tmp_path) as server:
        await server.command("SET", f"foldgate:{{{ANCHOR.hex()}}}:state", "no hash")
        await server.command("SET", "foldgate:{nothex}:state", "x")
        await server.command("SET", f"foldgate:{{{ANCHOR.hex()}}}:responses", "no hash")
        await server.command("HSET", f"foldgate:{{{OTHER.hex()}}}:responses", "c", "many")
        await server.command("SET", "foldgate:{nothex}:responses", "x")
        found = await check(server.url)
    assert found["contents"].facts["sessions"] == 0
    assert found["contents"].facts["responses"] == 0
    assert found["values"].facts["damaged"] == 3


def test_a_missing_key_says_which() -> None:
    error = StateLocked("k7")
    assert (error.key, str(error)) == ("k7", "a stored value needs encryption key 'k7'")


def test_no_timeout_no_warning() -> None:
    assert reachable(9.0).status == "ok"


# --- SQLite ---


async def look(path: Path) -> dict[str, Finding]:
    return {finding.name: finding async for finding in SqliteCheck(path).findings()}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[SqliteHarness]:
    harness = SqliteHarness(tmp_path / "folder" / "sessions.db")
    store = await harness.open()
    await store.commit(checkpoint_change(make_checkpoint("cp1")))
    await store.commit(clips_change(make_clips(1)))
    await record(store.responses, response("r1", "ab"), response("r2", "c", "r1", 1))
    await store.responses.forget(name("r1"))
    yield harness
    for opened in harness.opened:
        await opened.close()


async def test_a_healthy_file_in_use(harness: SqliteHarness) -> None:
    found = await look(harness.path)
    assert statuses(found) == {}
    assert found["contents"].text == "1 session, 1 checkpoint, 1 clip set, 1 recorded response"
    again = await harness.open()
    assert await again.known_secret("probe") is None


async def test_a_healthy_file_of_the_format_before(harness: SqliteHarness) -> None:
    with closing(sqlite3.connect(harness.path)) as db:
        for table in ("responses", "response_items", "item_names"):
            db.execute(f"DROP TABLE {table}")
        db.execute("PRAGMA user_version = 2")
    found = await look(harness.path)
    assert statuses(found) == {"server": "warn"}
    assert found["contents"].facts["responses"] == 0


async def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    found = await look(tmp_path / "none.db")
    assert statuses(found) == {"reachable": "warn"}
    assert not (tmp_path / "none.db").exists()


async def test_a_file_that_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("hello, this is no database at all\n" * 100)
    found = await look(path)
    assert list(statuses(found).values()) == ["FAIL"]
    (tmp_path / "empty.db").touch()
    assert statuses(await look(tmp_path / "empty.db")) == {"server": "warn"}


async def test_another_database(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE other (x)")
        db.execute("PRAGMA user_version = 1")
    assert "FAIL" in statuses(await look(path)).values()


async def test_a_file_of_a_newer_version(harness: SqliteHarness) -> None:
    with closing(sqlite3.connect(harness.path)) as db:
        db.execute("PRAGMA user_version = 99")
    found = await look(harness.path)
    assert statuses(found) == {"server": "FAIL"}
    assert "format 99" in found["server"].text
    assert "newer foldgate" in found["server"].fix


async def test_a_locked_file(harness: SqliteHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.sessions.sqlite_check.BUSY_SECONDS", 0.1)
    with closing(sqlite3.connect(harness.path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        found = await look(harness.path)
    assert statuses(found) == {"writable": "FAIL"}
    assert "lock" in found["writable"].text


async def test_damaged_values_and_open_permissions(harness: SqliteHarness) -> None:
    await harness.put_checkpoint("cp1", b"damaged")
    harness.path.chmod(0o644)
    found = await look(harness.path)
    assert statuses(found) == {"access": "warn", "values": "warn"}
    assert found["values"].facts["damaged"] == 1
    assert "chmod 600" in found["access"].fix


async def test_a_damaged_file(harness: SqliteHarness) -> None:
    store = await harness.open()
    for n in range(200):
        await store.commit(checkpoint_change(make_checkpoint(f"more{n}", n)))
    for opened in harness.opened:
        await opened.close()
    harness.opened.clear()
    content = bytearray(harness.path.read_bytes())
    page = 4096
    for number in range(20, len(content) // page):
        content[number * page : number * page + 200] = b"\xff" * 200
    harness.path.write_bytes(content)
    assert "FAIL" in statuses(await look(harness.path)).values()
