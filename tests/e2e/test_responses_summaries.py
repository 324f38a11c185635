"""Summaries of Responses sessions, in whichever API the upstream speaks, and slow ones."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import ResponseInputParam

from proxy.codec import Json, JsonObject, as_text, dumps, loads
from tests import builders as b
from tests import items as i
from tests.e2e import checks
from tests.e2e.checks import Agent, Exchange, ItemAgent
from tests.e2e.running import Running
from tests.upstream import CHAT, CHAT_PATH, RESPONSES, Recorded, Reply, ScriptedUpstream
from tests.upstream_responses import RESPONSES_PATH

WINDOW = 8192
FAST: dict[str, Json] = {
    "compaction.first_byte_seconds": 0.5,
    "compaction.idle_seconds": 0.5,
    "compaction.deadline_seconds": 20.0,
}
KEEP: dict[str, Json] = {"server.keepalive_seconds": 0.05}
CHAT_ONLY, RESPONSES_ONLY = frozenset({CHAT}), frozenset({RESPONSES})
FULL = dumps(
    {
        "goal": "Repair the nightly import.",
        "instructions": ["Keep the public interface."],
        "discoveries": ["The parser rejects an empty batch."],
        "accomplished": ["Read the importer."],
        "currentState": "Reading the scheduler.",
        "nextSteps": ["Run the tests."],
        "relevantFiles": ["src/importer/reads_1.py"],
    }
).decode()


async def play_until(agent: Agent, compactions: int) -> Exchange:
    """Go on with the session until so many compactions were made; returns the last exchange.

    It begins shortly before the first one is due.
    """
    if isinstance(agent, ItemAgent):
        steps = list(checks.item_steps(i.tool_session(30, result_chars=2000)))
    else:
        steps = list(checks.steps(b.tool_session(30, result_chars=2000)))
    for step in steps[10 + len(agent.exchanges) :]:
        exchange = await agent.say(step)
        if len(checks.compactions(agent.exchanges)) == compactions:
            return exchange
    raise AssertionError("the session ended before it was compacted")


def asked(up: ScriptedUpstream) -> list[str]:
    """The paths of the summariser's calls."""
    return [request.path for request in up.summaries]


def limit_of(call: Recorded) -> Json:
    return call.json["max_output_tokens" if call.path == RESPONSES_PATH else "max_tokens"]


def structure_of(call: Recorded) -> str:
    """Which form of structured output a call asked for."""
    text = call.json.get("text")
    wanted = text.get("format") if isinstance(text, dict) else call.json.get("response_format")
    return as_text(wanted["type"]) if isinstance(wanted, dict) else ""


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
        body = call.json
        assert set(body) == {"model", "input", "text", "max_output_tokens", "stream", "store"}
        assert (body["store"], body["stream"]) == (False, True)
        assert structure_of(call) == "json_schema"
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
    assert [structure_of(call) for call in up.summaries] == ["json_schema"] * 3
    assert len({str(limit_of(call)) for call in up.summaries}) == 1
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


@pytest.mark.parametrize(
    ("formats", "params", "forms"),
    [
        ({"json_schema"}, set(), ["json_schema", "json_object", "json_object"]),
        ({"json_schema", "json_object"}, set(), ["json_schema", "json_object", "", ""]),
        (set(), {"text"}, ["json_schema", "json_object", "", ""]),
        (set(), {"store"}, ["json_schema"] * 3),
        ({"json_schema", "json_object"}, {"store"}, ["json_schema", "json_object", "", "", ""]),
    ],
    ids=["no schema", "no format", "no text", "no store", "nothing"],
)
async def test_the_form_of_the_call_is_negotiated_once(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    formats: set[str],
    params: set[str],
    forms: list[str],
) -> None:
    checks.make_strict(up, WINDOW)
    up.reject_response_format, up.reject_params = formats, params
    async with Running(up.base_url, tmp_path) as proxy:
        agent = ItemAgent(client, proxy.url, up)
        await play_until(agent, 2)
    checks.assert_fine(agent.exchanges, up)
    assert [structure_of(call) for call in up.summaries] == forms
    assert set(asked(up)) == {RESPONSES_PATH}
    assert proxy.events.of_type("compaction_failed") == []


# Failures


def said(text: str, status: str = "completed", **fields: Json) -> JsonObject:
    """A whole response with one message."""
    part: JsonObject = {"type": "output_text", "text": text}
    message: JsonObject = {"type": "message", "role": "assistant", "content": [part]}
    return {"object": "response", "status": status, "output": [message], **fields}


def event(type_: str, **fields: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (type_.encode(), dumps({"type": type_, **fields}))


@dataclass(frozen=True)
class Failing:
    """Replies that cannot become a checkpoint."""

    reply: Callable[[], Reply]
    reason: str
    calls: int = 1
    values: dict[str, Json] = field(default_factory=dict)


FAILED: JsonObject = {"error": {"code": "server_error", "message": "overloaded"}}
FAILING: dict[str, Failing] = {
    "500": Failing(lambda: Reply(status=500, text="boom"), "http_500"),
    "hang": Failing(lambda: Reply(hang=True), "timeout"),
    "drop": Failing(lambda: Reply(drop=True), "broken_stream"),
    "silence": Failing(
        lambda: Reply(chunks=[event("response.created"), b""], gate=asyncio.Event()), "timeout"
    ),
    "empty": Failing(lambda: Reply(text=""), "empty", 2),
    "only reasoning": Failing(lambda: Reply(text="", reasoning=FULL), "empty", 2),
    "tool call": Failing(
        lambda: Reply(text="", tool_calls=[("c1", "read_file", '{"path":"src/a.py"}')]),
        "tool_call",
        2,
    ),
    "custom tool call": Failing(
        lambda: Reply(text="", custom_calls=[("c1", "patch", "*** x")]), "tool_call", 2
    ),
    "cut before anything": Failing(
        lambda: Reply(text='{"go', finish_reason="length"), "truncated", 2
    ),
    "an error in the stream": Failing(
        lambda: Reply(chunks=[event("response.created"), event("error", **FAILED)]),
        "error_in_stream",
    ),
    "a flat error in the stream": Failing(
        lambda: Reply(chunks=[event("error", code="server_error", message="overloaded")]),
        "error_in_stream",
    ),
    "failed in the stream": Failing(
        lambda: Reply(chunks=[event("response.failed", response={"status": "failed", **FAILED})]),
        "error_in_stream",
    ),
    "failed as a whole": Failing(
        lambda: Reply(raw_body=dumps({"object": "response", "status": "failed", **FAILED})),
        "error_in_stream",
    ),
    "an error with 200": Failing(lambda: Reply(raw_body=dumps(FAILED)), "malformed_reply", 2),
    "not SSE": Failing(lambda: Reply(chunks=[b"data: {not json\n\n"]), "malformed_reply", 2),
    "no end": Failing(lambda: Reply(chunks=[event("response.created")]), "broken_stream"),
}


@pytest.mark.parametrize("name", FAILING)
async def test_a_failing_summariser(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, name: str
) -> None:
    """An extract takes its place; the next compaction is a full one again."""
    failing = FAILING[name]
    checks.make_strict(up, WINDOW)
    async with Running(up.base_url, tmp_path, **{**FAST, **failing.values}) as proxy:
        agent = ItemAgent(client, proxy.url, up)
        up.summary_replies.extend(failing.reply() for _ in range(8))
        extract = await play_until(agent, 1)
        calls = len(up.summaries)
        up.summary_replies.clear()
        full = await play_until(agent, 2)
        failed = proxy.events.of_type("compaction_failed")
        completed = proxy.events.of_type("compaction_completed")
    checks.assert_fine(agent.exchanges, up)
    checks.assert_stable(agent.exchanges)
    checks.assert_in_every(b.TASK, agent.exchanges)
    assert checks.reasons(failed) == [failing.reason]
    assert calls == failing.calls
    assert extract.marks == ["compacted", "extractive"]
    assert completed[0]["extractive"] is True
    assert full.marks == ["compacted"]
    assert set(asked(up)) == {RESPONSES_PATH}
    for poison in ("boom", "overloaded", "not json"):
        assert poison not in extract.text


USABLE: dict[str, tuple[Callable[[], Reply], list[str]]] = {
    "not streamed": (lambda: Reply(raw_body=dumps(said(FULL))), []),
    "only in the last event": (
        lambda: Reply(chunks=[event("response.completed", response=said(FULL))]),
        [],
    ),
    "with reasoning": (lambda: Reply(text=FULL, reasoning="Hm."), []),
    "llama.cpp's events": (
        lambda: Reply(
            chunks=[
                event("response.output_text.delta", delta=FULL[:50]),
                b": ping\n\n",
                event("response.output_text.delta", delta=FULL[50:]),
                event("response.output_text.done", text=FULL),
                event("response.completed", response=said(FULL)),
            ]
        ),
        [],
    ),
    "incomplete": (lambda: Reply(text=FULL[:240], finish_reason="length"), ["partial"]),
    "no last event": (
        lambda: Reply(chunks=[event("response.output_text.delta", delta=FULL[:240])]),
        ["partial"],
    ),
    "cut connection": (lambda: Reply(text=FULL, cut=True), ["partial"]),
    "silence in the middle": (lambda: Reply(text=FULL, gate=asyncio.Event()), ["partial"]),
    "an error in the middle": (
        lambda: Reply(
            chunks=[
                event("response.output_text.delta", delta=FULL[:240]),
                event("error", **FAILED),
                event("response.failed", response={"status": "failed", **FAILED}),
            ]
        ),
        ["partial"],
    ),
    "cut, but called complete": (
        lambda: Reply(raw_body=dumps(said(FULL[:240], usage={"output_tokens": 99_999}))),
        ["partial"],
    ),
    "incomplete and whole": (
        lambda: Reply(raw_body=dumps(said(FULL[:240], "incomplete"))),
        ["partial"],
    ),
}


@pytest.mark.parametrize("name", USABLE)
async def test_usable_answers(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, name: str
) -> None:
    checks.make_strict(up, WINDOW)
    reply, marks = USABLE[name]
    async with Running(up.base_url, tmp_path, **FAST) as proxy:
        agent = ItemAgent(client, proxy.url, up)
        up.summary_replies.append(reply())
        exchange = await play_until(agent, 1)
    checks.assert_fine(agent.exchanges, up)
    assert exchange.marks == ["compacted", *marks]
    assert "Repair the nightly import." in exchange.text
    assert len(up.summaries) == 1
    assert proxy.events.of_type("compaction_failed") == []


# Streams that are kept waiting


LONG = i.tool_session(26, result_chars=1500)
COMMENT = b": compacting\n\n"


async def stream_of(
    client: aiohttp.ClientSession,
    proxy: Running,
    gate: asyncio.Event,
    items: Sequence[JsonObject] = LONG,
) -> tuple[int, bytes]:
    """Send a streaming request; open the gate after the second comment; read to the end."""
    body = i.body(items, stream=True)
    async with client.post(proxy.url + RESPONSES_PATH, data=body) as reply:
        assert reply.content_type == "text/event-stream"
        received = b""
        async for chunk in reply.content.iter_any():
            received += chunk
            if received.count(COMMENT) >= 2:
                gate.set()
        return reply.status, received


def events_of(received: bytes) -> list[JsonObject]:
    """The events of a stream; each is named as its type says."""
    found = []
    for block in received.replace(COMMENT, b"").split(b"\n\n"):
        if block:
            name, _, data = block.partition(b"\n")
            value = loads(data.removeprefix(b"data: "))
            assert isinstance(value, dict)
            assert name == b"event: " + as_text(value["type"]).encode()
            found.append(value)
    return found


async def test_a_stream_that_waits_hears_comments(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=FULL, gate=gate))
    async with Running(up.base_url, tmp_path, **KEEP) as proxy:
        status, received = await stream_of(client, proxy, gate)
        later = await ItemAgent(client, proxy.url, up, stream=True).say(LONG)
    assert status == 200
    assert received.startswith(COMMENT * 2)
    events = events_of(received)
    assert [e["sequence_number"] for e in events] == [*range(len(events))]
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert later.marks == ["reused"]
    assert later.arrived == up.main[0].body
    assert up.violations == []


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
    "a page": (Reply(status=503, raw_body=b"<html>"), "503", "server_error"),
    "no stream": (Reply(raw_body=b'{"id":"x","output":[]}'), "without a stream", "no_stream"),
    "dropped": (Reply(drop=True), "", ""),
}


@pytest.mark.parametrize("name", AFTER_THE_HEAD)
async def test_an_error_after_the_head_is_four_events(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, name: str
) -> None:
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    reply, text, code = AFTER_THE_HEAD[name]
    up.summary_replies.append(Reply(text=FULL, gate=gate))
    up.replies.append(reply)
    async with Running(up.base_url, tmp_path, **KEEP) as proxy:
        status, received = await stream_of(client, proxy, gate)
    assert status == 200
    events = events_of(received)
    kinds = ["response.created", "response.in_progress", "error", "response.failed"]
    assert [e["type"] for e in events] == kinds
    assert [e["sequence_number"] for e in events] == [0, 1, 2, 3]
    error, failed = events[2]["error"], events[3]["response"]
    assert isinstance(error, dict)
    assert isinstance(failed, dict)
    assert error.keys() >= {"type", "code", "message", "param"}
    assert text in as_text(error["message"])
    why = failed["error"]
    assert isinstance(why, dict)
    assert why["message"] == error["message"]
    assert isinstance(why["code"], str)
    assert why["code"] == code or not code
    assert failed["status"] == "failed"
    assert failed["model"] == "test-model"


async def test_a_refusal_after_the_head_is_an_event(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    up.window = None
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=FULL, gate=gate))
    items = [
        *i.turn_session(6, 1, result_chars=900),
        i.user("Now think."),
        i.reasoning("z", b.prose(30_000, 1)),
        i.call("z", "f", {}),
        i.output("z", "ok"),
    ]
    values: dict[str, Json] = {**KEEP, "limits.max_context_chars": 9000}
    async with Running(up.base_url, tmp_path, **values) as proxy:
        status, received = await stream_of(client, proxy, gate, items)
    assert status == 200
    error = events_of(received)[2]["error"]
    assert isinstance(error, dict)
    assert error["code"] == "context_length_exceeded"
    assert up.main == []


async def test_a_reply_that_breaks_off_after_the_head_does_not_look_complete(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    checks.make_strict(up, WINDOW)
    gate = asyncio.Event()
    up.summary_replies.append(Reply(text=FULL, gate=gate))
    up.replies.append(Reply(text="half an answer", cut=True))
    async with Running(up.base_url, tmp_path, **KEEP) as proxy:
        with pytest.raises(aiohttp.ClientError):
            await stream_of(client, proxy, gate)


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
    events = [event async for event in stream]
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == "done after all"
    assert len(up.summaries) == 1
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
        async for event in stream:
            seen.append(event.type)

    with pytest.raises(openai.APIError) as caught:
        await listen()
    assert not isinstance(caught.value, openai.APIConnectionError)
    assert seen == ["response.created", "response.in_progress"]
    assert len(up.summaries) == 1


async def test_an_overflow_in_the_stream_is_the_sdks_error(
    up: ScriptedUpstream, sdk: AsyncOpenAI
) -> None:
    """A chain is the upstream's; so is what it says of it."""
    first = await sdk.responses.create(model="test-model", input="hi")
    stream = await sdk.responses.create(
        model="test-model",
        input=b.prose(60_000, 1),
        previous_response_id=first.id,
        stream=True,
    )
    with pytest.raises(openai.APIError) as caught:
        [event async for event in stream]
    assert caught.value.code == "context_length_exceeded"
