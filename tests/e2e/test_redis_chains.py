"""Chains of responses at several proxies on one Redis, and while that Redis is away."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import Json, JsonObject, as_objects, loads
from tests import items as i
from tests import redis_servers as servers
from tests.e2e.chained import Chained, Turned
from tests.e2e.running import Running
from tests.redis_servers import RedisServer
from tests.upstream import Recorded, Reply, ScriptedUpstream
from tests.upstream_responses import item_texts

pytestmark = pytest.mark.skipif(servers.default_binary() is None, reason=servers.NO_SERVER)

WINDOW = 8192
TASK = "Repair the import of TASK-2217."
RESULT = "one more line of the output; " * 40
FIELD = "previous_response_id"
KEY = "one key for all"


@pytest.fixture
async def redis(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
async def up() -> AsyncIterator[ScriptedUpstream]:
    """It keeps no response."""
    number = 0

    def call(_: Recorded) -> Reply:
        nonlocal number
        number += 1
        return Reply(text="", tool_calls=[(f"call_{number}", "read_file", "{}")])

    async with ScriptedUpstream(window=WINDOW, reply=call, reject_params={FIELD}) as up:
        yield up


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as http:
        yield http


def replica(up: ScriptedUpstream, folder: Path, url: str, **values: Json) -> Running:
    settings: dict[str, Json] = {
        "store.url": url,
        "store.timeout_ms": 3000,
        "tenancy.source": "credential",
        "tenancy.key": KEY,
        **values,
    }
    return Running(up.base_url, folder, **settings)


async def step(client: Chained, turned: Turned, number: int) -> Turned:
    outputs = [i.output(call, f"STEP-{number:03d} {RESULT}") for call in turned.calls]
    return await client.say(outputs, turned.id)


def said(turned: Turned) -> str:
    return "\n".join(text for item in turned.arrived.messages for text in item_texts(item))


@pytest.mark.slow
async def test_a_chain_goes_from_proxy_to_proxy(
    up: ScriptedUpstream, http: aiohttp.ClientSession, redis: RedisServer, tmp_path: Path
) -> None:
    async with replica(up, tmp_path, redis.url) as a, replica(up, tmp_path, redis.url) as b:
        client = Chained(http, a.url, up, stream=True)
        turned = await client.say([i.easy("user", TASK)])
        for number in range(1, 41):
            client.url = (a, b)[number % 2].url
            turned = await step(client, turned, number)
            assert turned.status == 200, turned.response
            assert TASK in said(turned)
            assert f"STEP-{number:03d}" in said(turned)
        assert not up.violations
        stranger = Chained(http, b.url, up, key="sk-bob")
        stolen = await stranger.say([i.easy("user", "What was it?")], turned.id)
        assert (stolen.status, stolen.passed) == (400, True)


async def test_two_branches_at_two_proxies(
    up: ScriptedUpstream, http: aiohttp.ClientSession, redis: RedisServer, tmp_path: Path
) -> None:
    async with replica(up, tmp_path, redis.url) as a, replica(up, tmp_path, redis.url) as b:
        trunk = Chained(http, a.url, up)
        turned = await trunk.say([i.easy("user", TASK)])
        for number in range(1, 6):
            turned = await step(trunk, turned, number)
        branches = [Chained(http, proxy.url, up) for proxy in (a, b)]
        ends = [turned, turned]
        for number in range(6, 30):
            for place, client in enumerate(branches):
                ends[place] = await step(client, ends[place], number * 10 + place)
                assert ends[place].status == 200
        for place, end in enumerate(ends):
            text = said(end)
            other = [f"STEP-{number * 10 + 1 - place:03d}" for number in range(6, 30)]
            assert TASK in text
            assert not any(mark in text for mark in other)
        assert not up.violations


async def holds(redis: RedisServer, count: int) -> bool:
    found = await redis.command("KEYS", "foldgate:response:*")
    return isinstance(found, list) and len(found) >= count


@pytest.mark.slow
async def test_redis_leaves_and_comes_back(
    up: ScriptedUpstream, http: aiohttp.ClientSession, redis: RedisServer, tmp_path: Path
) -> None:
    quick: JsonObject = {"store.timeout_ms": 50}
    async with replica(up, tmp_path, redis.url, **quick) as a:
        client = Chained(http, a.url, up)
        turned = await client.say([i.easy("user", TASK)])
        for number in range(1, 4):
            turned = await step(client, turned, number)
        await redis.kill()
        for number in range(4, 10):
            turned = await step(client, turned, number)
            assert turned.status == 200
            assert f"STEP-{number:03d}" in said(turned)
        await redis.start()
        # What came while it was away; what it had before is lost to it.
        await servers.wait_until(lambda: holds(redis, 6))
        turned = await step(client, turned, 10)
    async with replica(up, tmp_path, redis.url, **quick) as b:
        client.url = b.url
        turned = await step(client, turned, 11)
        assert turned.status == 200
        assert all(f"STEP-{number:03d}" in said(turned) for number in range(4, 12))


async def test_what_was_recorded_is_not_readable_in_redis(
    up: ScriptedUpstream, http: aiohttp.ClientSession, redis: RedisServer, tmp_path: Path
) -> None:
    keys: list[Json] = ["k1:" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="]
    async with replica(up, tmp_path, redis.url, **{"store.encryption_keys": keys}) as a:
        client = Chained(http, a.url, up)
        turned = await client.say([i.easy("user", TASK)])
        turned = await step(client, turned, 1)
    async with replica(up, tmp_path, redis.url, **{"store.encryption_keys": keys}) as b:
        client.url = b.url
        turned = await step(client, turned, 2)
        assert turned.status == 200
    await redis.command("SAVE")
    dump = (tmp_path / "redis" / "dump.rdb").read_bytes()
    assert len(dump) > 500
    for text in (b"TASK-2217", b"one more line", b"read_file"):
        assert text not in dump
    body = loads(turned.arrived.body)
    assert isinstance(body, dict)
    assert len(as_objects(body["input"])) == 5
