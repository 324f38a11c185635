"""An agent of LangChain and LangGraph: URL MODEL TASK whole|stream chat|responses.

It runs in an environment of its own, which the type checker does not see.
"""

import subprocess
import sys

from langchain.agents import create_agent  # type: ignore[import-not-found]
from langchain_openai import ChatOpenAI  # type: ignore[import-not-found]


def run_step(command: str) -> str:
    """Run a command in a shell and return what it prints."""
    done = subprocess.run(command, shell=True, capture_output=True, encoding="utf-8", check=False)
    return done.stdout + done.stderr


def main(url: str, model: str, task: str, mode: str, api: str) -> None:
    streaming = mode == "stream"
    chat = ChatOpenAI(
        model=model,
        base_url=url,
        api_key="sk-test",
        streaming=streaming,
        timeout=60,
        use_responses_api=api == "responses",
    )
    agent = create_agent(chat, [run_step], system_prompt="You work in a shell, step by step.")
    asked = {"messages": [{"role": "user", "content": task}]}
    limits = {"recursion_limit": 500}
    if streaming:
        *_, last = agent.stream(asked, limits, stream_mode="values")
    else:
        last = agent.invoke(asked, limits)
    sys.stdout.write(f"{last['messages'][-1].text}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
