"""Chains of responses against a real llama.cpp server, which keeps no response."""

from pathlib import Path

import openai
import pytest
from openai.types.responses import Response, ResponseInputItemParam

from proxy.codec import JsonObject
from proxy.commands.model_server import model_server
from tests.e2e.running import Running

pytestmark = pytest.mark.slow

WINDOW = 1024
STEPS = 60
TASK = "Look at each map of the atlas and say which of them shows the old harbour."


def note(step: int) -> str:
    return (
        f"On page {step} of the atlas there is another map, drawn by hand a long time ago, with "
        "rivers and towns and the roads between them. Remember it together with the others."
    )


async def ask(
    client: openai.AsyncOpenAI, text: str, after: str | None, *, stream: bool = False
) -> Response:
    message: ResponseInputItemParam = {"role": "user", "content": text}
    if not stream:
        return await client.responses.create(
            model="smollm2",
            input=[message],
            previous_response_id=after or openai.omit,
            max_output_tokens=4,
            temperature=0,
        )
    events = await client.responses.create(
        model="smollm2",
        input=[message],
        previous_response_id=after or openai.omit,
        max_output_tokens=4,
        temperature=0,
        stream=True,
    )
    last = [event async for event in events][-1]
    assert last.type == "response.completed"
    return last.response


def client_of(url: str, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=300)


async def walk(
    client: openai.AsyncOpenAI, steps: range, after: str | None
) -> tuple[list[str], list[int]]:
    """Ask one thing after the other; returns the ids and the prompt tokens of the replies."""
    ids, sizes = [], []
    for step in steps:
        text = f"{TASK}\n{note(step)}" if after is None else note(step)
        response = await ask(client, text, after, stream=step % 2 == 1)
        after = response.id
        ids.append(after)
        assert response.usage is not None
        sizes.append(response.usage.input_tokens)
    return ids, sizes


async def test_sixty_steps_a_restart_and_two_branches(tmp_path: Path) -> None:
    """Direct the second request fails; through the proxy the chain outlives the window."""
    settings: JsonObject = {
        "compaction.deadline_seconds": 120,
        "compaction.target": 0.3,
        "tenancy.source": "credential",
    }
    half = STEPS // 2
    async with model_server(WINDOW) as server:
        async with client_of(server) as direct:
            first = await ask(direct, TASK, None)
            with pytest.raises(openai.BadRequestError, match="previous_response_id"):
                await ask(direct, "And then?", first.id)
        async with Running(f"{server}/v1", tmp_path, **settings) as fold:
            async with client_of(fold.url) as client:
                ids, sizes = await walk(client, range(half), None)
            before = fold.events
        async with Running(f"{server}/v1", tmp_path, **settings) as fold:
            async with client_of(fold.url) as client:
                later, more = await walk(client, range(half, STEPS), ids[-1])
                branch, other = await walk(client, range(STEPS, STEPS + 3), ids[half // 2])
            async with client_of(fold.url, "another-key") as stranger:
                with pytest.raises(openai.BadRequestError, match="previous_response_id"):
                    await ask(stranger, "What did they say?", later[-1])
    sizes += more
    assert len({*ids, *later, *branch}) == STEPS + 3
    assert all(size < WINDOW for size in (*sizes, *other))
    # All of it is several windows, and each request but the first has a conversation in front.
    assert sum(sizes[step + 1] - sizes[step] for step in range(5)) / 5 * STEPS > 1.5 * WINDOW
    assert min(sizes[5:]) > 200
    completed = [*before, *fold.events]
    assert [e for e in completed if e["type"] == "compaction_completed"]
    reasons = {e["reason"] for e in completed if e["type"] == "compaction_skipped"}
    # Of the stranger alone; nobody else's chain was unknown.
    assert reasons <= {"server_side_state", "not_enough_history"}
    assert [e["type"] for e in before].count("compaction_skipped") == 0
