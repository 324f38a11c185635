"""The official `openai` SDK works through the proxy as it does without it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from proxy.codec import Json, dumps
from tests import builders as b
from tests.e2e.running import Running
from tests.upstream import Reply, ScriptedUpstream

MODEL = "test-model"
HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
WEATHER: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]


class Connect(Protocol):
    """Makes a client of the running proxy."""

    def __call__(self, retries: int = 0) -> AsyncOpenAI: ...


@pytest.fixture
async def up() -> AsyncIterator[ScriptedUpstream]:
    async with ScriptedUpstream() as upstream:
        yield upstream


@pytest.fixture
async def fold(up: ScriptedUpstream, tmp_path: Path) -> AsyncIterator[Running]:
    settings: dict[str, Json] = {
        "upstream.context_window": 8000,
        "server.keepalive_seconds": 0.05,
        "upstream.idle_seconds": 5,
    }
    async with Running(up.base_url, tmp_path, **settings) as running:
        yield running


@pytest.fixture
async def connect(fold: Running) -> AsyncIterator[Connect]:
    clients: list[AsyncOpenAI] = []

    def make(retries: int = 0) -> AsyncOpenAI:
        url = fold.url + "/v1"
        client = AsyncOpenAI(base_url=url, api_key="sk-test", max_retries=retries, timeout=10)
        clients.append(client)
        return client

    yield make
    for client in clients:
        await client.close()


def long_session() -> list[ChatCompletionMessageParam]:
    session: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": b.SYSTEM},
        {"role": "user", "content": b.TASK},
    ]
    for number in range(20):
        call_id = b.call_id(0, number)
        session += [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": call_id,
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city":"Oslo"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": call_id, "content": b.prose(2000, number)},
        ]
    return session


async def streamed(
    client: AsyncOpenAI, messages: list[ChatCompletionMessageParam]
) -> tuple[str, list[str]]:
    """The text and the finish reasons of a streamed answer."""
    text, reasons = "", []
    async with await client.chat.completions.create(
        model=MODEL, messages=messages, stream=True
    ) as stream:
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasons += [choice.finish_reason] if choice.finish_reason else []
    return text, [str(reason) for reason in reasons]


async def test_a_whole_answer(up: ScriptedUpstream, connect: Connect) -> None:
    up.replies.append(Reply(text="hello"))
    answer = await connect().chat.completions.create(model=MODEL, messages=HI)
    assert answer.choices[0].message.content == "hello"
    assert answer.usage is not None
    assert answer.usage.total_tokens > 0
    assert up.main[0].headers["Authorization"] == "Bearer sk-test"


async def test_a_streamed_answer(up: ScriptedUpstream, connect: Connect) -> None:
    up.replies.append(Reply(text="one two three"))
    assert await streamed(connect(), HI) == ("one two three", ["stop"])


async def test_usage_of_a_stream(up: ScriptedUpstream, connect: Connect) -> None:
    async with await connect().chat.completions.create(
        model=MODEL, messages=HI, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None


@pytest.mark.parametrize("stream", [True, False])
async def test_tool_calls(up: ScriptedUpstream, connect: Connect, stream: bool) -> None:
    calls = [("c1", "weather", '{"city":"Oslo"}'), ("c2", "weather", '{"city":"Bergen"}')]
    up.replies.append(Reply(text="", tool_calls=calls))
    completions = connect().chat.completions
    if stream:
        async with completions.stream(model=MODEL, messages=HI, tools=WEATHER) as events:
            message = (await events.get_final_completion()).choices[0].message
        parsed = [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or []]
        assert parsed == calls
        return
    answer = await completions.create(model=MODEL, messages=HI, tools=WEATHER)
    functions = [c for c in answer.choices[0].message.tool_calls or [] if c.type == "function"]
    assert [(c.id, c.function.name, c.function.arguments) for c in functions] == calls


def test_the_synchronous_client(tmp_path: Path) -> None:
    def talk(url: str) -> tuple[str | None, str]:
        with OpenAI(base_url=url, api_key="sk-test", max_retries=0, timeout=10) as client:
            whole = client.chat.completions.create(model=MODEL, messages=HI)
            with client.chat.completions.create(model=MODEL, messages=HI, stream=True) as stream:
                pieces = [c.choices[0].delta.content or "" for c in stream if c.choices]
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve("none")
            assert [model.id for model in client.models.list()] == [MODEL]
            return whole.choices[0].message.content, "".join(pieces)

    async def run() -> tuple[str | None, str]:
        async with ScriptedUpstream() as up, Running(up.base_url, tmp_path) as fold:
            return await asyncio.to_thread(talk, fold.url + "/v1")

    assert asyncio.run(run()) == ("ok 1", "ok 2")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (404, openai.NotFoundError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_an_upstreams_error_is_the_same_exception(
    up: ScriptedUpstream,
    connect: Connect,
    status: int,
    expected: type[openai.APIStatusError],
    stream: bool,
) -> None:
    body = dumps({"error": {"message": "m", "type": "t", "param": "p", "code": "some_code"}})
    up.replies.append(
        Reply(status=status, raw_body=body, headers={"x-request-id": "req_1", "Retry-After": "9"})
    )
    client = connect()
    asking = (
        streamed(client, HI) if stream else client.chat.completions.create(model=MODEL, messages=HI)
    )
    with pytest.raises(expected) as caught:
        await asking
    error = caught.value
    assert error.status_code == status
    assert (error.code, error.param, error.type) == ("some_code", "p", "t")
    assert error.request_id == "req_1"
    assert error.response.headers["Retry-After"] == "9"


async def test_an_unreachable_upstream_is_an_internal_server_error(
    up: ScriptedUpstream, connect: Connect
) -> None:
    await up.stop()
    with pytest.raises(openai.InternalServerError) as caught:
        await connect().chat.completions.create(model=MODEL, messages=HI)
    assert caught.value.status_code == 502
    assert caught.value.code == "upstream_unreachable"


async def test_a_cut_stream_is_an_error(up: ScriptedUpstream, connect: Connect) -> None:
    up.replies.append(Reply(text="one two three four", cut=True))
    with pytest.raises((openai.APIError, OSError)) as caught:
        await streamed(connect(), HI)
    assert "sk-test" not in str(caught.value)


@pytest.mark.parametrize("status", [429, 503])
async def test_the_sdk_retries_when_the_upstream_asks_for_it(
    up: ScriptedUpstream, connect: Connect, status: int
) -> None:
    up.replies += [
        Reply(status=status, text="busy", headers={"retry-after-ms": "10"}),
        Reply(text="now"),
    ]
    answer = await connect(retries=2).chat.completions.create(model=MODEL, messages=HI)
    assert answer.choices[0].message.content == "now"
    assert len(up.main) == 2


async def test_the_sdk_does_not_retry_what_cannot_help(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    """The limit of characters refuses with the code that clients know."""
    settings: dict[str, Json] = {"limits.max_context_chars": 8000, "compaction.auto": False}
    folder = tmp_path / "limited"
    folder.mkdir()
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": b.prose(20_000)},
        *HI,
    ]
    async with (
        Running(up.base_url, folder, **settings) as fold,
        AsyncOpenAI(base_url=fold.url + "/v1", api_key="k", max_retries=2) as client,
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model=MODEL, messages=messages)
    assert caught.value.code == "context_length_exceeded"
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert up.main == []


async def test_a_draining_proxy_is_tried_again(
    up: ScriptedUpstream, fold: Running, connect: Connect
) -> None:
    fold.gateway.draining = True
    with pytest.raises(openai.InternalServerError) as caught:
        await connect().chat.completions.create(model=MODEL, messages=HI)
    fold.gateway.draining = False
    assert caught.value.status_code == 503
    assert caught.value.response.headers["Retry-After"] == "5"
    answer = await connect().chat.completions.create(model=MODEL, messages=HI)
    assert answer.choices[0].message.content == "ok 1"


async def test_comments_during_a_slow_compaction_do_not_disturb(
    up: ScriptedUpstream, fold: Running, connect: Connect
) -> None:
    up.summary_replies.append(
        Reply(text='{"goal":"Repair the nightly import of src/cache"}', delay=0.4)
    )
    up.replies.append(Reply(text="done after all"))
    assert await streamed(connect(), long_session()) == ("done after all", ["stop"])
    assert await fold.wait_event("compaction_completed")
    assert up.violations == []
    assert len(up.main[0].body) < 20_000


@pytest.mark.parametrize("late", [Reply(status=400, text="late"), Reply(drop=True)])
async def test_an_error_after_comments_is_an_exception(
    up: ScriptedUpstream, fold: Running, connect: Connect, late: Reply
) -> None:
    up.summary_replies.append(Reply(text='{"goal":"Repair the nightly import"}', delay=0.4))
    up.replies.extend([late] * 3)
    with pytest.raises(openai.APIError) as caught:
        await streamed(connect(), long_session())
    assert not isinstance(caught.value, openai.APIConnectionError)
    assert await fold.wait_event("compaction_completed")
