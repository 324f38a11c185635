"""An agent with the official SDK for Python: URL MODEL TASK whole|stream."""

import subprocess
import sys

from openai import OpenAI
from openai.types.chat import (
    ChatCompletionMessage,
    ChatCompletionMessageParam,
    ChatCompletionToolParam,
)
from pydantic import BaseModel

RUN_STEP: ChatCompletionToolParam = {
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
    messages: list[ChatCompletionMessageParam] = [
        {"role": "system", "content": "You work in a shell, step by step."},
        {"role": "user", "content": task},
    ]
    with OpenAI(base_url=url, api_key="sk-test", timeout=60) as client:
        while True:
            said = ask(client, model, messages, stream=mode == "stream")
            calls = [call for call in said.tool_calls or [] if call.type == "function"]
            if not calls:
                sys.stdout.write(f"{said.content}\n")
                return
            messages.append(
                {
                    "role": "assistant",
                    "content": said.content,
                    "tool_calls": [
                        {
                            "id": call.id,
                            "type": "function",
                            "function": {
                                "name": call.function.name,
                                "arguments": call.function.arguments,
                            },
                        }
                        for call in calls
                    ],
                }
            )
            for call in calls:
                output = run(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": output})


def ask(
    client: OpenAI, model: str, messages: list[ChatCompletionMessageParam], *, stream: bool
) -> ChatCompletionMessage:
    completions = client.chat.completions
    if not stream:
        answer = completions.create(model=model, messages=messages, tools=[RUN_STEP])
        return answer.choices[0].message
    with completions.stream(model=model, messages=messages, tools=[RUN_STEP]) as events:
        return events.get_final_completion().choices[0].message


if __name__ == "__main__":
    main(*sys.argv[1:])
