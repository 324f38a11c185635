"""A real llama.cpp server at the edge of its window, and a session that lives there."""

from pathlib import Path

import aiohttp
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from proxy.codec import JsonObject, dumps, loads
from proxy.commands.model_server import model_server
from proxy.upstream.overflow import classify
from tests.e2e.running import Running

pytestmark = pytest.mark.slow

EDGE = 512
WINDOW = 2048
TURNS = 40


def body_of(words: int, *, stream: bool) -> JsonObject:
    message: JsonObject = {"role": "user", "content": "Repeat: " + "word " * words + "end."}
    return {"model": "smollm2", "messages": [message], "max_tokens": 1, "stream": stream}


async def counted(http: aiohttp.ClientSession, url: str, body: JsonObject) -> int:
    """How many tokens the server itself counts for a request."""
    async with http.post(f"{url}/v1/chat/completions/input_tokens", data=dumps(body)) as reply:
        found = loads(await reply.read())
    assert isinstance(found, dict)
    tokens = found["input_tokens"]
    assert isinstance(tokens, int)
    return tokens


async def of_tokens(http: aiohttp.ClientSession, url: str, tokens: int, *, stream: bool) -> bytes:
    """A request of exactly so many tokens."""
    words = tokens - await counted(http, url, body_of(0, stream=stream))
    for tried in range(words - 3, words + 4):
        body = body_of(tried, stream=stream)
        if await counted(http, url, body) == tokens:
            return dumps(body)
    raise AssertionError(f"no text makes a prompt of {tokens} tokens")


@pytest.mark.parametrize("slots", [1, 2])
async def test_around_the_edge(tmp_path: Path, slots: int) -> None:
    """The server refuses from its window on; the proxy lets no client see that."""
    async with (
        model_server(EDGE, slots=slots) as server,
        Running(f"{server}/v1", tmp_path) as fold,
        aiohttp.ClientSession() as http,
    ):
        for stream in (False, True):
            for tokens in (EDGE - 1, EDGE, EDGE + 1):
                body = await of_tokens(http, server, tokens, stream=stream)
                async with http.post(f"{server}/v1/chat/completions", data=body) as direct:
                    text = await direct.read()
                found = classify(direct.status, text)
                if tokens < EDGE:
                    assert (direct.status, found) == (200, None)
                else:
                    assert direct.status == 400
                    assert found is not None
                    assert (found.kind, found.prompt, found.limit) == ("input", tokens, EDGE)
                async with http.post(f"{fold.url}/v1/chat/completions", data=body) as through:
                    assert through.status == 200, await through.read()
                    assert b"choices" in await through.read()


async def test_forty_turns(tmp_path: Path) -> None:
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": "You keep notes of a long walk."}
    ]
    async with (
        model_server(WINDOW) as server,
        Running(f"{server}/v1", tmp_path, **{"compaction.deadline_seconds": 120}) as fold,
        openai.AsyncOpenAI(
            base_url=f"{fold.url}/v1", api_key="none", max_retries=0, timeout=300
        ) as client,
    ):
        for turn in range(TURNS):
            text = (
                f"On day {turn} we crossed a wide valley with a river and an old stone bridge, and "
                "in the evening we came to a village whose people gave us bread and showed us the "
                "way over the next pass. " * 2
            )
            messages.append({"role": "user", "content": text})
            answer = await client.chat.completions.create(
                model="smollm2", messages=messages, max_tokens=8, temperature=0
            )
            said = answer.choices[0].message.content or "Yes."
            messages.append({"role": "assistant", "content": said})
            assert answer.usage is not None
            assert answer.usage.prompt_tokens < WINDOW
    started = fold.events.of_type("compaction_started")
    assert len(started) >= 2
    assert [event["reason"] for event in started].count("overflow") <= 1
