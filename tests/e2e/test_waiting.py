"""Clients that wait for a compaction: kept alive, served in time, cancelled when they go."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import Json, JsonObject, as_text
from tests import builders as b
from tests.e2e import checks
from tests.e2e.apis import APIS, COMMENT, Api
from tests.e2e.checks import Agent
from tests.e2e.running import Running
from tests.e2e.test_compaction_concurrency import leave, start, until, waiting
from tests.upstream import Recorded, Reply, ScriptedUpstream
from tests.upstream_rules import plausible_checkpoint

WINDOW = 8192
LONG = b.tool_session(16, result_chars=2000)
SUMMARY = plausible_checkpoint(LONG)
KEEP: dict[str, Json] = {"server.keepalive_seconds": 0.05}


class Listener:
    """A streaming request, and what has come of its reply so far."""

    def __init__(
        self,
        client: aiohttp.ClientSession,
        proxy: Running,
        api: Api,
        messages: Sequence[JsonObject] = LONG,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._client = client
        self._url = proxy.url + api.path
        self._body = api.body(messages, stream=True)
        self._headers = headers or {}
        self._changed = asyncio.Event()
        self.received = b""
        self.status = 0
        self.task = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> bytes:
        sent = {"content-type": "application/json", **self._headers}
        async with self._client.post(self._url, data=self._body, headers=sent) as reply:
            self.status = reply.status
            async for chunk in reply.content.iter_any():
                self.received += chunk
                self._changed.set()
        return self.received

    @property
    def comments(self) -> int:
        return self.received.count(COMMENT)

    async def hear(self, comments: int, seconds: float = 5.0) -> None:
        """Return once so many comments more than now have come."""
        wanted = self.comments + comments
        async with asyncio.timeout(seconds):
            while self.comments < wanted:
                self._changed.clear()
                await self._changed.wait()


async def test_comments_go_on_between_the_calls_of_one_compaction(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """The first answer is useless, so the summariser is asked again."""
    checks.make_strict(up, WINDOW)
    gates = [asyncio.Event(), asyncio.Event()]
    up.summary_replies += [
        Reply(text="no", gate=gates[0]),
        Reply(text=SUMMARY, gate=gates[1]),
    ]
    async with Running(up.base_url, tmp_path, **KEEP) as proxy:
        listener = Listener(client, proxy, api)
        await listener.hear(2)
        gates[0].set()
        await up.wait_for(lambda: len(up.summaries) == 2)
        await listener.hear(2)
        gates[1].set()
        received = await listener.task
    assert api.events(received)
    assert up.violations == []
    assert len(up.main) == 1


async def test_comments_go_on_during_a_second_compaction(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """The window is smaller than was said: the cure compacts once more while the head is out."""
    checks.make_strict(up, 3200)
    gates = [asyncio.Event(), asyncio.Event()]
    up.summary_replies += [Reply(text=SUMMARY, gate=gate) for gate in gates]
    up.overflow_in_stream = False
    values: dict[str, Json] = {
        **KEEP,
        "upstream.context_window": 12_000,
        "compaction.target": 0.8,
    }
    messages = b.turn_session(10, 2, result_chars=2400)[:-1]
    async with Running(up.base_url, tmp_path, **values) as proxy:
        listener = Listener(client, proxy, api, messages)
        await listener.hear(1)
        gates[0].set()
        await up.wait_for(lambda: len(up.summaries) == 2)
        await listener.hear(2)
        gates[1].set()
        received = await listener.task
    assert listener.status == 200
    assert received.startswith(COMMENT)
    assert api.events(received)
    assert {r.rule for r in up.rejections} == {"window"}


@pytest.mark.parametrize("in_stream", [False, True])
async def test_an_overflow_is_cured_while_the_client_hears_comments(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    in_stream: bool,
) -> None:
    """Nobody tells the window, so the compaction begins when the upstream has refused."""
    checks.make_strict(up, WINDOW)
    up.advertise_window = False
    up.overflow_in_stream = in_stream
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    async with Running(up.base_url, tmp_path, **KEEP) as proxy:
        listener = Listener(client, proxy, api, b.tool_session(20, result_chars=2000))
        await listener.hear(2)
        gate.set()
        received = await listener.task
        started = proxy.events.of_type("compaction_started")
    assert listener.status == 200
    assert api.events(received)
    assert len(up.main) == 2
    assert checks.reasons(started) == ["overflow"]


async def test_one_of_two_that_wait_leaves(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """The first leaves, for whom the summariser was asked; it goes on for the other."""
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    async with Running(up.base_url, tmp_path, **KEEP) as proxy:
        first = Listener(client, proxy, api)
        await first.hear(1)
        second = Listener(client, proxy, api)
        await second.hear(1)
        assert waiting(proxy) == 2
        first.task.cancel()
        await until(lambda: waiting(proxy) == 1)
        await second.hear(2)
        assert not up.summaries[0].disconnected
        gate.set()
        received = await second.task
    assert api.events(received)
    assert len(up.summaries) == 1
    assert len(up.main) == 1


async def test_both_that_wait_leave(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    up.summary_replies.append(Reply(text=SUMMARY, gate=asyncio.Event()))
    async with Running(up.base_url, tmp_path, **KEEP) as proxy:
        listeners = [Listener(client, proxy, api) for _ in range(2)]
        for listener in listeners:
            await listener.hear(1)
        listeners[0].task.cancel()
        await until(lambda: waiting(proxy) == 1)
        assert not up.summaries[0].disconnected
        listeners[1].task.cancel()
        await up.wait_for(lambda: up.summaries[0].disconnected)
        failed = await proxy.wait_event("compaction_failed")
    assert failed["reason"] == "cancelled"
    assert up.main == []


async def test_a_duplicate_joins_what_is_under_way(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """As SDKs send it: the same body once more, with the number of the try."""
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=SUMMARY, gate=gate))
    async with Running(up.base_url, tmp_path, **KEEP) as proxy:
        first = Listener(client, proxy, api)
        await first.hear(1)
        tries = [
            Listener(client, proxy, api, LONG, {"x-stainless-retry-count": str(n)}) for n in (1, 2)
        ]
        plain = start(Agent(client, proxy.url, up, api=api).say(LONG))
        await until(lambda: waiting(proxy) == 4)
        gate.set()
        streams = [await each.task for each in (first, *tries)]
        exchange = await plain
        started = proxy.events.of_type("compaction_started")
    checks.assert_fine([exchange], up)
    assert all(api.events(received) for received in streams)
    assert len(up.summaries) == 1
    assert len(started) == 1
    assert len({record_part(r, api) for r in up.main}) == 1


def record_part(request: Recorded, api: Api) -> bytes:
    return checks.raw_messages(request.body)[0 if api.name != "chat" else 1]


async def test_a_client_that_goes_during_the_cure(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    up.advertise_window = False
    up.summary_replies.append(Reply(text=SUMMARY, gate=asyncio.Event()))
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        task = start(agent.say(b.tool_session(20, result_chars=2000)))
        await up.wait_for(lambda: len(up.summaries) == 1)
        await leave(task)
        await up.wait_for(lambda: up.summaries[0].disconnected)
    assert len(up.main) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_at_the_deadline_it_is_answered_without_the_summary(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, stream: bool
) -> None:
    checks.make_strict(up, WINDOW)
    up.summary_replies.append(Reply(hang=True))
    values: dict[str, Json] = {**KEEP, "compaction.deadline_seconds": 0.5}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api, stream=stream)
        exchange = await agent.say(LONG)
        again = await agent.say(LONG)
        failed = await proxy.wait_event("compaction_failed")
    assert (exchange.status, again.status) == (200, 200)
    assert failed["reason"] == "timeout"
    assert exchange.reply.startswith(COMMENT) is stream
    assert not again.reply.startswith(COMMENT)
    assert len(up.summaries) == 1
    assert up.summaries[0].disconnected
    checks.assert_faithful(again)


# With the durations that people see.


def slow_summary(seconds: float) -> Reply:
    return Reply(text=SUMMARY, delay=seconds)


@pytest.mark.slow
@pytest.mark.parametrize(("takes", "keepalive", "latest"), [(15.0, None, 11.0), (5.0, 1.0, 2.0)])
async def test_a_slow_summary(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    takes: float,
    keepalive: float | None,
    latest: float,
) -> None:
    checks.make_strict(up, WINDOW)
    up.summary_replies.append(slow_summary(takes))
    values: dict[str, Json] = {} if keepalive is None else {"server.keepalive_seconds": keepalive}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        listener = Listener(client, proxy, api)
        await listener.hear(1, latest)
        received = await listener.task
        completed = proxy.events.of_type("compaction_completed")
    assert api.events(received)
    assert [as_text(e.get("extractive")) for e in completed] == [""]


@pytest.mark.slow
async def test_a_summary_that_takes_too_long(client: aiohttp.ClientSession, tmp_path: Path) -> None:
    """90 s with the default deadline of 60: answered then, with an extract."""

    async def ask(api: Api, *, stream: bool) -> None:
        async with ScriptedUpstream() as up:
            checks.make_strict(up, WINDOW)
            up.summary_replies.append(slow_summary(90))
            folder = tmp_path / f"{api.name}-{stream}"
            folder.mkdir()
            async with Running(up.base_url, folder) as proxy:
                agent = Agent(client, proxy.url, up, api=api, stream=stream)
                async with asyncio.timeout(66):
                    exchange = await agent.say(LONG)
                completed = proxy.events.of_type("compaction_completed")
            assert exchange.status == 200
            assert exchange.reply.startswith(COMMENT) is stream
            assert completed[0]["extractive"] is True
            assert len(up.summaries) == 1

    await asyncio.gather(*(ask(api, stream=stream) for api in APIS for stream in (False, True)))
