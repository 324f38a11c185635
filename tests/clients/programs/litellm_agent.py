"""An agent with the SDK of LiteLLM: URL MODEL TASK whole|stream.

It runs in an environment of its own, which the type checker does not see.
"""

import subprocess
import sys

import litellm  # type: ignore[import-not-found]
from pydantic import BaseModel

RUN_STEP = {
    "type": "function",
    "function": {
        "name": "run_step",
        "description": "Run a command in a shell and return what it prints.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}


class Arguments(BaseModel):
    command: str


def run(arguments: str) -> str:
    command = Arguments.model_validate_json(arguments).command
    done = subprocess.run(command, shell=True, capture_output=True, encoding="utf-8", check=False)
    return done.stdout + done.stderr


def main(url: str, model: str, task: str, mode: str) -> None:
    messages = [
        {"role": "system", "content": "You work in a shell, step by step."},
        {"role": "user", "content": task},
    ]
    while True:
        answer = litellm.completion(
            model=f"openai/{model}",
            api_base=url,
            api_key="sk-test",
            messages=messages,
            tools=[RUN_STEP],
            stream=mode == "stream",
            timeout=60,
        )
        if mode == "stream":
            answer = litellm.stream_chunk_builder([*answer], messages=messages)
        said = answer.choices[0].message
        if not said.tool_calls:
            sys.stdout.write(f"{said.content}\n")
            return
        messages.append(said)
        for call in said.tool_calls:
            output = run(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})


if __name__ == "__main__":
    main(*sys.argv[1:])
