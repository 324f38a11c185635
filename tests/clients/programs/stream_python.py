"""Reads one streamed answer with the official SDK: URL MODEL sdk chat|responses FILE.

The file holds the conversation. Prints the text, or the error that it ended with, as JSON.
"""

import sys
from pathlib import Path
from typing import cast

import openai
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam
from openai.types.responses import ResponseInputParam, ResponseTextDeltaEvent
from pydantic import BaseModel, TypeAdapter

from proxy.codec import dumps

_MESSAGES = TypeAdapter(list[dict[str, str]])


class Seen(BaseModel):
    text: str = ""
    error: str | None = None


def read(client: OpenAI, model: str, api: str, messages: list[dict[str, str]]) -> str:
    text = ""
    if api == "chat":
        said = cast("list[ChatCompletionMessageParam]", messages)
        for chunk in client.chat.completions.create(model=model, messages=said, stream=True):
            text += chunk.choices[0].delta.content or ""
    else:
        items = cast("ResponseInputParam", messages)
        for event in client.responses.create(model=model, input=items, stream=True):
            if isinstance(event, ResponseTextDeltaEvent):
                text += event.delta
    return text


def main(url: str, model: str, _: str, api: str, file: str) -> None:
    messages = _MESSAGES.validate_json(Path(file).read_bytes())
    with OpenAI(base_url=url, api_key="sk-test", timeout=60, max_retries=2) as client:
        try:
            seen = Seen(text=read(client, model, api, messages))
        except openai.APIError as error:
            seen = Seen(error=error.message)
    sys.stdout.write(f"{dumps(seen.model_dump()).decode()}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
