"""Builders of Responses items and sessions; everything is deterministic."""

import base64
import random
from collections.abc import Iterable, Mapping, Sequence

from proxy.codec import Json, JsonObject, as_objects, as_text, dumps
from tests import builders as b


def user(content: str | Iterable[JsonObject]) -> JsonObject:
    said: Json = content if isinstance(content, str) else [*content]
    return {"type": "message", "role": "user", "content": said}


def developer(text: str) -> JsonObject:
    return {"type": "message", "role": "developer", "content": text}


def answer(text: str, id: str | None = None) -> JsonObject:
    """A message of the model, as it comes back."""
    part: JsonObject = {"type": "output_text", "text": text, "annotations": []}
    item: JsonObject = {"type": "message", "role": "assistant", "content": [part]}
    return item if id is None else {"id": id, **item, "status": "completed"}


def reasoning(name: str, text: str = "", sealed_bytes: int = 120) -> JsonObject:
    """A reasoning item `rs_<name>`; sealed unless `sealed_bytes` is 0."""
    summary: list[Json] = [{"type": "summary_text", "text": text}] if text else []
    item: JsonObject = {"id": f"rs_{name}", "type": "reasoning", "summary": summary}
    if sealed_bytes:
        blob = random.Random(name).randbytes(sealed_bytes)
        item["encrypted_content"] = base64.b64encode(blob).decode()
    return item


def call(id: str, name: str, arguments: str | Mapping[str, Json]) -> JsonObject:
    text = arguments if isinstance(arguments, str) else dumps(dict(arguments)).decode()
    item: JsonObject = {"id": f"fc_{id}", "type": "function_call", "status": "completed"}
    return {**item, "call_id": id, "name": name, "arguments": text}


def output(id: str, text: str | Iterable[JsonObject]) -> JsonObject:
    said: Json = text if isinstance(text, str) else [*text]
    return {"type": "function_call_output", "call_id": id, "output": said}


def custom_call(id: str, name: str, given: str) -> JsonObject:
    item: JsonObject = {"id": f"ctc_{id}", "type": "custom_tool_call", "status": "completed"}
    return {**item, "call_id": id, "name": name, "input": given}


def custom_output(id: str, text: str) -> JsonObject:
    return {"type": "custom_tool_call_output", "call_id": id, "output": text}


def from_chat(messages: Sequence[JsonObject], *, reasons: bool = True) -> list[JsonObject]:
    """The items of a chat session; `reasons` puts a reasoning item before each model output.

    System messages are left out: agents send `instructions`.
    """
    items: list[JsonObject] = []
    for number, message in enumerate(messages):
        role = as_text(message["role"])
        if role == "user":
            items.append(user(as_text(message["content"])))
        elif role == "tool":
            items.append(output(as_text(message["tool_call_id"]), as_text(message["content"])))
        elif role == "assistant":
            items += _model_output(message, number, reasons=reasons)
    return items


def _model_output(message: JsonObject, number: int, *, reasons: bool) -> list[JsonObject]:
    calls = as_objects(message.get("tool_calls"))
    text = as_text(message["content"])
    name = as_text(calls[0]["id"]) if calls else f"{number}"
    items = [reasoning(name)] if reasons else []
    if text:
        items.append(answer(text, f"msg_{name}"))
    for made in calls:
        function = made["function"]
        assert isinstance(function, dict)
        asked = as_text(function["name"]), as_text(function["arguments"])
        items.append(call(as_text(made["id"]), *asked))
    return items


def tool_session(
    steps: int, *, result_chars: int = 2000, seed: int = 0, reasons: bool = True
) -> list[JsonObject]:
    """One task, then `steps` times reasoning, a call and its output; ends with an output.

    The output of step n (from 0) begins with `builders.marker(seed, n)`.
    """
    session = b.tool_session(steps, result_chars=result_chars, seed=seed)
    return from_chat(session, reasons=reasons)


def turn_session(
    turns: int,
    calls_per_turn: int = 2,
    *,
    result_chars: int = 2000,
    seed: int = 0,
    parallel: bool = False,
) -> list[JsonObject]:
    """Whole turns, as `builders.turn_session` has them; ends with an answer."""
    session = b.turn_session(
        turns, calls_per_turn, result_chars=result_chars, seed=seed, parallel=parallel
    )
    return from_chat(session)


def body(given: str | Iterable[JsonObject], *, model: str = "test-model", **fields: Json) -> bytes:
    said: Json = given if isinstance(given, str) else [*given]
    return dumps({"model": model, "input": said, **fields})
