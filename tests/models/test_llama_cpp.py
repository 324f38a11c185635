"""A long session against a real llama.cpp server with a real small model."""

from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionMessageParam

from proxy.commands.model_server import model_server
from tests import builders
from tests.e2e.running import Running

pytestmark = pytest.mark.slow

WINDOW = 1024
STEPS = 14
TASK = "Find out why the nightly import drops rows, and fix it without touching the schema."


def steps() -> list[list[ChatCompletionMessageParam]]:
    """The requests of one growing agent session."""
    messages = builders.tool_session(STEPS, task=TASK, result_chars=320, system="You fix code.")
    ends = [2, *range(4, len(messages) + 1, 2)]
    return [messages[:end] for end in ends]  # type: ignore[misc]


async def ask(
    client: openai.AsyncOpenAI, messages: list[ChatCompletionMessageParam]
) -> ChatCompletion:
    return await client.chat.completions.create(
        model="smollm2", messages=messages, max_tokens=8, temperature=0
    )


async def test_a_session_outlives_its_window(tmp_path: Path) -> None:
    """Direct it dies of the window; through the proxy every step is answered."""
    async with model_server(WINDOW) as server:
        direct = openai.AsyncOpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.BadRequestError) as overflow:
            await ask(direct, steps()[-1])
        assert overflow.value.type == "exceed_context_size_error"
        async with Running(
            f"{server}/v1", tmp_path, **{"compaction.deadline_seconds": 120}
        ) as fold:
            client = openai.AsyncOpenAI(
                base_url=f"{fold.url}/v1", api_key="none", max_retries=0, timeout=300
            )
            usages = [(await ask(client, messages)).usage for messages in steps()]
            again = await ask(client, steps()[-1])
            await client.close()
        await direct.close()
    completed = fold.events.of_type("compaction_completed")
    assert completed
    assert all(u is not None and u.prompt_tokens < WINDOW for u in usages)
    assert fold.events.of_type("compaction_started")[0]["window_source"] == "models"
    # A model of 135M parameters writes poor summaries, but it writes them itself.
    assert any("extractive" not in event for event in completed)
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    # The rewritten prefix is stable, so the server's prompt cache holds nearly all of it.
    cached = again.usage.prompt_tokens_details.cached_tokens or 0
    assert cached >= again.usage.prompt_tokens - 8


async def test_a_streamed_session_in_one_of_two_slots(tmp_path: Path) -> None:
    async with model_server(512, slots=2) as server, Running(f"{server}/v1", tmp_path) as fold:
        client = openai.AsyncOpenAI(base_url=f"{fold.url}/v1", api_key="none", max_retries=0)
        for messages in steps()[:7]:
            # Without include_usage the server reports only its own `timings`.
            stream = await client.chat.completions.create(
                model="smollm2", messages=messages, max_tokens=4, stream=True
            )
            assert [chunk async for chunk in stream]
        await client.close()
    started = fold.events.of_type("compaction_started")
    assert started[0]["window"] == 512
