"""Recorded responses in Redis: round trips, lives of keys, damage, crashes and encryption."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from proxy.compaction.checkpoint import SCHEMA_VERSION
from proxy.errors import StoreUnavailable
from proxy.sessions import redis_response_scripts as scripts
from proxy.sessions.redis_client import RedisClient
from proxy.sessions.redis_cluster import Argument, Reply
from proxy.sessions.redis_keys import items
from proxy.sessions.redis_lua import READ, Script
from proxy.sessions.responses import RecordedResponse, ResponseStore
from proxy.sessions.sealing import Sealer
from proxy.sessions.state import Change, Unreadable
from tests import redis_servers as servers
from tests.contract.response_store_contract import (
    chain,
    exported,
    items_of,
    name,
    record,
    response,
    texts,
)
from tests.contract.session_store_contract import ANCHOR, DAY, NOW, OTHER, noise
from tests.contract.test_redis_store import PLAIN, SECRET, RedisHarness

pytestmark = pytest.mark.skipif(servers.default_binary() is None, reason=servers.NO_SERVER)

DAY_MS = 86_400_000
LIFE = 2 * DAY_MS
"""A day of retention and one of slack."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[servers.RedisServer]:
    async with servers.RedisServer(tmp_path_factory.mktemp("redis")) as started:
        yield started


@asynccontextmanager
async def place(url: str, sealer: Sealer = PLAIN) -> AsyncIterator[RedisHarness]:
    harness = RedisHarness(url, sealer)
    try:
        yield harness
    finally:
        await harness.close()


@pytest.fixture
async def harness(server: servers.RedisServer) -> AsyncIterator[RedisHarness]:
    async with place(server.url) as harness:
        yield harness


async def keys_of(harness: RedisHarness) -> set[str]:
    return {key.decode() async for key in harness.client.keys(f"{harness.prefix}:*")}


# --- round trips and sizes ---


async def test_a_long_conversation_is_loaded_in_few_round_trips(
    server: servers.RedisServer, harness: RedisHarness
) -> None:
    store = (await harness.open()).responses
    whole = await chain(store, 2000)
    assert await store.load(name("r0")) is not None
    async with server.monitor() as lines:
        loaded = await store.load(name("r1999"))
        await lines.settle()
    assert loaded is not None
    assert loaded.items == whole
    calls = [line.name for line in lines if not line.is_lua]
    # The pointer, the walk from base to base on the server, and 4,000 items by the thousand.
    assert calls == ["GETEX", "EVALSHA", *["HMGET"] * 4]


async def test_a_response_is_recorded_in_three_round_trips(
    server: servers.RedisServer, harness: RedisHarness
) -> None:
    store = (await harness.open()).responses
    await record(store, response("warm", "x", anchor=OTHER))
    async with server.monitor() as lines:
        await record(store, response("r1", "abcdefgh", names={"a": 0, "h": 7}))
        await lines.settle()
    calls = [line.name for line in lines if not line.is_lua]
    assert calls == ["EVALSHA", "EVALSHA", "SET", "SET", "ZADD"]


async def test_no_command_is_large(harness: RedisHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    store = (await harness.open()).responses
    raws = (noise(1_000_000, 1), *(noise(2_000, n) for n in range(2, 400)))
    one = RecordedResponse(name("r1"), ANCHOR, b"", 0, raws, time=NOW)
    run, sent, read = RedisClient._execute, list[int](), list[int]()

    async def execute(client: RedisClient, key: str, words: tuple[Argument, ...]) -> Reply:
        reply = await run(client, key, words)
        sent.append(sum(len(word) for word in words if isinstance(word, bytes)))
        read.append(sum(len(part) for part in items(reply) if isinstance(part, bytes)))
        return reply

    monkeypatch.setattr(RedisClient, "_execute", execute)
    await record(store, one)
    assert await store.load(one.key) == one
    assert (sum(sent) > 1_500_000, max(sent) < 300_000) == (True, True)
    assert (sum(read) > 1_500_000, max(read) < 1_100_000) == (True, True)
    assert await harness.stored_items() == 4 + 398


# --- lives of keys ---


async def lives(harness: RedisHarness) -> dict[str, int]:
    found = {}
    for key in await keys_of(harness):
        left = await harness.client.call("PTTL", key)
        assert isinstance(left, int)
        found[key] = left
    return found


async def test_everything_has_an_end_that_use_puts_off(harness: RedisHarness) -> None:
    store = (await harness.open()).responses
    await record(store, response("r1", "ab", names={"a": 0}))
    hash_, pointer = harness.keys.responses(ANCHOR), harness.keys.response(name("r1"))
    named = harness.keys.item(name("a"))
    assert await keys_of(harness) == {hash_, pointer, named, harness.keys.recorded}
    found = await lives(harness)
    assert found.pop(harness.keys.recorded) == -1
    assert all(LIFE - 60_000 < left <= LIFE for left in found.values())

    async def shorten() -> None:
        for key in (hash_, pointer, named):
            await harness.client.call("PEXPIRE", key, DAY_MS)

    await shorten()
    assert await store.load(name("r1")) is not None
    assert await store.load_items([name("a")]) != {}
    found = await lives(harness)
    assert (found[hash_] <= DAY_MS, found[pointer] > DAY_MS, found[named] > DAY_MS) == (
        True, True, True
    )  # fmt: skip
    await shorten()
    await record(store, response("r2", "c", "r1", 2))
    found = await lives(harness)
    assert (found[hash_] > DAY_MS, found[pointer] <= DAY_MS) == (True, True)


async def test_what_points_nowhere_is_not_known(harness: RedisHarness) -> None:
    store = (await harness.open()).responses
    await record(store, response("r1", "ab", names={"a": 0}), response("r2", "c", "r1", 2))
    await harness.client.call("UNLINK", harness.keys.response(name("r1")))
    assert await texts(store, "r1", "r2") == [None, "abc"]
    assert await store.forget(name("r1")) is False
    # It is there all the same, for those who build on it.
    await record(store, response("r3", "d", "r1", 1))
    assert await texts(store, "r3") == ["ad"]
    await harness.client.call("UNLINK", harness.keys.responses(ANCHOR))
    assert await texts(store, "r1", "r2", "r3") == [None, None, None]
    assert await store.load_items([name("a")]) == {}
    assert await store.forget(name("r2")) is False
    assert await store.save(response("r4", "d", "r2", 1)) is False
    await record(store, response("r4", "d"))
    assert await texts(store, "r2", "r4") == [None, "d"]


async def test_pointers_go_with_what_they_point_to(harness: RedisHarness) -> None:
    store = (await harness.open()).responses
    await record(
        store,
        response("r1", "ab", names={"a": 0, "b": 1}),
        response("r2", "c", "r1", 1, names={"c": 0}),
    )
    before = await keys_of(harness)
    await store.forget(name("r1"))
    gone = {harness.keys.response(name("r1")), harness.keys.item(name("b"))}
    assert before - await keys_of(harness) == gone
    await store.forget(name("r2"))
    assert await keys_of(harness) == {harness.keys.responses(ANCHOR), harness.keys.recorded}
    left = await harness.client.call("HKEYS", harness.keys.responses(ANCHOR))
    assert sorted(items(left)) == [b"c", b"n", b"t"]  # type: ignore[type-var]


async def test_a_listing_that_is_wrong_expires_nothing(harness: RedisHarness) -> None:
    store = (await harness.open()).responses
    await record(store, response("r1", "ab"), response("r2", "c", anchor=OTHER))
    await harness.client.call("ZADD", harness.keys.recorded, repr(NOW - 9 * DAY), ANCHOR)
    await harness.client.call("ZREM", harness.keys.recorded, OTHER)
    await harness.client.call("ZADD", harness.keys.recorded, repr(NOW - DAY), b"nothing there")
    assert await store.expire(NOW + 10) == 0
    assert await texts(store, "r1", "r2") == ["ab", "c"]
    assert await harness.client.call("ZRANGE", harness.keys.recorded, 0, -1) == [ANCHOR]
    assert await store.expire(NOW + DAY + 10) == 1
    # What is not listed goes with its key.
    assert await texts(store, "r1", "r2") == [None, "c"]


async def test_more_anchors_expire_than_one_command_tells(
    harness: RedisHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.sessions.redis_responses.BATCH", 3)
    store = (await harness.open()).responses
    for n in range(8):
        one = response(f"r{n}", "ab", anchor=b"anchor-%013d" % n, names={f"{n}": 0})
        await record(store, one)
    assert len(await store.load_items([name(f"{n}") for n in range(8)])) == 8
    assert len(await exported(store)) == 8
    assert await store.expire(NOW + DAY + 10) == 8
    assert await harness.stored_items() == 0


# --- what is not as we wrote it ---

_NEWER = Script.of(
    READ
    + """
local field = 'r:' .. redis.call('HGET', KEYS[1], 'k:' .. ARGV[1])
local r = unpacked(redis.call('HGET', KEYS[1], field))
r[1], r[#r + 1] = tonumber(ARGV[2]), {'invented later'}
redis.call('HSET', KEYS[1], field, cmsgpack.pack(r))
return redis.call('HGET', KEYS[1], field)
"""
)


async def make_newer(harness: RedisHarness, id_: str, version: int) -> Reply:
    """Write the node of a response as another version would."""
    keys = [harness.keys.responses(ANCHOR)]
    return await harness.client.run(_NEWER, keys, [name(id_), version])


async def node(harness: RedisHarness, number: int) -> Reply:
    return await harness.client.call("HGET", harness.keys.responses(ANCHOR), f"r:{number}")


async def tree(harness: RedisHarness) -> None:
    store = (await harness.open()).responses
    await record(
        store,
        response("r1", "ab", names={"a": 0}),
        response("r2", "c", "r1", 2),
        response("r3", "d", "r2", 3),
        response("r4", "e"),
    )


async def test_a_newer_response_is_absent_and_never_overwritten(harness: RedisHarness) -> None:
    await tree(harness)
    newer = await make_newer(harness, "r2", scripts.NODE_VERSION + 1)
    store = (await harness.open()).responses
    assert await texts(store, "r1", "r2", "r3", "r4") == ["ab", None, None, "e"]
    assert await store.save(response("r2", "x")) is False
    assert await store.save(response("r5", "x", "r2", 1)) is False
    assert await store.forget(name("r2")) is False
    assert await store.forget(name("r3")) is True
    assert await node(harness, 2) == newer
    notes: list[Unreadable] = []
    assert [one.key for one in await exported(store, notes)] == [name("r1"), name("r4")]
    assert notes == [Unreadable("newer")]
    # The control: the same tampering without a newer version is read.
    await make_newer(harness, "r2", scripts.NODE_VERSION)
    assert await texts(store, "r2") == ["abc"]


@pytest.mark.parametrize("how", ["empty", "noise", "list", "cut", "gone"])
async def test_a_damaged_response_is_absent_and_makes_way(harness: RedisHarness, how: str) -> None:
    await tree(harness)
    key, stored = harness.keys.responses(ANCHOR), await node(harness, 2)
    assert isinstance(stored, bytes)
    damaged = {"empty": b"", "noise": b"\xc1\x01", "list": b"\x91\x01", "cut": stored[:-9]}
    if how == "gone":
        await harness.client.call("HDEL", key, "r:2")
    else:
        await harness.client.call("HSET", key, "r:2", damaged[how])
    store = (await harness.open()).responses
    assert await texts(store, "r1", "r2", "r3", "r4") == ["ab", None, None, "e"]
    assert await store.save(response("r5", "x", "r2", 1)) is False
    assert await store.forget(name("r2")) is False
    notes: list[Unreadable] = []
    assert [one.key for one in await exported(store, notes)] == [name("r1"), name("r4")]
    assert notes == [Unreadable("damaged")] * (how != "gone")
    await record(store, response("r2", "xy"), response("r5", "z", "r2", 1))
    assert await texts(store, "r2", "r3", "r5") == ["xy", None, "xz"]


@pytest.mark.parametrize("field", ["n", "c", "t", "d:1", "m:1", "k:"])
@pytest.mark.parametrize("value", [None, b"", b"\xff\x00", b"-7", b"1e400"])
async def test_damage_to_what_counts_is_never_fatal(
    harness: RedisHarness, field: str, value: bytes | None
) -> None:
    await tree(harness)
    key, name_ = harness.keys.responses(ANCHOR), field.encode()
    if field == "k:":
        name_ += name("r4")
    if value is None:
        await harness.client.call("HDEL", key, name_)
    else:
        await harness.client.call("HSET", key, name_, value)
    store = await harness.open()
    await record(store.responses, response("r5", "xy", "r3", 4), response("r4", "z"))
    assert await texts(store.responses, "r3", "r4", "r5") == ["abcd", "z", "abcdxy"]
    await store.responses.forget(name("r5"))
    assert {name("r3"), name("r4")} <= {one.key for one in await exported(store.responses)}
    await store.expire(NOW + 3 * DAY)
    assert await exported(store.responses) == []


async def test_keys_of_somebody_else_are_never_fatal(harness: RedisHarness) -> None:
    await tree(harness)
    store = await harness.open()
    await store.commit(Change(ANCHOR, "s1", NOW))
    await harness.client.call("SET", harness.keys.responses(ANCHOR), "of somebody else")
    assert await texts(store.responses, "r1") == [None]
    assert await store.responses.load_items([name("a")]) == {}
    assert await store.responses.save(response("r5", "x")) is False
    large = RecordedResponse(name("r6"), ANCHOR, b"", 0, (noise(900_000, 1),), time=NOW)
    assert await store.responses.save(large) is False
    assert await store.responses.forget(name("r1")) is False
    notes: list[Unreadable] = []
    assert await exported(store.responses, notes) == []
    assert notes == [Unreadable("damaged")]
    assert await store.responses.expire(NOW + 3 * DAY) == 0
    assert await store.delete_session("s1") is True
    await record(store.responses, response("r5", "x"))


async def test_pointers_of_somebody_else_are_never_fatal(harness: RedisHarness) -> None:
    await tree(harness)
    store = (await harness.open()).responses
    for key in (harness.keys.response(name("r1")), harness.keys.item(name("a"))):
        for command in (("UNLINK", key), ("RPUSH", key, "x")):
            await harness.client.call(*command)
    assert await texts(store, "r1", "r2") == [None, "abc"]
    assert await store.load_items([name("a")]) == {}
    assert await store.forget(name("r1")) is False
    await record(store, response("r1", "ab", names={"a": 0}))
    assert await texts(store, "r1") == ["ab"]
    for garbage in (b"", b"\xff", b"\x14" + ANCHOR, b"\x14" + ANCHOR + b"short"):
        await harness.client.call("SET", harness.keys.item(name("a")), garbage)
        await harness.client.call("SET", harness.keys.response(name("r4")), garbage)
        assert await store.load_items([name("a")]) == {}
        assert await texts(store, "r4") == [None]
    assert await store.load_items([name("a"), name("b")]) == {}


async def test_newer_and_locked_items_are_absent_and_never_overwritten(
    server: servers.RedisServer,
) -> None:
    async with place(server.url, SECRET) as harness:
        await tree(harness)
        key = harness.keys.responses(ANCHOR)
        field = b"b:" + SECRET.address(items_of("a")[0])
        newer = bytes((SCHEMA_VERSION + 1, 0)) + b"invented later"
        await harness.client.call("HSET", key, field, newer)
        store = (await harness.open()).responses
        assert await texts(store, "r1", "r4") == [None, "e"]
        notes: list[Unreadable] = []
        assert [one.key for one in await exported(store, notes)] == [name("r4")]
        assert notes == [Unreadable("newer")]
        await record(store, response("r5", "a"))
        assert await harness.client.call("HGET", key, field) == newer
        assert await texts(store, "r5") == [None]

        # With the first key only addresses are the same, but what another key sealed is locked.
        locked = Sealer([("k9", b"9" * 32)]).seal(b"\x28\xb5\x2f\xfd", b"")
        await harness.client.call("HSET", key, field, locked)
        notes.clear()
        await record(store, response("r5", "a"))
        assert await harness.client.call("HGET", key, field) == locked
        await exported(store, notes)
        assert set(notes) == {Unreadable("locked", "k9")}

        without = RedisHarness(server.url)
        without.prefix, without.keys = harness.prefix, harness.keys
        blind = (await without.open()).responses
        assert await texts(blind, "r4") == [None]
        # Without its key an item has another address, so it is no loss to record it.
        await record(blind, response("r6", "e"))
        await without.close()
        assert await texts(store, "r4", "r6") == ["e", "e"]


async def test_an_encrypted_item_cannot_be_put_elsewhere(server: servers.RedisServer) -> None:
    async with place(server.url, SECRET) as harness:
        await tree(harness)
        key = harness.keys.responses(ANCHOR)
        one, other = (b"b:" + SECRET.address(items_of(letter)[0]) for letter in "ae")
        moved = await harness.client.call("HGET", key, one)
        assert isinstance(moved, bytes)
        await harness.client.call("HSET", key, other, moved)
        assert await texts((await harness.open()).responses, "r1", "r4") == ["ab", None]


async def test_nothing_can_be_read_at_rest(tmp_path: Path) -> None:
    """Not in the file that Redis writes, however it compresses: no text, no digest of one."""
    secret = b'"an axolotl"'
    large = b" ".join(b"marmalade-%d" % n for n in range(60_000))
    found = {}
    for sealer in (PLAIN, SECRET):
        async with (
            servers.RedisServer(tmp_path / str(sealer is SECRET)) as server,
            place(server.url, sealer) as harness,
        ):
            await server.command("CONFIG", "SET", "rdbcompression", "no")
            one = RecordedResponse(
                name("r1"), ANCHOR, b"", 0, (secret, large), ((name("i"), 0),), NOW
            )
            store = (await harness.open()).responses
            await record(store, one)
            assert await store.load(one.key) == replace(one, names=())
            await server.command("SAVE")
            dump = (server.folder / "dump.rdb").read_bytes()
            digest = hashlib.sha256(secret).digest()
            found[sealer] = [word in dump for word in (b"axolotl", digest, b"marmalade-")]
    # The control, where only zstd hides something.
    assert found == {PLAIN: [True, True, False], SECRET: [False, False, False]}


# --- crashes and concurrency ---


class Interrupted:
    """Does something in the middle: before a script is run."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, script: Script, act: Callable[[], object]
    ) -> None:
        run = RedisClient.run

        async def interrupted(
            client: RedisClient,
            one: Script,
            keys: Sequence[str],
            arguments: Sequence[Argument] = (),
        ) -> Reply:
            if one is script:
                done = act()
                if asyncio.iscoroutine(done):
                    await done
            return await run(client, one, keys, arguments)

        monkeypatch.setattr(RedisClient, "run", interrupted)


LARGE = RecordedResponse(
    name("large"), ANCHOR, b"", 0, (noise(600_000, 1), b"small"), ((name("i"), 1),), NOW
)


async def test_what_a_crash_leaves_is_not_named_and_has_an_end(
    harness: RedisHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = (await harness.open()).responses

    def crash() -> None:
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patch:
        Interrupted(patch, scripts.SAVE, crash)
        with pytest.raises(StoreUnavailable):
            await store.save(LARGE)
    fields = items(await harness.client.call("HKEYS", harness.keys.responses(ANCHOR)))
    assert {bytes(field)[:2] for field in fields if isinstance(field, bytes)} == {b"b:"}
    assert await lives(harness) == {harness.keys.responses(ANCHOR): pytest.approx(LIFE, abs=60_000)}
    assert await store.load(LARGE.key) is None
    assert await exported(store) == []
    with monkeypatch.context() as patch:
        Interrupted(patch, scripts.POINT, crash)
        with pytest.raises(StoreUnavailable):
            await store.save(LARGE)
    # Whole, but nothing leads there yet.
    assert await store.load(LARGE.key) is None
    assert await store.load_items([name("i")]) == {}
    await record(store, LARGE)
    assert await store.load(LARGE.key) == replace(LARGE, names=())
    assert await harness.stored_items() == 4


async def test_items_that_vanish_while_a_response_is_stored_are_sent_again(
    harness: RedisHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody forgets the only response with an item that another process is about to name."""
    store, other = (await harness.open()).responses, (await harness.open()).responses
    await record(store, replace(LARGE, key=name("before")))
    times: list[bool] = []

    async def forget() -> None:
        if not times:
            times.append(True)
            times.append(await other.forget(name("before")))

    with monkeypatch.context() as patch:
        Interrupted(patch, scripts.SAVE, forget)
        await record(store, LARGE)
    assert times == [True, True]
    assert await other.load(LARGE.key) == replace(LARGE, names=())
    assert await harness.stored_items() == 4

    async def flush() -> None:
        await harness.client.call("UNLINK", harness.keys.responses(ANCHOR))

    Interrupted(monkeypatch, scripts.SAVE, flush)
    with pytest.raises(StoreUnavailable, match="vanish"):
        await store.save(LARGE)


async def test_a_server_that_is_full_stores_nothing_half(tmp_path: Path) -> None:
    async with servers.RedisServer(tmp_path) as server, place(server.url) as harness:
        store = (await harness.open()).responses
        await record(store, response("r1", "ab"))
        await server.command("CONFIG", "SET", "maxmemory", "100kb")
        for one in (LARGE, response("r2", "c", "r1", 1)):
            with pytest.raises(StoreUnavailable, match="out_of_memory"):
                await store.save(one)
        await server.command("CONFIG", "SET", "maxmemory", "0")
        assert await texts(store, "r1", "r2") == ["ab", None]
        assert [one.key for one in await exported(store)] == [name("r1")]
        await record(store, LARGE, response("r2", "c", "r1", 1))
        assert await texts(store, "r2") == ["ac"]


async def test_a_killed_server_has_each_response_whole_or_not_at_all(tmp_path: Path) -> None:
    args = ["--appendonly", "yes", "--appendfsync", "always"]
    total = 0
    async with servers.RedisServer(tmp_path, args=args) as server, place(server.url) as harness:
        for round_number in range(3):
            store = (await harness.open()).responses
            said: list[int] = []
            task = asyncio.get_running_loop().create_task(_write(store, total, said))
            enough = 10 + 7 * round_number
            await servers.wait_until(partial(_has, said, enough))
            await server.kill()
            with suppress(StoreUnavailable):
                await task
            await server.start()
            store = (await harness.open()).responses
            told = await exported(store)
            assert told == [_numbered(n) for n in range(len(told))]
            assert len(told) > said[-1]
            whole = await store.load(name(f"r{said[-1]}"))
            assert whole is not None
            assert whole.items == tuple(raw for one in told[: said[-1] + 1] for raw in one.items)
            total = len(told)


async def _write(store: ResponseStore, start: int, said: list[int]) -> None:
    for n in range(start, start + 10_000):
        await record(store, _numbered(n))
        said.append(n)


def _has(said: list[int], number: int) -> bool:
    return len(said) >= number


def _numbered(n: int) -> RecordedResponse:
    own = (noise(3_000, n), b"%d" % n)
    base = name(f"r{n - 1}") if n else b""
    return RecordedResponse(name(f"r{n}"), ANCHOR, base, 2 * n, own, ((name(f"i{n}"), 1),), NOW)
