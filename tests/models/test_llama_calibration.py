"""A real llama.cpp server and sessions of text that its small vocabulary makes much of."""

import random
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import JsonObject, as_objects, dumps, loads
from proxy.commands.model_server import model_server
from tests.builders import assistant, system, user
from tests.e2e.running import Running

pytestmark = pytest.mark.slow

WINDOW = 2048
TURNS = 11
_HAN = "在去年的会议上委员会决定把新桥的计划推迟到明年春天因为河水的水位一直没有下降"


def hex_dump(rng: random.Random) -> str:
    return "\n".join(f"{16 * n:04x}: {rng.randbytes(16).hex(' ')}" for n in range(4))


def chinese(rng: random.Random) -> str:
    return "".join(rng.choice(_HAN) for _ in range(90))


async def _post(http: aiohttp.ClientSession, url: str, body: JsonObject) -> JsonObject:
    async with http.post(url, data=dumps(body)) as reply:
        text = await reply.read()
        assert reply.status == 200, text
    found = loads(text)
    assert isinstance(found, dict)
    return found


async def _sent(http: aiohttp.ClientSession, url: str, body: bytes) -> tuple[int, bytes]:
    async with http.post(f"{url}/v1/chat/completions", data=body) as reply:
        return reply.status, await reply.read()


async def _counted(http: aiohttp.ClientSession, server: str, body: JsonObject) -> int:
    found = await _post(http, f"{server}/v1/chat/completions/input_tokens", body)
    tokens = found["input_tokens"]
    assert isinstance(tokens, int)
    return tokens


def _body(messages: list[JsonObject], *, stream: bool = False) -> JsonObject:
    return {
        "model": "smollm2",
        "messages": [*messages],
        "max_tokens": 4,
        "temperature": 0,
        "stream": stream,
    }


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", [hex_dump, chinese])
async def test_a_dense_session_never_overflows(
    tmp_path: Path, kind: Callable[[random.Random], str], stream: bool
) -> None:
    """Streams carry no usage here, but `timings`."""
    rng, messages = random.Random(4), [system("Say yes.")]
    async with (
        model_server(WINDOW) as server,
        Running(f"{server}/v1", tmp_path, **{"compaction.deadline_seconds": 120}) as fold,
        aiohttp.ClientSession() as http,
    ):
        for _ in range(TURNS):
            messages.append(user(kind(rng)))
            body = dumps(_body(messages, stream=stream))
            status, text = await _sent(http, fold.url, body)
            if status == 502:
                # The server closes a connection right after a stream; clients try again then.
                status, text = await _sent(http, fold.url, body)
            assert status == 200, text
            messages.append(assistant("Yes."))
    started = fold.events.of_type("compaction_started")
    assert started
    assert "overflow" not in {event["reason"] for event in started}
    for event in started:
        # What it took the request for is not far above the trigger, nor below it.
        tokens, trigger = event["tokens"], event["trigger"]
        assert isinstance(tokens, int)
        assert isinstance(trigger, int)
        assert trigger <= tokens <= 1.25 * trigger


@pytest.mark.parametrize("kind", [hex_dump, chinese])
async def test_near_the_trigger_the_server_is_asked(
    tmp_path: Path, kind: Callable[[random.Random], str]
) -> None:
    """A whole session at once, of a model that nothing is known of but for one small request."""
    async with (
        model_server(WINDOW) as server,
        Running(f"{server}/v1", tmp_path) as fold,
        aiohttp.ClientSession() as http,
    ):
        trigger = 0.85 * WINDOW
        small = [system("Say yes."), user(kind(random.Random(1)) + kind(random.Random(2)))]
        for _ in range(2):
            await _post(http, f"{fold.url}/v1/chat/completions", _body(small))
            small += [assistant("Yes."), user(kind(random.Random(3)) * 2)]
        rng, messages = random.Random(9), [system("Say yes.")]
        messages.append(user(kind(rng)))
        while await _counted(http, server, _body(messages)) < 0.96 * trigger:
            last = messages[-1]["content"]
            messages[-1]["content"] = f"{last}\n{kind(rng)[:40]}"
        counted = await _counted(http, server, _body(messages))
        answer = await _post(http, f"{fold.url}/v1/chat/completions", _body(messages))
    assert as_objects(answer["choices"])
    assert counted < trigger
    assert not fold.events.of_type("compaction_started")
