"""An agent of Pydantic AI: URL MODEL TASK whole|stream chat|responses.

It runs in an environment of its own, which the type checker does not see.
"""

import subprocess
import sys
from collections.abc import AsyncIterable

from pydantic_ai import Agent  # type: ignore[import-not-found]
from pydantic_ai.models.openai import (  # type: ignore[import-not-found]
    OpenAIChatModel,
    OpenAIResponsesModel,
)
from pydantic_ai.providers.openai import OpenAIProvider  # type: ignore[import-not-found]
from pydantic_ai.usage import UsageLimits  # type: ignore[import-not-found]


def run_step(command: str) -> str:
    """Run a command in a shell and return what it prints."""
    done = subprocess.run(command, shell=True, capture_output=True, encoding="utf-8", check=False)
    return done.stdout + done.stderr


async def take(_context: object, events: AsyncIterable[object]) -> None:
    """Having a handler makes the agent stream."""
    async for _ in events:
        pass


def main(url: str, model: str, task: str, mode: str, api: str) -> None:
    speaker = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}[api]
    spoken = speaker(model, provider=OpenAIProvider(base_url=url, api_key="sk-test"))
    agent = Agent(spoken, instructions="You work in a shell, step by step.", tools=[run_step])
    result = agent.run_sync(
        task,
        usage_limits=UsageLimits(request_limit=500),
        event_stream_handler=take if mode == "stream" else None,
    )
    sys.stdout.write(f"{result.output}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
