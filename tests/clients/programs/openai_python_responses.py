"""An agent with the official SDK for Python over the Responses API.

URL MODEL TASK whole|stream items|chain; with a chain, each request has what is new only and names
the response before.
"""

import subprocess
import sys
from typing import cast

from openai import OpenAI, omit
from openai.types.responses import FunctionToolParam, Response, ResponseInputItemParam
from pydantic import BaseModel

INSTRUCTIONS = "You work in a shell, step by step."
RUN_STEP: FunctionToolParam = {
    "type": "function",
    "name": "run_step",
    "description": "Run a command in a shell and return what it prints.",
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Arguments(BaseModel):
    command: str


def run(arguments: str) -> str:
    command = Arguments.model_validate_json(arguments).command
    done = subprocess.run(command, shell=True, capture_output=True, encoding="utf-8", check=False)
    return done.stdout + done.stderr


def main(url: str, model: str, task: str, mode: str, history: str) -> None:
    said: list[ResponseInputItemParam] = [{"role": "user", "content": task}]
    previous = ""
    with OpenAI(base_url=url, api_key="sk-test", timeout=60) as client:
        while True:
            answer = ask(client, model, said, previous, stream=mode == "stream")
            calls = [item for item in answer.output if item.type == "function_call"]
            if not calls:
                sys.stdout.write(f"{answer.output_text}\n")
                return
            outputs: list[ResponseInputItemParam] = [
                {
                    "type": "function_call_output",
                    "call_id": call.call_id,
                    "output": run(call.arguments),
                }
                for call in calls
            ]
            if history == "chain":
                said, previous = outputs, answer.id
            else:
                # As the documentation has it: the SDK's own objects go back.
                echo = cast("list[ResponseInputItemParam]", answer.output)
                said = [*said, *echo, *outputs]


def ask(
    client: OpenAI,
    model: str,
    said: list[ResponseInputItemParam],
    previous: str,
    *,
    stream: bool,
) -> Response:
    chain = previous or omit
    if not stream:
        return client.responses.create(
            model=model,
            instructions=INSTRUCTIONS,
            input=said,
            tools=[RUN_STEP],
            previous_response_id=chain,
        )
    with client.responses.stream(
        model=model,
        instructions=INSTRUCTIONS,
        input=said,
        tools=[RUN_STEP],
        previous_response_id=chain,
    ) as events:
        return events.get_final_response()


if __name__ == "__main__":
    main(*sys.argv[1:])
