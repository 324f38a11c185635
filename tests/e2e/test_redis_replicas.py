"""Several proxies on one Redis, each a process of its own: one memory, one summary for all."""

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import Json, JsonObject, as_text, dumps
from proxy.sessions import redis_scripts as scripts
from proxy.sessions.redis_lua import Script
from tests import builders as b
from tests import redis_servers as servers
from tests.e2e import checks
from tests.e2e.checks import Agent, Exchange
from tests.e2e.running import Running, Served, command
from tests.redis_servers import Monitor, MonitorLine, RedisServer
from tests.upstream import Reply, ScriptedUpstream
from tests.upstream_rules import plausible_checkpoint

pytestmark = pytest.mark.skipif(servers.default_binary() is None, reason=servers.NO_SERVER)

WINDOW = 8192
LONG = b.tool_session(16, result_chars=2000)
SUMMARY = plausible_checkpoint(LONG)
PATIENT = {"FOLDGATE_STORE__TIMEOUT_MS": "3000"}
"""A test machine that is busy must not look like a store that is down."""

TAKEOVER_SECONDS = 15.0
LEASE_SECONDS = 10.0


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with RedisServer(tmp_path / "redis") as server:
        yield server


def replica(
    up: ScriptedUpstream,
    folder: Path,
    url: str,
    name: str,
    env: Mapping[str, str] | None = None,
) -> Served:
    """A proxy with a home of its own; its connections to Redis bear its name."""
    home = folder / name
    home.mkdir()
    args = ["--store", f"{url}?client_name={name}"]
    return Served(up.base_url, home, args=args, env={**PATIENT, **(env or {})})


@asynccontextmanager
async def fleet(
    up: ScriptedUpstream,
    folder: Path,
    url: str,
    count: int = 2,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[list[Served]]:
    """So many proxies named a, b, c ... on one Redis."""
    found = [replica(up, folder, url, name, env) for name in "abcdef"[:count]]
    async with AsyncExitStack() as stack:
        async with asyncio.TaskGroup() as group:
            for one in found:
                group.create_task(stack.enter_async_context(one))
        yield found


def runs(line: MonitorLine, script: Script) -> bool:
    """Whether a client ran this script."""
    named = (script.sha.encode(), script.text.encode())
    return line.name in {"EVALSHA", "EVAL"} and line.words[1] in named


async def names(redis: RedisServer) -> dict[str, str]:
    """The names of the connections, by address."""
    listed = await redis.command("CLIENT", "LIST")
    assert isinstance(listed, bytes)
    return dict(re.findall(r"\baddr=(\S+) .*?\bname=(\S*)", listed.decode()))


async def contenders(redis: RedisServer, lines: Monitor) -> set[str]:
    """The proxies that asked for a lease."""
    known = await names(redis)
    return {known[line.client] for line in lines if runs(line, scripts.ACQUIRE)}


async def contended(redis: RedisServer, lines: Monitor, *wanted: str) -> None:
    """Return once all these proxies want the same compaction."""

    async def all_ask() -> bool:
        return await contenders(redis, lines) == set(wanted)

    await servers.wait_until(all_ask, what=f"{wanted} ask for the lease")


def grants(line: MonitorLine) -> bool:
    """Whether a script wrote down who has a lease."""
    return line.is_lua and line.name == "HSET" and line.words[2] == b"l"


def renewals(lines: Monitor) -> int:
    """How often a lease was kept; giving one back looks the same, but for 0 milliseconds."""
    return sum(runs(line, scripts.MOVE_LEASE) and line.words[6] != b"0" for line in lines)


async def checkpoints(redis: RedisServer) -> list[str]:
    """The ids of all stored checkpoints."""
    keys = await redis.command("KEYS", "foldgate:{*}:state")
    assert isinstance(keys, list)
    found: list[str] = []
    for key in keys:
        fields = await redis.command("HKEYS", key)
        assert isinstance(fields, list)
        found += [f.decode()[2:] for f in fields if f.startswith(b"c:")]
    return found


def start(
    agent: Agent, messages: Sequence[JsonObject] = LONG
) -> "asyncio.Task[Exchange | aiohttp.ClientError]":
    async def run() -> Exchange | aiohttp.ClientError:
        try:
            return await agent.say(messages)
        except aiohttp.ClientError as error:
            return error

    return asyncio.get_running_loop().create_task(run())


async def answers(*tasks: "asyncio.Task[Exchange | aiohttp.ClientError]") -> list[Exchange]:
    found = await asyncio.gather(*tasks)
    exchanges = [e for e in found if isinstance(e, Exchange)]
    assert len(exchanges) == len(tasks), found
    return exchanges


async def leave(task: "asyncio.Task[Exchange | aiohttp.ClientError]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def assert_one_result(exchanges: Sequence[Exchange], up: ScriptedUpstream) -> None:
    """All were served with the same bytes in the same session."""
    checks.assert_fine(exchanges, up)
    assert len({e.arrived for e in exchanges}) == 1
    assert all(checks.record_of(e) for e in exchanges)
    assert len({checks.record_of(e) for e in exchanges}) == 1


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("count", "copies"), [(2, 1), pytest.param(3, 4, marks=pytest.mark.slow)])
async def test_replicas_share_one_summary(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    redis: RedisServer,
    count: int,
    copies: int,
    stream: bool,
) -> None:
    """The summary is held back until every replica has asked for it."""
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    async with redis.monitor() as lines, fleet(up, tmp_path, redis.url, count) as proxies:
        agents = [Agent(client, proxy.url, up, stream=stream) for proxy in proxies]
        tasks = [start(agent) for _ in range(copies) for agent in agents]
        await contended(redis, lines, *"abc"[:count])
        gate.set()
        exchanges = await answers(*tasks)
        completed = [e for proxy in proxies for e in proxy.events.of_type("compaction_completed")]
        failed = [e for proxy in proxies for e in proxy.events.of_type("store_failed")]
    assert len(up.summaries) == 1
    if not stream:
        assert len({e.session for e in exchanges}) == 1
        assert sorted(e.marks[0] for e in exchanges).count("compacted") == copies
    assert_one_result(exchanges, up)
    assert len(completed) == 1
    assert failed == []
    assert len(await checkpoints(redis)) == 1


@pytest.mark.slow
async def test_a_lease_is_kept_while_the_summary_takes_its_time(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, redis: RedisServer
) -> None:
    """The summary comes after the first renewal only."""
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    async with redis.monitor() as lines, fleet(up, tmp_path, redis.url) as proxies:
        tasks = [start(Agent(client, proxy.url, up)) for proxy in proxies]
        await contended(redis, lines, "a", "b")
        await servers.wait_until(lambda: renewals(lines) >= 1, what="the lease is renewed")
        gate.set()
        exchanges = await answers(*tasks)
    assert len(up.summaries) == 1
    assert_one_result(exchanges, up)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_summary_that_takes_longer_than_a_lease(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    redis: RedisServer,
    stream: bool,
) -> None:
    checks.make_strict(up, WINDOW)
    up.summary_replies.append(Reply(text=SUMMARY, delay=LEASE_SECONDS * 1.3))
    async with redis.monitor() as lines, fleet(up, tmp_path, redis.url) as proxies:
        tasks = [start(Agent(client, proxy.url, up, stream=stream)) for proxy in proxies]
        await contended(redis, lines, "a", "b")
        exchanges = await answers(*tasks)
    assert renewals(lines) >= 4
    assert len(up.summaries) == 1
    assert_one_result(exchanges, up)


@pytest.mark.slow
async def test_requests_that_differ_behind_the_cut_share_a_summary(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, redis: RedisServer
) -> None:
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    turns = [*b.turn_session(8, 2, result_chars=1800), b.user("One."), b.assistant("Hm.")]
    async with redis.monitor() as lines, fleet(up, tmp_path, redis.url) as proxies:
        tasks = [
            start(Agent(client, proxy.url, up), [*turns, b.user(f"MARK-tail{n} and then?")])
            for n, proxy in enumerate(proxies)
        ]
        await contended(redis, lines, "a", "b")
        gate.set()
        exchanges = await answers(*tasks)
    checks.assert_fine(exchanges, up)
    assert len(up.summaries) == 1
    assert len({checks.record_of(e) for e in exchanges}) == 1
    for number, exchange in enumerate(exchanges):
        assert [n for n in range(2) if f"MARK-tail{n}" in exchange.text] == [number]


def reporting(factor: float) -> Callable[[], Reply]:
    """A reply whose usage report is larger than what a prompt of 4 characters a token has."""
    tokens = int(factor * len(b.texts(LONG[:8])) / 4)
    body = dumps(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1795000000,
            "model": "test-model",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": "ok"},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": tokens, "completion_tokens": 1, "total_tokens": tokens + 1},
        }
    )
    return lambda: Reply(raw_body=body)


@pytest.mark.slow
async def test_replicas_that_learned_different_ratios_share_a_summary(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, redis: RedisServer
) -> None:
    """One of them has seen usage reports, the other one has just been started."""
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    async with redis.monitor() as lines, fleet(up, tmp_path, redis.url) as proxies:
        learned = reporting(1.6)
        agents = [Agent(client, proxy.url, up) for proxy in proxies]
        for _ in range(4):
            up.replies.append(learned())
            await agents[0].say(LONG[:8])
        tasks = [start(agent) for agent in agents]
        await contended(redis, lines, "a", "b")
        gate.set()
        exchanges = await answers(*tasks)
    assert len(up.summaries) == 1
    assert_one_result(exchanges, up)


@pytest.mark.slow
async def test_the_holder_of_a_lease_is_killed(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, redis: RedisServer
) -> None:
    checks.make_strict(up, WINDOW)
    up.summary_replies.append(Reply(hang=True))
    async with redis.monitor() as lines, fleet(up, tmp_path, redis.url) as (first, second):
        dying = start(Agent(client, first.url, up))
        await up.wait_for(lambda: len(up.summaries) == 1)
        waiting = start(Agent(client, second.url, up))
        await contended(redis, lines, "a", "b")
        await first.kill()
        killed_at = now()
        (taken,) = await answers(waiting)
        seconds = now() - killed_at
        # Long enough for the lease to have been in the way at all.
        assert len(up.summaries) == 2
        assert isinstance(await dying, aiohttp.ClientError)
        async with replica(up, tmp_path, redis.url, "c") as third:
            later = await Agent(client, third.url, up).say(LONG)
    assert 1.0 < seconds < TAKEOVER_SECONDS
    assert taken.marks == ["compacted"]
    assert later.marks == ["reused"]
    assert len(up.main) == 2
    assert len(up.summaries) == 2
    assert_one_result([taken, later], up)
    assert len(await checkpoints(redis)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("finished", [True, False])
async def test_a_holder_that_slept_too_long_does_not_overwrite(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    redis: RedisServer,
    finished: bool,
) -> None:
    """It awakes after the other one has finished, or while that one is still at it."""
    checks.make_strict(up, WINDOW)
    gates = [asyncio.Event(), asyncio.Event()]
    for word, gate in zip(("slept", "awake"), gates, strict=True):
        text = SUMMARY.replace("The user asked", f"The {word} one says: the user asked")
        up.summary_replies.append(Reply(text=text, gate=gate))
    async with redis.monitor() as lines, fleet(up, tmp_path, redis.url) as (first, second):
        late = start(Agent(client, first.url, up))
        await up.wait_for(lambda: len(up.summaries) == 1)
        quick = start(Agent(client, second.url, up))
        await contended(redis, lines, "a", "b")
        first.signal(signal.SIGSTOP)
        await up.wait_for(lambda: len(up.summaries) == 2, TAKEOVER_SECONDS)
        if finished:
            gates[1].set()
            await up.wait_for(lambda: len(up.main) == 1)
        first.signal(signal.SIGCONT)
        gates[0].set()
        failed = await first.wait_event("compaction_failed")
        gates[1].set()
        exchanges = await answers(late, quick)
        again = [await Agent(client, proxy.url, up).say(LONG) for proxy in (first, second)]
    assert failed["reason"] == "taken_over"
    assert len(up.summaries) == 2
    assert_one_result([*exchanges, *again], up)
    assert "The awake one says" in exchanges[0].text
    assert [e.marks for e in (*exchanges, *again)] == [
        ["reused"],
        ["compacted"],
        ["reused"],
        ["reused"],
    ]
    assert len(await checkpoints(redis)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_gives_the_lease_to_the_next(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    redis: RedisServer,
    stream: bool,
) -> None:
    checks.make_strict(up, WINDOW)
    up.summary_replies.append(Reply(hang=True))
    async with redis.monitor() as lines, fleet(up, tmp_path, redis.url) as (first, second):
        leaving = start(Agent(client, first.url, up, stream=stream))
        await up.wait_for(lambda: len(up.summaries) == 1)
        waiting = start(Agent(client, second.url, up, stream=stream))
        await contended(redis, lines, "a", "b")
        await leave(leaving)
        left_at = now()
        exchanges = await answers(waiting)
        seconds = now() - left_at
        await up.wait_for(lambda: up.summaries[0].disconnected)
    assert seconds < 3.0
    assert exchanges[0].marks == ["compacted"]
    assert len(up.summaries) == 2
    assert len(up.main) == 1
    assert_one_result(exchanges, up)


@pytest.mark.slow
async def test_a_client_that_leaves_while_the_lease_is_on_its_way(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, redis: RedisServer
) -> None:
    """Redis has granted it, and the grant reaches the proxy after the client has gone."""
    checks.make_strict(up, WINDOW)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        relay = await enter(servers.StallingProxy(redis.port, delay=0.3))
        lines = await enter(redis.monitor())
        first = await enter(replica(up, tmp_path, relay.url, "a"))
        second = await enter(replica(up, tmp_path, redis.url, "b"))
        relay.mode = "slow"
        leaving = start(Agent(client, first.url, up))
        await servers.wait_until(lambda: any(map(grants, lines)), what="the lease is granted")
        await leave(leaving)
        left_at = now()
        (exchange,) = await answers(start(Agent(client, second.url, up)))
        seconds = now() - left_at
    assert_one_result([exchange], up)
    assert exchange.marks == ["compacted"]
    assert seconds < 3.0


def one_task() -> list[JsonObject]:
    return b.tool_session(26, result_chars=2000)


def many_turns() -> list[JsonObject]:
    return b.turn_session(12, 3, result_chars=1500)[:-1]


def with_clips() -> list[JsonObject]:
    """Results that are too large for what may stay."""
    messages = b.tool_session(14, result_chars=1200)
    for number in (5, 11, 19):
        messages[number]["content"] = b.prose(40_000, number, "MARK-huge")
    return messages


@pytest.mark.parametrize("session", [one_task, many_turns, with_clips])
async def test_a_session_that_goes_round(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    redis: RedisServer,
    session: Callable[[], list[JsonObject]],
) -> None:
    """Each request goes to the other replica, and all is as with one of them."""
    checks.make_strict(up, WINDOW)
    steps = list(checks.steps(session()))
    async with Running(up.base_url, tmp_path) as alone:
        single = Agent(client, alone.url, up)
        for step in steps:
            await single.say(step)
    wanted = len(up.summaries)
    async with fleet(up, tmp_path, redis.url) as proxies:
        agent = Agent(client, "", up)
        for number, step in enumerate(steps):
            agent.url = proxies[number % 2].url
            await agent.say(step)
        last = [await Agent(client, proxy.url, up).say(steps[-1]) for proxy in proxies]
        failed = [e for proxy in proxies for e in proxy.events.of_type("store_failed")]
    checks.assert_fine([*single.exchanges, *agent.exchanges, *last], up)
    checks.assert_in_every(b.TASK if session is not many_turns else "", agent.exchanges)
    assert failed == []
    assert len(up.summaries) == 2 * wanted
    assert wanted >= 1
    assert checks.compactions(agent.exchanges) == checks.compactions(single.exchanges)
    assert checks.rewrites(agent.exchanges) == checks.rewrites(single.exchanges)
    assert {e.arrived for e in last} == {agent.exchanges[-1].arrived}
    assert len({e.session for e in (*agent.exchanges, *last) if e.session}) == 1


@pytest.mark.slow
async def test_a_duplicate_at_the_other_replica_joins(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, redis: RedisServer
) -> None:
    """A retry in the middle of the session, while the first copy compacts."""
    checks.make_strict(up, WINDOW)
    steps = list(checks.steps(LONG))
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    async with redis.monitor() as lines, fleet(up, tmp_path, redis.url) as proxies:
        agents = [Agent(client, proxy.url, up) for proxy in proxies]
        for step in steps[:6]:
            for agent in agents:
                await agent.say(step)
        copy = start(agents[0])
        await up.wait_for(lambda: len(up.summaries) == 1)
        retry = start(agents[1])
        await contended(redis, lines, "a", "b")
        gate.set()
        exchanges = await answers(copy, retry)
    assert [e.marks for e in exchanges] == [["compacted"], ["reused"]]
    assert len(up.summaries) == 1
    assert len({e.session for e in exchanges}) == 1
    assert_one_result(exchanges, up)


KEY = {"FOLDGATE_TENANCY__KEY": "hex:" + "5a" * 32}
BY_CREDENTIAL = {"FOLDGATE_TENANCY__SOURCE": "credential"}
MACHINES: dict[str, Mapping[str, str]] = {
    "key kept in Redis": {},
    "tenants by credential": {**KEY, **BY_CREDENTIAL},
}


@pytest.mark.slow
@pytest.mark.parametrize("how", MACHINES)
async def test_another_machine_takes_over(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    redis: RedisServer,
    how: str,
) -> None:
    checks.make_strict(up, WINDOW)
    env = MACHINES[how]
    headers = {"Authorization": "Bearer one"}
    steps = list(checks.steps(one_task()))
    async with replica(up, tmp_path, redis.url, "old", env) as old:
        before = Agent(client, old.url, up, headers)
        for step in steps[:20]:
            await before.say(step)
        assert await old.terminate() == 0
    known = len(up.summaries)
    async with replica(up, tmp_path, redis.url, "new", env) as new:
        assert new.url != old.url
        after = Agent(client, new.url, up, headers)
        same = [await after.say(step) for step in steps[14:20]]
        assert len(up.summaries) == known
        for step in steps[20:]:
            await after.say(step)
        stranger = Agent(client, new.url, up, {"Authorization": "Bearer two"})
        other = await stranger.say(steps[19])
    assert known >= 1
    checks.assert_fine([*before.exchanges, *after.exchanges, other], up)
    assert [e.arrived for e in same] == [e.arrived for e in before.exchanges[14:20]]
    assert [e.session for e in same] == [e.session for e in before.exchanges[14:20]]
    checks.assert_stable([*before.exchanges, *after.exchanges[6:]])
    if "credential" in env.get("FOLDGATE_TENANCY__SOURCE", ""):
        assert other.session != same[-1].session
        assert checks.record_of(other) != checks.record_of(same[-1])
    else:
        assert other.arrived == same[-1].arrived


async def test_credentials_on_a_shared_store_need_a_key(
    up: ScriptedUpstream, tmp_path: Path, redis: RedisServer
) -> None:
    """Each replica with a key of its own would forget what the others know."""
    args = ("serve", "--port", "0", "--store", redis.url, "--upstream", up.base_url)
    everywhere = {"FOLDGATE_SERVER__HOST": "0.0.0.0"}  # where tenants are told apart by credential
    for finished in await asyncio.gather(
        command(*args, folder=tmp_path, env=BY_CREDENTIAL),
        command(*args, folder=tmp_path, env=everywhere),
    ):
        assert finished.code == 1
        assert "tenancy.key" in finished.stderr
        assert "FOLDGATE_TENANCY__KEY" in finished.stderr
        assert "Traceback" not in finished.stderr
    assert await redis.command("DBSIZE") == 0


async def test_replicas_of_different_keys_do_not_share(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, redis: RedisServer
) -> None:
    """The counterpart of all above: what joins them is the key and nothing else."""
    checks.make_strict(up, WINDOW)
    exchanges = []
    for byte in ("5a", "a5"):
        values: dict[str, Json] = {"store.url": redis.url, "store.timeout_ms": 3000}
        values["tenancy.key"] = f"hex:{byte * 32}"
        async with Running(up.base_url, tmp_path, **values) as proxy:
            exchanges.append(await Agent(client, proxy.url, up).say(LONG))
    checks.assert_fine(exchanges, up)
    assert [e.marks for e in exchanges] == [["compacted"], ["compacted"]]
    assert len(up.summaries) == 2
    assert len({as_text(e.session) for e in exchanges}) == 2
