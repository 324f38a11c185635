"""A history that no summariser call holds: read in chunks, finished after the reply, resumed."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import Json, JsonObject, as_text, dumps, loads
from proxy.compactor import background as background_module
from proxy.sessions.sqlite_store import SqliteStore
from tests import builders as b
from tests import redis_servers as servers
from tests.counting_upstream import CountingUpstream
from tests.e2e import checks
from tests.e2e.apis import RESPONSES, Api
from tests.e2e.checks import Agent, Exchange
from tests.e2e.running import Running, store_url
from tests.redis_servers import RedisServer
from tests.upstream import Recorded, Reply, ScriptedUpstream
from tests.upstream_responses import as_messages
from tests.upstream_rules import message_texts

WINDOW = 8192
SUMMARY = dumps({"goal": "Repair the import.", "discoveries": ["The parser rejects a batch."]})
WITHOUT: dict[str, Json] = {"compaction.background": False}
SECONDS = 30.0


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_module, "FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(background_module, "LONGEST_PAUSE_SECONDS", 0.1)


@pytest.fixture
async def up() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream(summary_text=SUMMARY.decode()) as upstream:
        checks.make_strict(upstream, WINDOW)
        yield upstream


def history(times: float, window: int = WINDOW) -> list[JsonObject]:
    """A session that is so many windows long."""
    chars = min(2000, window // 4)
    return b.tool_session(int(4 * window * times / (chars + 100)), result_chars=chars)


def longer(messages: Sequence[JsonObject]) -> list[JsonObject]:
    return [*messages, b.assistant("So."), b.user("And now?")]


def prompt_of(call: Recorded) -> str:
    return "\n".join(t for m in as_messages(call.messages) for t in message_texts(m))


def marks_in(calls: Sequence[Recorded]) -> list[str]:
    """The results that calls were given to read, in order."""
    return [mark for call in calls for mark in checks.MARK.findall(prompt_of(call))]


def is_whole(event: JsonObject) -> bool:
    return not (event.get("partial") or event.get("extractive"))


def completed(proxy: Running) -> list[JsonObject]:
    return proxy.events.of_type("compaction_completed")


async def finished(proxy: Running, agent: Agent, messages: list[JsonObject]) -> Exchange:
    """Go on until the background has nothing left to do; return the request that follows."""
    for _ in range(40):
        with suppress(TimeoutError):
            await proxy.events.wait_until(lambda: is_whole(completed(proxy)[-1]), 0.3)
        messages[:] = longer(messages)
        exchange = await agent.say(messages)
        if is_whole(completed(proxy)[-1]) and exchange.marks == ["reused"]:
            return exchange
    raise AssertionError(f"it never came to an end: {checks.reasons(proxy.events)}")


def assert_within(up: ScriptedUpstream, count: Callable[[str], float] | None = None) -> None:
    """No summariser call was larger than the window, its answer included."""
    assert up.window is not None
    for call in up.summaries:
        output = call.json.get("max_tokens") or call.json.get("max_output_tokens")
        assert isinstance(output, int)
        prompt = up.prompt_tokens(call) if count is None else count(prompt_of(call))
        assert prompt + output <= up.window


@pytest.mark.parametrize("window", [2048, WINDOW])
@pytest.mark.parametrize("times", [4, 20, pytest.param(60, marks=pytest.mark.slow)])
async def test_a_first_contact_far_beyond_the_window(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    window: int,
    times: int,
) -> None:
    """A few calls on the way, the rest afterwards: every message is read, and once only."""
    up.window = window
    messages = history(times, window)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        first = await agent.say(messages)
        started = proxy.events.of_type("compaction_started")
        assert first.marks == ["compacted", "partial"]
        assert checks.reasons(started) == ["threshold"]
        assert len(marks_in(up.summaries)) > 3
        calls = len(up.summaries)
        following = await finished(proxy, agent, messages)
        events = completed(proxy)
        started = proxy.events.of_type("compaction_started")
    checks.assert_fine(agent.exchanges, up)
    checks.assert_in_every(b.TASK, agent.exchanges)
    assert calls <= 4
    assert_within(up)
    assert events[0]["partial"] is True
    covered, span = events[0]["covered"], events[0]["span_items"]
    assert isinstance(covered, int)
    assert isinstance(span, int)
    assert 0 < covered < span
    assert "covered" not in events[-1]
    assert set(checks.reasons(started)[1:]) == {"background"}
    assert events[0]["session"] == events[-1]["session"]
    assert "The parser rejects a batch." in following.text
    # Everything that is no longer shown was read, in order and once.
    read = marks_in(up.summaries)
    assert read == [b.marker(0, number) for number in range(len(read))]
    assert b.marker(0, len(read)) in first.text
    assert b.marker(0, len(read) - 1) not in first.text


async def test_each_call_goes_on_from_the_answer_of_the_one_before(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    up.summary_text = lambda _: dumps({"goal": f"goal {len(up.summaries)} of the import"}).decode()
    messages = history(4)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        await agent.say(messages)
        following = await finished(proxy, agent, messages)
    first, *others = (prompt_of(call) for call in up.summaries)
    assert "Previous checkpoint" not in first
    for number, prompt in enumerate(others, 1):
        assert f"goal {number} of the import" in prompt
        assert "Merge it: newer facts win" in prompt
    assert f"goal {len(up.summaries)} of the import" in following.text


CJK = "数据导入失败因为解析器拒绝空批次必须修复调度程序缓存会话登记处"
DENSE: dict[str, tuple[str, float]] = {
    "Chinese": (CJK, 1.15),
    "emoji": ("🙂🚀🧪🔥📦🐛", 2.0),
    "base64": ("QmFzZTY0IGlzIGRlbnNlIHRleHQgdGhhdCBubyB0b2tlbml6ZXIgbGlrZXM", 0.78),
    "hex": ("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", 0.65),
}
"""A piece of text and what a real tokenizer makes of each character, about."""


@pytest.mark.parametrize("name", DENSE)
async def test_dense_text_stays_within_the_window(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, name: str
) -> None:
    piece, rate = DENSE[name]
    dense = re.compile(f"[{re.escape(''.join(set(piece)))}]{{{min(20, len(piece))},}}")

    def count(text: str) -> float:
        found = sum(len(run) for run in dense.findall(text))
        return rate * found + (len(text) - found) / 4

    messages: list[JsonObject] = [b.system(b.SYSTEM), b.user(b.TASK)]
    size = int(4 * WINDOW / rate / 40)
    for number in range(40):
        id_ = b.call_id(0, number)
        messages.append(b.assistant(None, [b.call(id_, "read_file", {"path": f"a/{number}.py"})]))
        text = (piece * (size // len(piece) + 1))[:size]
        messages.append(b.result(id_, f"{b.marker(0, number)}\n{text}"))
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        first = await agent.say(messages)
        calls = len(up.summaries)
        await finished(proxy, agent, messages)
    assert first.status == 200
    assert calls <= 4
    assert_within(up, count)


async def test_a_restart_resumes_where_the_background_was(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    messages = history(8)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        await agent.say(messages)
        up.summary_replies.extend([Reply(text=SUMMARY.decode())] * 2 + [Reply(hang=True)])
        messages = longer(messages)
        await agent.say(messages)
        # The first request has begun it; one of the calls since then hangs.
        await up.wait_for(lambda: not up.summary_replies, SECONDS)
    up.summary_replies.clear()
    hung = [n for n, call in enumerate(up.summaries) if call.disconnected]
    assert len(hung) == 1
    seen = up.summaries[: hung[0]]
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        messages = longer(messages)
        assert (await agent.say(messages)).marks == ["reused"]
        await proxy.events.wait_until(
            lambda: bool(completed(proxy)) and is_whole(completed(proxy)[-1]), SECONDS
        )
    checks.assert_fine(agent.exchanges, up)
    resumed = up.summaries[hung[0] + 1 :]
    assert marks_in(resumed)[0] == marks_in(up.summaries[hung[0] : hung[0] + 1])[0]
    assert not set(marks_in(resumed)) & set(marks_in(seen))


async def test_a_retry_resumes_what_was_read_on_the_way(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """The client leaves during the third call; a longer history goes on from the second."""
    up.summary_replies.extend([Reply(text=SUMMARY.decode())] * 2 + [Reply(hang=True)])
    messages = history(4)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        leaving = asyncio.get_running_loop().create_task(agent.say(messages))
        await up.wait_for(lambda: len(up.summaries) == 3 and not up.summary_replies, SECONDS)
        leaving.cancel()
        await up.wait_for(lambda: up.summaries[-1].disconnected, SECONDS)
        assert up.main == []
        again = await agent.say(longer(messages))
        calls = up.summaries[3:]
    checks.assert_fine([again], up)
    assert again.marks[0] == "compacted"
    assert "extractive" not in again.marks
    assert not set(marks_in(calls)) & set(marks_in(up.summaries[:2]))
    assert marks_in(calls)[0] == marks_in(up.summaries[2:3])[0]


async def test_a_restart_resumes_what_was_read_on_the_way(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """A process that is stopped during its third call: the next one goes on from the second."""
    up.summary_replies.extend([Reply(text=SUMMARY.decode())] * 2 + [Reply(hang=True)])
    messages = history(3)
    async with Running(up.base_url, tmp_path, **WITHOUT) as proxy:
        agent = Agent(client, proxy.url, up)
        asked = asyncio.get_running_loop().create_task(agent.say(messages))
        await up.wait_for(lambda: len(up.summaries) == 3 and not up.summary_replies, SECONDS)
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
    async with Running(up.base_url, tmp_path, **WITHOUT) as proxy:
        again = await Agent(client, proxy.url, up).say(messages)
    checks.assert_fine([again], up)
    assert not set(marks_in(up.summaries[3:])) & set(marks_in(up.summaries[:2]))


GARBAGE: dict[str, Callable[[], Reply]] = {
    "500": lambda: Reply(status=500, text="boom"),
    "garbage": lambda: Reply(text="I'm sorry, but I can't help with that. " * 9),
    "broken": lambda: Reply(drop=True),
}


@pytest.mark.parametrize("name", GARBAGE)
async def test_a_summariser_that_is_down_for_ten_turns(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api, name: str
) -> None:
    """Every request is answered; soon after it is back there is a full checkpoint."""
    messages = history(0.5)
    down = [GARBAGE[name]() for _ in range(400)]
    up.summary_replies.extend(down)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        for turn in range(10):
            messages += [b.assistant("So."), *b.tool_session(8, system=None, seed=turn + 1)]
            exchange = await agent.say(messages)
            assert exchange.status == 200
        assert all(event.get("extractive") for event in completed(proxy))
        assert len(completed(proxy)) > 1
        up.summary_replies.clear()
        following = await finished(proxy, agent, messages)
        events = completed(proxy)
        failed = proxy.events.of_type("compaction_failed")
    checks.assert_fine(agent.exchanges, up)
    assert_within(up)
    assert "extractive" not in events[-1]
    assert "The parser rejects a batch." in following.text
    assert len({as_text(event["reason"]) for event in failed} - {"cancelled"}) == 1


async def test_a_summariser_of_its_own_that_comes_to_life(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Nobody listens at its address for ten turns."""
    async with ScriptedUpstream(model="small", summary_text=SUMMARY.decode()) as gone:
        pass
    values: dict[str, Json] = {
        "compaction.summarizer": "small",
        "profiles": [{"model": "small", "base_url": gone.base_url, "context_window": 4096}],
    }
    port = int(gone.url.rpartition(":")[2])
    messages = history(0.5)
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up)
        for turn in range(10):
            messages += [b.assistant("So."), *b.tool_session(8, system=None, seed=turn + 1)]
            await agent.say(messages)
        assert all(event.get("extractive") for event in completed(proxy))
        async with ScriptedUpstream(model="small", summary_text=SUMMARY.decode()) as small:
            relay = await asyncio.start_server(_to(small.url), "127.0.0.1", port)
            async with relay:
                small.window = 4096
                following = await finished(proxy, agent, messages)
            assert small.violations == []
            assert small.summaries
    checks.assert_fine(agent.exchanges, up)
    assert up.summaries == []
    assert "The parser rejects a batch." in following.text


def _to(url: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Let connections through to another port."""
    port = int(url.rpartition(":")[2])

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, outer), pump(inner, writer))

    return serve


async def test_a_call_that_fails_on_the_way_keeps_what_came_before(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    up.summary_replies.extend([Reply(text=SUMMARY.decode())] * 2 + [Reply(status=500, text="boom")])
    async with Running(up.base_url, tmp_path, **WITHOUT) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        exchange = await agent.say(history(4))
        (event,) = completed(proxy)
        failed = proxy.events.of_type("compaction_failed")
    checks.assert_fine([exchange], up)
    assert exchange.marks == ["compacted", "partial"]
    assert checks.reasons(failed) == ["http_500"]
    assert "extractive" not in event
    read = marks_in(up.summaries[:2])
    assert read == [b.marker(0, number) for number in range(len(read))]
    assert event["covered"] in range(2 * len(read), 4 * len(read) + 2)
    assert "The parser rejects a batch." in exchange.text
    # What no model has read is told in the assistant's own words, and not what one has.
    assert "What the assistant last wrote" in exchange.text


async def test_an_answer_that_was_cut_loses_nothing_of_the_one_before(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    cut = '{"goal": "Repair the nightly import.", "instructions": ["K'
    up.summary_replies.extend([*answers(1), Reply(text=cut, finish_reason="length")])
    up.summary_replies.append(Reply(status=500, text="boom"))
    async with Running(up.base_url, tmp_path, **WITHOUT) as proxy:
        exchange = await Agent(client, proxy.url, up, api=api).say(history(4))
    checks.assert_fine([exchange], up)
    assert "Repair the nightly import." in exchange.text
    assert "The parser rejects a batch." in exchange.text


async def test_no_call_is_begun_that_would_not_end_in_time(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.summary_replies.append(Reply(text=SUMMARY.decode(), delay=0.6))
    values: dict[str, Json] = {**WITHOUT, "compaction.deadline_seconds": 1.0}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        exchange = await Agent(client, proxy.url, up).say(history(4))
    checks.assert_fine([exchange], up)
    assert exchange.marks == ["compacted", "partial"]
    assert len(up.summaries) == 1


async def test_an_overflow_of_the_summariser_is_learned_from(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """A window of half the size that nobody told: one refusal, then smaller chunks throughout."""
    up.window = None
    values: dict[str, Json] = {"upstream.context_window": WINDOW}
    sizes: list[int] = []

    def answer(call: Recorded) -> str:
        sizes.append(up.prompt_tokens(call))
        return SUMMARY.decode()

    def refuse(tokens: int) -> Reply:
        error = f"This model's maximum context length is 4096 tokens, your request has {tokens}."
        body: JsonObject = {"error": {"message": error, "code": "context_length_exceeded"}}
        return Reply(status=400, raw_body=dumps(body))

    up.summary_text = answer
    up.summary_replies.append(refuse(5000))
    messages = history(4)
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        exchange = await agent.say(messages)
        calls = len(up.summaries)
        await finished(proxy, agent, messages)
        failed = proxy.events.of_type("compaction_failed")
    assert exchange.marks == ["compacted", "partial"]
    assert calls <= 4
    assert failed == []
    assert max(sizes) < 4096
    assert len({call.decoded for call in up.summaries}) == len(up.summaries)


async def test_nothing_delays_a_reply(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """The background begins when the reply is through, not before."""
    gate = asyncio.Event()
    up.replies.append(Reply(text="the reply", gate=gate))
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api, stream=True)
        asked = asyncio.get_running_loop().create_task(agent.say(history(8)))
        await up.wait_for(lambda: bool(up.main) and up.main[0].outcome.status == 200, SECONDS)
        # Time enough for anything that does not wait for the reply.
        for number in range(20):
            await Agent(client, proxy.url, up, api=api).say(b.tool_session(2, seed=number + 1))
        before = len(up.summaries)
        assert checks.reasons(proxy.events.of_type("compaction_started")) == ["threshold"]
        gate.set()
        exchange = await asked
        await up.wait_for(lambda: len(up.summaries) > before, SECONDS)
    assert before == 4
    assert exchange.status == 200


def answers(count: int) -> list[Reply]:
    return [Reply(text=SUMMARY.decode())] * count


async def test_each_chunk_may_be_repaired_in_the_background(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.summary_replies.extend(answers(4))
    for _ in range(2):
        up.summary_replies.extend([Reply(text=""), *answers(1)])
    messages = history(8)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up)
        await agent.say(messages)
        await finished(proxy, agent, messages)
        assert proxy.events.of_type("compaction_failed") == []
    assert not up.summary_replies


async def test_what_the_background_read_before_it_failed_is_used(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.summary_replies.extend([*answers(6), Reply(status=500, text="boom")])
    messages = history(8)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up)
        await agent.say(messages)
        await proxy.wait_event("compaction_completed", 2, SECONDS)
        await finished(proxy, agent, messages)
        events = completed(proxy)
        failed = proxy.events.of_type("compaction_failed")
    first, second, *_, last = events
    assert isinstance(first["covered"], int)
    assert isinstance(second["covered"], int)
    assert first["covered"] < second["covered"]
    assert is_whole(last)
    assert checks.reasons(failed) == ["http_500"]


async def test_a_dead_summariser_gets_one_probe_for_all_sessions(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background_module, "FIRST_PAUSE_SECONDS", 1000.0)
    monkeypatch.setattr(background_module, "LONGEST_PAUSE_SECONDS", 1000.0)
    up.summary_replies.extend(Reply(status=500, text="boom") for _ in range(99))
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up)
        await agent.say(b.tool_session(24))
        await proxy.wait_event("compaction_failed", 2, SECONDS)
        for seed in range(1, 5):
            messages = b.tool_session(24, seed=seed)
            for _ in range(3):
                await agent.say(messages)
                messages = longer(messages)
        started = proxy.events.of_type("compaction_started")
    assert checks.reasons(started).count("background") == 1
    assert checks.reasons(started).count("threshold") >= 5


async def test_a_request_that_compacts_takes_over_from_the_background(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """It goes on from what the background had read."""
    up.summary_replies.extend([*answers(5), Reply(hang=True)])
    messages = history(8)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up)
        await agent.say(messages)
        await up.wait_for(lambda: not up.summary_replies, SECONDS)
        messages += [b.assistant("So."), *b.tool_session(14, system=None, seed=1)]
        exchange = await agent.say(messages)
        assert up.summaries[5].disconnected
        failed = proxy.events.of_type("compaction_failed")
    assert exchange.marks[0] == "compacted"
    assert checks.reasons(failed) == ["cancelled"]
    assert not set(marks_in(up.summaries[6:])) & set(marks_in(up.summaries[:5]))


async def test_what_the_summariser_counts_is_learned_from_its_first_answer(
    client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """A tokenizer that makes half as many tokens again, and an API that says so."""

    def count(text: str) -> int:
        return int(0.4 * len(text))

    async with CountingUpstream(tokenizer=count, limit=WINDOW, summary_text=SUMMARY.decode()) as up:
        messages = history(6)
        async with Running(up.base_url, tmp_path) as proxy:
            agent = Agent(client, proxy.url, up, api=RESPONSES)
            first = await agent.say(messages)
            await finished(proxy, agent, messages)
        sizes = [up.prompt_tokens(call) for call in up.summaries]
        outputs = [call.json["max_output_tokens"] for call in up.summaries]
    assert first.status == 200
    assert sizes[0] < WINDOW
    for size, output in list(zip(sizes, outputs, strict=True))[1:]:
        assert isinstance(output, int)
        assert size + output <= WINDOW


async def test_without_a_background_it_stays_as_it_is(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    messages = history(8)
    async with Running(up.base_url, tmp_path, **WITHOUT) as proxy:
        agent = Agent(client, proxy.url, up)
        await agent.say(messages)
        for _ in range(3):
            messages = longer(messages)
            assert (await agent.say(messages)).marks == ["reused"]
        assert len(completed(proxy)) == 1
    assert len(up.summaries) == 4


async def test_a_session_that_is_deleted_meanwhile_does_not_come_back(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up)
        up.summary_replies.extend([Reply(text=SUMMARY.decode())] * 4)
        up.summary_replies.append(Reply(text=SUMMARY.decode(), gate=gate))
        exchange = await agent.say(history(8))
        await up.wait_for(lambda: len(up.summaries) == 5, SECONDS)
        store = await opened(tmp_path)
        assert await store.delete_session(exchange.session)
        gate.set()
        await proxy.wait_event("compaction_failed", seconds=SECONDS)
        await proxy.gateway._memory.calls.settle()
        assert await store.sessions() == []
        anchors = [await store.load_folds(anchor) for anchor in anchors_of(tmp_path)]
        await store.close()
        (failed,) = proxy.events.of_type("compaction_failed")
    assert failed["reason"] == "taken_over"
    assert anchors == []


async def opened(folder: Path) -> SqliteStore:
    path = Path(store_url(folder).removeprefix("sqlite:///"))
    store = SqliteStore(path, retention_seconds=1e9, archive_bytes=1 << 30)
    await store.open()
    return store


def anchors_of(folder: Path) -> list[bytes]:
    """The anchors that have running summaries."""
    with closing(sqlite3.connect(store_url(folder).removeprefix("sqlite:///"))) as db:
        return [row[0] for row in db.execute("SELECT DISTINCT anchor FROM folds")]


async def test_running_summaries_go_when_a_checkpoint_covers_them(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    messages = history(8)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up)
        await agent.say(messages)
        await proxy.gateway._memory.calls.settle()
        assert len(anchors_of(tmp_path)) == 1
        await finished(proxy, agent, messages)
        await proxy.gateway._memory.calls.settle()
    assert anchors_of(tmp_path) == []


async def test_two_requests_start_it_once(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    gate = asyncio.Event()
    messages = history(8)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up)
        up.summary_replies.extend([Reply(text=SUMMARY.decode())] * 4)
        up.summary_replies.append(Reply(text=SUMMARY.decode(), gate=gate))
        await agent.say(messages)
        await up.wait_for(lambda: len(up.summaries) == 5, SECONDS)
        for _ in range(3):
            messages = longer(messages)
            await agent.say(messages)
        assert len(up.summaries) == 5
        gate.set()
        await finished(proxy, agent, messages)
    started = proxy.events.of_type("compaction_started")
    assert checks.reasons(started) == ["threshold", "background"]


async def test_no_text_of_a_session_is_in_an_event(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    messages = history(4)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up)
        await agent.say(messages)
        await finished(proxy, agent, messages)
        told = dumps([*proxy.events]).decode()
    for text in ("mark0n", "parser rejects", "nightly import"):
        assert text not in told
    assert isinstance(loads(told.encode()), list)


@pytest.mark.slow
@pytest.mark.skipif(servers.default_binary() is None, reason=servers.NO_SERVER)
async def test_another_replica_resumes_from_redis(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """One replica stops in the middle of its background; the other goes on from there."""
    messages = history(8)
    async with RedisServer(tmp_path / "redis") as redis:
        values: dict[str, Json] = {"store.url": redis.url, "store.timeout_ms": 3000}
        async with Running(up.base_url, tmp_path, **values) as one:
            agent = Agent(client, one.url, up)
            up.summary_replies.extend([Reply(text=SUMMARY.decode())] * 6 + [Reply(hang=True)])
            await agent.say(messages)
            await up.wait_for(lambda: not up.summary_replies, SECONDS)
        assert up.summaries[6].disconnected
        async with Running(up.base_url, tmp_path, **values) as two:
            agent = Agent(client, two.url, up)
            messages = longer(messages)
            assert (await agent.say(messages)).marks == ["reused"]
            await two.events.wait_until(
                lambda: bool(completed(two)) and is_whole(completed(two)[-1]), SECONDS
            )
    assert not set(marks_in(up.summaries[7:])) & set(marks_in(up.summaries[:6]))
