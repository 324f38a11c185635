"""Several requests at once: one summary for all who need it, cancelled when nobody does."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import Json, JsonObject, as_text, loads
from tests import builders as b
from tests.e2e import checks
from tests.e2e.apis import CHAT, COMMENT, Api
from tests.e2e.checks import Agent, Exchange
from tests.e2e.running import Running
from tests.upstream import Reply, ScriptedUpstream
from tests.upstream_rules import plausible_checkpoint

WINDOW = 8192
LONG = b.tool_session(16, result_chars=2000)
SUMMARY = plausible_checkpoint(LONG)


def waiting(proxy: Running) -> int:
    """How many requests wait for a compaction."""
    flights = proxy.gateway._compactor._flights._flights
    return sum(flight.waiters for flight in flights.values())


async def until(predicate: Callable[[], bool], seconds: float = 5.0) -> None:
    """For what nobody announces: look again after every round of the loop."""
    async with asyncio.timeout(seconds):
        while not predicate():  # noqa: ASYNC110  -- the proxy's inside tells nobody
            await asyncio.sleep(0)


def start(work: Awaitable[Exchange]) -> "asyncio.Task[Exchange]":
    async def run() -> Exchange:
        return await work

    return asyncio.get_running_loop().create_task(run())


async def leave(task: "asyncio.Task[Exchange]") -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("stream", [False, True])
async def test_identical_requests_share_one_summary(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, stream: bool
) -> None:
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api, stream=stream)
        tasks = [start(agent.say(LONG)) for _ in range(8)]
        await until(lambda: waiting(proxy) == 8)
        gate.set()
        exchanges = await asyncio.gather(*tasks)
        completed = proxy.events.of_type("compaction_completed")
        started = proxy.events.of_type("compaction_started")
    checks.assert_fine(exchanges, up)
    assert len(up.summaries) == 1
    assert len({e.arrived for e in exchanges}) == 1
    assert len({e.session for e in exchanges}) == 1
    assert (len(started), len(completed)) == (1, 1)


async def test_requests_that_differ_behind_the_cut_share_it_too(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    tails = [[b.assistant("Hm."), b.user(f"MARK-tail{i} and then?")] for i in range(3)]
    turns = b.turn_session(8, 2, result_chars=1800)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        tasks = [start(agent.say([*turns, b.user("One."), *tail])) for tail in tails]
        await until(lambda: waiting(proxy) == 3)
        gate.set()
        exchanges = await asyncio.gather(*tasks)
    checks.assert_fine(exchanges, up)
    assert len(up.summaries) == 1
    assert len({checks.record_of(e) for e in exchanges}) == 1
    for number, exchange in enumerate(exchanges):
        assert [n for n in range(3) if f"MARK-tail{n}" in exchange.text] == [number]


async def test_the_first_client_leaves_and_the_others_are_served(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        leader = start(agent.say(LONG))
        await up.wait_for(lambda: len(up.summaries) == 1)
        others = [start(agent.say(LONG)) for _ in range(3)]
        await until(lambda: waiting(proxy) == 4)
        await leave(leader)
        await until(lambda: waiting(proxy) == 3)
        gate.set()
        exchanges = await asyncio.gather(*others)
    checks.assert_fine(exchanges, up)
    assert [call.disconnected for call in up.summaries] == [False]
    assert len(up.main) == 3
    assert {tuple(e.marks) for e in exchanges} == {("compacted",)}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [1, 3])
async def test_when_everybody_leaves_the_summary_is_cancelled(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    stream: bool,
    count: int,
) -> None:
    checks.make_strict(up, WINDOW)
    up.summary_replies.append(Reply(text=SUMMARY, gate=asyncio.Event()))
    values: dict[str, Json] = {"server.keepalive_seconds": 0.05}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api, stream=stream)
        tasks = [start(agent.say(LONG)) for _ in range(count)]
        await up.wait_for(lambda: len(up.summaries) == 1)
        await until(lambda: waiting(proxy) == count)
        for task in tasks:
            await leave(task)
        await up.wait_for(lambda: up.summaries[0].disconnected)
        assert up.main == []
        # A newcomer starts afresh.
        exchange = await agent.say(LONG)
    checks.assert_fine([exchange], up)
    # A stream that has to wait longer than its patience cannot tell any more.
    assert exchange.marks in (["compacted"], ["running"])
    assert len(up.summaries) == 2


async def test_a_retry_after_a_client_gave_up_finds_the_summary_under_way(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """A client with a short time-out sends again before the server notices that it left."""
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        first = start(agent.say(LONG))
        await up.wait_for(lambda: len(up.summaries) == 1)
        second = start(agent.say(LONG))
        await until(lambda: waiting(proxy) == 2)
        await leave(first)
        gate.set()
        exchange = await second
    checks.assert_fine([exchange], up)
    assert len(up.summaries) == 1


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_only_so_many_summaries_run_at_once(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, concurrency: int
) -> None:
    checks.make_strict(up, WINDOW)
    sessions = [b.tool_session(16, seed=seed, result_chars=2000) for seed in range(6)]
    up.summary_replies.extend(Reply(text=SUMMARY, delay=0.02) for _ in sessions)
    running: list[int] = []

    def look() -> bool:
        running.append(sum(not call.outcome.finished for call in up.summaries))
        return len(up.main) == len(sessions)

    async with Running(up.base_url, tmp_path, **{"compaction.concurrency": concurrency}) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        tasks = [start(agent.say(session)) for session in sessions]
        await up.wait_for(look, 10)
        exchanges = await asyncio.gather(*tasks)
    checks.assert_fine(exchanges, up)
    assert len(up.summaries) == len(sessions)
    assert max(running) == concurrency
    assert len({e.session for e in exchanges}) == len(sessions)


async def test_who_gets_no_turn_in_time_gets_an_extract(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    other = b.tool_session(16, seed=4, result_chars=2000)
    values: dict[str, Json] = {"compaction.concurrency": 1, "compaction.deadline_seconds": 0.6}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up)
        first = start(agent.say(LONG))
        await up.wait_for(lambda: len(up.summaries) == 1)
        second = await agent.say(other)
        gate.set()
        exchanges = [await first, second]
        failed = proxy.events.of_type("compaction_failed")
    checks.assert_fine(exchanges, up)
    assert second.marks == ["compacted", "extractive"] or second.marks == ["compacted"]
    assert set(checks.reasons(failed)) <= {"busy", "timeout"}


KEEP: dict[str, Json] = {"server.keepalive_seconds": 0.05}


async def stream_of(
    client: aiohttp.ClientSession,
    proxy: Running,
    gate: asyncio.Event,
    api: Api,
    messages: Sequence[JsonObject] = LONG,
) -> bytes:
    """Send a streaming request; open the gate after the second comment; read to the end."""
    body = api.body(messages, stream=True)
    async with client.post(proxy.url + api.path, data=body) as reply:
        assert reply.status == 200
        assert reply.content_type == "text/event-stream"
        received = b""
        async for chunk in reply.content.iter_any():
            received += chunk
            if received.count(COMMENT) >= 2:
                gate.set()
        return received


async def test_a_streaming_client_hears_comments_meanwhile(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    async with Running(up.base_url, tmp_path, **KEEP) as proxy:
        received = await stream_of(client, proxy, gate, api)
        later = await Agent(client, proxy.url, up, api=api, stream=True).say(LONG)
    assert received.startswith(COMMENT * 2)
    assert api.events(received)
    assert later.marks == ["reused"]
    assert later.arrived == up.main[0].body
    assert up.violations == []
    assert len(up.summaries) == 1


async def test_a_client_that_does_not_stream_waits_in_silence(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    up.summary_replies.append(Reply(text=SUMMARY, delay=0.3))
    async with Running(up.base_url, tmp_path, **KEEP) as proxy:
        exchange = await Agent(client, proxy.url, up).say(LONG)
    checks.assert_fine([exchange], up)
    assert exchange.marks == ["compacted"]
    assert isinstance(loads(exchange.reply), dict)


AFTER_THE_HEAD: dict[str, tuple[Reply, str, str]] = {
    "400": (Reply(status=400, text="bad thing"), "bad thing", "server_error"),
    "500": (Reply(status=500, text="broken thing"), "broken thing", "server_error"),
    "a code": (
        Reply(status=429, raw_body=b'{"error":{"message":"slow","code":"rate_limit_exceeded"}}'),
        "slow",
        "rate_limit_exceeded",
    ),
    "llama.cpp": (
        Reply(status=500, raw_body=b'{"error":{"code":500,"message":"jinja","type":"t"}}'),
        "jinja",
        "500",
    ),
    "a text": (Reply(status=400, raw_body=b'{"error":"plain"}'), "plain", "server_error"),
    "a page": (
        Reply(status=503, raw_body=b"<html>", headers={"Content-Type": "text/html"}),
        "503",
        "server_error",
    ),
    "no stream": (Reply(raw_body=b'{"id":"x","output":[]}'), "without a stream", "no_stream"),
    "dropped": (Reply(drop=True), "", ""),
}
"""Replies, part of the message that they become, and the code that the Responses API needs."""


@pytest.mark.parametrize("name", AFTER_THE_HEAD)
async def test_an_error_after_the_head_is_told_as_the_api_tells_it(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, name: str
) -> None:
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    reply, text, code = AFTER_THE_HEAD[name]
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    up.replies.append(reply)
    async with Running(up.base_url, tmp_path, **KEEP) as proxy:
        received = await stream_of(client, proxy, gate, api)
    error = api.error_of(received)
    assert text in as_text(error["message"])
    assert api is CHAT or error["code"] == code or not code


async def test_a_refusal_after_the_head_is_an_event(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    up.window = None
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    messages = [
        *b.turn_session(6, 1, result_chars=900),
        b.user("Now think."),
        b.assistant("So.", [b.call("z", "f", {})], reasoning_content=b.prose(30_000, 1)),
        b.result("z", "ok"),
    ]
    values: dict[str, Json] = {**KEEP, "limits.max_context_chars": 9000}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        received = await stream_of(client, proxy, gate, api, messages)
    assert api.error_of(received)["code"] == "context_length_exceeded"
    assert up.main == []


async def test_a_reply_that_breaks_off_after_the_head_does_not_look_complete(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    up.replies.append(Reply(text="half an answer", cut=True))
    async with Running(up.base_url, tmp_path, **KEEP) as proxy:
        with pytest.raises(aiohttp.ClientError):
            await stream_of(client, proxy, gate, api)


async def test_the_same_session_from_many_places(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """Sub-agents that share a long prefix, each going its own way, all at once."""
    checks.make_strict(up, WINDOW)
    base = b.turn_session(7, 2, result_chars=1800)
    ways = [
        [*base, b.user("Go."), *b.tool_session(8, seed=seed + 20, result_chars=1500)[2:]]
        for seed in range(4)
    ]
    async with Running(up.base_url, tmp_path) as proxy:
        agents = [Agent(client, proxy.url, up, api=api) for _ in ways]
        for agent in agents[:1]:
            await agent.play(base[:-1])
        before = len(agents[0].exchanges)

        async def walk(agent: Agent, way: Sequence[JsonObject]) -> None:
            for step in checks.steps(way):
                if len(step) > len(base):
                    await agent.say(step)

        await asyncio.gather(*(walk(a, w) for a, w in zip(agents, ways, strict=True)))
    for seed, agent in enumerate(agents):
        checks.assert_fine(agent.exchanges, up)
        own = agent.exchanges[before if seed == 0 else 0 :]
        checks.assert_stable(own)
        for exchange in own:
            others = [n for n in range(4) if n != seed and f"mark{n + 20}n" in exchange.text]
            assert others == []
