"""Summaries of Responses sessions in whichever API the upstream speaks, and the official SDK."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import ResponseInputParam

from proxy.codec import Json, dumps
from tests import builders as b
from tests import items as i
from tests.e2e import checks
from tests.e2e.apis import CHAT, RESPONSES, Api, event, said
from tests.e2e.checks import Agent, Exchange, ItemAgent
from tests.e2e.running import Running
from tests.e2e.test_compaction_failures import FULL
from tests.upstream import CHAT_PATH, Recorded, Reply, ScriptedUpstream
from tests.upstream_responses import RESPONSES_PATH

WINDOW = 8192
KEEP: dict[str, Json] = {"server.keepalive_seconds": 0.05}
CHAT_ONLY, RESPONSES_ONLY = frozenset({CHAT.name}), frozenset({RESPONSES.name})


async def play_until(agent: Agent, compactions: int) -> Exchange:
    """Go on with the session until so many compactions were made; returns the last exchange.

    It begins shortly before the first one is due.
    """
    session = b.tool_session if agent.api is CHAT else i.tool_session
    for step in list(checks.steps(session(30, result_chars=2000)))[10 + len(agent.exchanges) :]:
        exchange = await agent.say(step)
        if len(checks.compactions(agent.exchanges)) == compactions:
            return exchange
    raise AssertionError("the session ended before it was compacted")


def asked(up: ScriptedUpstream) -> list[str]:
    """The paths of the summariser's calls."""
    return [request.path for request in up.summaries]


def spoken(call: Recorded) -> Api:
    return RESPONSES if call.path == RESPONSES_PATH else CHAT


# Which API


@pytest.mark.parametrize("stream", [False, True])
async def test_a_summary_is_asked_for_in_the_sessions_own_api(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, stream: bool
) -> None:
    """Of an upstream that speaks nothing else."""
    checks.make_strict(up, WINDOW)
    up.apis = RESPONSES_ONLY
    async with Running(up.base_url, tmp_path) as proxy:
        agent = ItemAgent(client, proxy.url, up, {"Authorization": "Bearer k"}, stream=stream)
        exchange = await play_until(agent, 2)
    checks.assert_fine(agent.exchanges, up)
    assert exchange.marks == ["compacted"]
    assert asked(up) == [RESPONSES_PATH] * 2
    assert [r.path for r in up.requests if r.path.endswith("completions")] == []
    for call in up.summaries:
        assert set(call.json) == RESPONSES.summary_members
        assert (call.json["store"], call.json["stream"]) == (False, True)
        assert RESPONSES.structure_of(call) == "json_schema"
        assert call.headers["Authorization"] == "Bearer k"
    assert up.stored.responses.keys() <= {f"resp_{n:032x}" for n in range(999)}
    completed = proxy.events.of_type("compaction_completed")
    assert [e for e in completed if "partial" in e or "extractive" in e] == []


async def test_an_upstream_that_summarises_in_chats_only(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """It is asked in vain once, not for each summary."""
    checks.make_strict(up, WINDOW)
    up.summary_apis = CHAT_ONLY
    async with Running(up.base_url, tmp_path) as proxy:
        agent = ItemAgent(client, proxy.url, up)
        await play_until(agent, 2)
    checks.assert_fine(agent.exchanges, up)
    assert asked(up) == [RESPONSES_PATH, CHAT_PATH, CHAT_PATH]
    assert [spoken(call).structure_of(call) for call in up.summaries] == ["json_schema"] * 3
    refused, same = (call.json[spoken(call).limits[0]] for call in up.summaries[:2])
    assert refused == same
    assert proxy.events.of_type("compaction_failed") == []


async def test_an_upstream_that_changes_its_api(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    up.summary_apis = CHAT_ONLY
    async with Running(up.base_url, tmp_path) as proxy:
        agent = ItemAgent(client, proxy.url, up)
        await play_until(agent, 1)
        up.summary_apis = RESPONSES_ONLY
        exchange = await play_until(agent, 2)
    assert exchange.marks == ["compacted"]
    assert asked(up) == [RESPONSES_PATH, CHAT_PATH, CHAT_PATH, RESPONSES_PATH]


async def test_a_chat_whose_summaries_are_written_in_the_other_api(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    up.summary_apis = RESPONSES_ONLY
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up)
        await play_until(agent, 2)
    checks.assert_fine(agent.exchanges, up)
    assert asked(up) == [CHAT_PATH, RESPONSES_PATH, RESPONSES_PATH]
    assert proxy.events.of_type("compaction_failed") == []


async def test_an_upstream_that_summarises_nowhere(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    up.summary_apis = frozenset()
    async with Running(up.base_url, tmp_path) as proxy:
        agent = ItemAgent(client, proxy.url, up)
        exchange = await play_until(agent, 1)
        failed = proxy.events.of_type("compaction_failed")
    checks.assert_fine(agent.exchanges, up)
    assert exchange.marks == ["compacted", "extractive"]
    assert checks.reasons(failed) == ["http_404"]
    assert asked(up) == [RESPONSES_PATH, CHAT_PATH]


async def test_another_model_summarises(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """In whichever API its upstream has, the usual one first."""
    values: dict[str, Json] = {"compaction.summarizer": "small"}
    up.window, up.apis = WINDOW, RESPONSES_ONLY
    async with Running(up.base_url, tmp_path, **values) as proxy:
        agent = ItemAgent(client, proxy.url, up)
        await play_until(agent, 1)
    checks.assert_fine(agent.exchanges, up)
    assert asked(up) == [CHAT_PATH, RESPONSES_PATH]
    assert [call.json["model"] for call in up.summaries] == ["small"] * 2


# Answers that only this API gives


ANSWERS: dict[str, tuple[Callable[[], Reply], list[str]]] = {
    "only in the last event": (
        lambda: Reply(chunks=[event("response.completed", response=said(FULL))]),
        [],
    ),
    "with a reasoning item": (lambda: Reply(text=FULL, reasoning="Hm."), []),
    "cut, but called complete": (
        lambda: Reply(raw_body=dumps(said(FULL[:240], usage={"output_tokens": 99_999}))),
        ["partial"],
    ),
    "incomplete and whole": (
        lambda: Reply(raw_body=dumps(said(FULL[:240], "incomplete"))),
        ["partial"],
    ),
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_usable_answers(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, name: str
) -> None:
    checks.make_strict(up, WINDOW)
    reply, marks = ANSWERS[name]
    async with Running(up.base_url, tmp_path) as proxy:
        agent = ItemAgent(client, proxy.url, up)
        up.summary_replies.append(reply())
        exchange = await play_until(agent, 1)
    checks.assert_fine(agent.exchanges, up)
    assert exchange.marks == ["compacted", *marks]
    assert "Repair the nightly import." in exchange.text
    assert len(up.summaries) == 1
    assert proxy.events.of_type("compaction_failed") == []


# The official SDK


@pytest.fixture
async def sdk(up: ScriptedUpstream, tmp_path: Path) -> AsyncIterator[AsyncOpenAI]:
    checks.make_strict(up, WINDOW)
    async with (
        Running(up.base_url, tmp_path, **KEEP) as proxy,
        AsyncOpenAI(base_url=proxy.url + "/v1", api_key="k", max_retries=0, timeout=10) as client,
    ):
        yield client


def long_input() -> ResponseInputParam:
    items: ResponseInputParam = [{"role": "user", "content": b.TASK}]
    for n in range(26):
        items += [
            {"type": "function_call", "call_id": f"c{n}", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{n}", "output": b.prose(1500, n)},
        ]
    return items


async def test_the_sdk_takes_whole_and_streamed_answers(
    up: ScriptedUpstream, sdk: AsyncOpenAI
) -> None:
    calls = [("c1", "weather", '{"city":"Oslo"}')]
    up.replies += [Reply(text="hello", reasoning="Hm."), Reply(text="one two three")]
    up.replies.append(Reply(text="", tool_calls=calls, custom_calls=[("c2", "patch", "*** x")]))
    whole = await sdk.responses.create(model="test-model", input="hi")
    assert (whole.output_text, whole.status) == ("hello", "completed")
    assert whole.usage is not None
    async with sdk.responses.stream(model="test-model", input="hi") as stream:
        final = await stream.get_final_response()
    assert final.output_text == "one two three"
    async with sdk.responses.stream(model="test-model", input="hi") as stream:
        kinds = [item.type for item in (await stream.get_final_response()).output]
    assert kinds == ["function_call", "custom_tool_call"]
    again = await sdk.responses.retrieve(whole.id)
    assert again.output_text == "hello"
    await sdk.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError):
        await sdk.responses.retrieve(whole.id)


async def test_the_sdk_waits_for_a_slow_compaction(up: ScriptedUpstream, sdk: AsyncOpenAI) -> None:
    up.summary_replies.append(Reply(text=FULL, delay=0.3))
    up.replies.append(Reply(text="done after all"))
    stream = await sdk.responses.create(model="test-model", input=long_input(), stream=True)
    events = [told async for told in stream]
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == "done after all"
    assert up.summaries
    assert up.violations == []


@pytest.mark.parametrize(
    "late", [Reply(status=400, text="late"), Reply(drop=True), Reply(status=502, raw_body=b"x")]
)
async def test_the_sdk_raises_what_comes_after_the_comments(
    up: ScriptedUpstream, sdk: AsyncOpenAI, late: Reply
) -> None:
    up.summary_replies.append(Reply(text=FULL, delay=0.3))
    up.replies.append(late)
    seen: list[str] = []
    stream = await sdk.responses.create(model="test-model", input=long_input(), stream=True)

    async def listen() -> None:
        async for told in stream:
            seen.append(told.type)

    with pytest.raises(openai.APIError) as caught:
        await listen()
    assert not isinstance(caught.value, openai.APIConnectionError)
    assert seen == ["response.created", "response.in_progress"]
    assert up.summaries


async def test_an_overflow_in_the_stream_is_the_sdks_error(sdk: AsyncOpenAI) -> None:
    """Of a request that is left alone."""
    stream = await sdk.responses.create(
        model="test-model",
        input=b.prose(60_000, 1),
        stream=True,
        extra_headers={"x-foldgate-bypass": "1"},
    )
    with pytest.raises(openai.APIError) as caught:
        [told async for told in stream]
    assert caught.value.code == "context_length_exceeded"
