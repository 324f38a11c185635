"""An agent of the OpenAI Agents SDK: URL MODEL TASK whole|stream chat|responses.

It runs in an environment of its own, which the type checker does not see.
"""

import asyncio
import subprocess
import sys

from agents import (  # type: ignore[import-not-found]
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI


def run_step(command: str) -> str:
    """Run a command in a shell and return what it prints."""
    done = subprocess.run(command, shell=True, capture_output=True, encoding="utf-8", check=False)
    return done.stdout + done.stderr


async def main(url: str, model: str, task: str, mode: str, api: str) -> None:
    speaker = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}[api]
    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=url, api_key="sk-test", timeout=60) as client:
        agent = Agent(
            name="stepper",
            instructions="You work in a shell, step by step.",
            model=speaker(model=model, openai_client=client),
            tools=[function_tool(run_step)],
        )
        if mode == "stream":
            result = Runner.run_streamed(agent, task, max_turns=500)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, task, max_turns=500)
    sys.stdout.write(f"{result.final_output}\n")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
