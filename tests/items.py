"""Builders of Responses items, bodies and sessions; everything is deterministic."""

import base64
import hashlib
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from proxy.codec import Json, JsonObject, as_objects, as_text, dumps
from tests import builders as b


def easy(role: str, content: str | Iterable[JsonObject], **extra: Json) -> JsonObject:
    """A message without `type`, as most clients write it."""
    return {"role": role, "content": content if isinstance(content, str) else [*content], **extra}


def message(role: str, text: str, **extra: Json) -> JsonObject:
    return {"type": "message", "role": role, "content": [text_part(text)], **extra}


def user(content: str | Iterable[JsonObject]) -> JsonObject:
    return {"type": "message", **easy("user", content)}


def developer(text: str) -> JsonObject:
    return {"type": "message", **easy("developer", text)}


def answer(text: str, id: str = "msg_1", **extra: Json) -> JsonObject:
    """A message of the model, as it comes back."""
    part: JsonObject = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item: JsonObject = {"id": id, "type": "message", "role": "assistant", "content": [part]}
    return {**item, "status": "completed", **extra}


def text_part(text: str) -> JsonObject:
    return {"type": "input_text", "text": text}


def image_part(url: str, **extra: Json) -> JsonObject:
    return {"type": "input_image", "image_url": url, **extra}


IMAGE = image_part(b.data_url(b.png(280, 140, 64)))


def reasoning(name: str = "1", text: str = "", sealed_bytes: int = 120) -> JsonObject:
    """A reasoning item `rs_<name>`; sealed unless `sealed_bytes` is 0."""
    summary: list[Json] = [{"type": "summary_text", "text": text}] if text else []
    item: JsonObject = {"id": f"rs_{name}", "type": "reasoning", "summary": summary}
    if sealed_bytes:
        blob = random.Random(name).randbytes(sealed_bytes)
        item["encrypted_content"] = base64.b64encode(blob).decode()
    return item


def call(
    id: str, name: str = "read_file", arguments: str | Mapping[str, Json] = "{}", **extra: Json
) -> JsonObject:
    text = arguments if isinstance(arguments, str) else dumps(dict(arguments)).decode()
    item: JsonObject = {"id": f"fc_{id}", "type": "function_call", "status": "completed"}
    return {**item, "call_id": id, "name": name, "arguments": text, **extra}


def output(id: str | None, content: str | Iterable[JsonObject], **extra: Json) -> JsonObject:
    """The output of a function call; without an id of one that the tool began by itself."""
    item: JsonObject = {"type": "function_call_output", **({"call_id": id} if id else {})}
    return {**item, "output": content if isinstance(content, str) else [*content], **extra}


def custom_call(id: str, name: str, given: str) -> JsonObject:
    item: JsonObject = {"id": f"ctc_{id}", "type": "custom_tool_call", "status": "completed"}
    return {**item, "call_id": id, "name": name, "input": given}


def custom_output(id: str, text: str) -> JsonObject:
    return {"type": "custom_tool_call_output", "call_id": id, "output": text}


def pair(kind: str, id: str, given: str, result: str) -> tuple[JsonObject, JsonObject]:
    """A call of any kind and its output."""
    command: list[Json] = [given]
    match kind:
        case "function":
            return call(id, "read_file", {"path": given}), output(id, result)
        case "custom":
            return custom_call(id, "sh", given), custom_output(id, result)
        case "computer":
            first: JsonObject = {"action": {"type": "type", "text": given}}
            first["pending_safety_checks"] = []
            shot: JsonObject = {"type": "computer_screenshot", "image_url": IMAGE["image_url"]}
            second: JsonObject = {"output": shot}
        case "local_shell":
            first = {"action": {"type": "exec", "command": command, "env": {}}}
            second = {"output": result}
        case "shell":
            first = {"action": {"commands": command, "timeout_ms": 1000}}
            ended: JsonObject = {"type": "exit", "exit_code": 0}
            streams: JsonObject = {"stdout": result, "stderr": "", "outcome": ended}
            second = {"output": [streams]}
        case _:
            operation: JsonObject = {"type": "update_file", "path": "src/a.py", "diff": given}
            first, second = {"operation": operation}, {"status": "completed", "output": result}
    key = "id" if kind == "local_shell" else "call_id"
    return (
        {"type": f"{kind}_call", "id": f"item_{id}", "call_id": id, **first},
        {"type": f"{kind}_call_output", key: id, **second},
    )


PAIRS = ("function", "custom", "computer", "local_shell", "shell", "apply_patch")


def program(id: str, inner: Iterable[JsonObject], result: str) -> list[JsonObject]:
    """A program, the calls that it made, and what came of it."""
    start: JsonObject = {"type": "program", "id": f"pg_{id}", "call_id": id}
    start |= {"code": "await tools.read_file()", "fingerprint": "opaque=="}
    caller: JsonObject = {"type": "program", "caller_id": id}
    nested = [{**item, "caller": caller} for item in inner]
    return [start, *nested, {"type": "program_output", "call_id": id, "result": result}]


def approval(id: str, *, approve: bool, result: str = "done") -> list[JsonObject]:
    """An MCP call that the user was asked about."""
    asked: JsonObject = {"type": "mcp_approval_request", "id": id, "server_label": "docs"}
    asked |= {"name": "delete", "arguments": '{"page": 1}'}
    said: JsonObject = {"type": "mcp_approval_response", "approval_request_id": id}
    said |= {"approve": approve}
    done = [mcp_call(result, approval_request_id=id)] if approve else []
    return [asked, said, *done]


def mcp_call(result: str, **extra: Json) -> JsonObject:
    item: JsonObject = {"type": "mcp_call", "id": "mcp_1", "server_label": "docs"}
    return {**item, "name": "search", "arguments": '{"q": "x"}', "output": result, **extra}


def tool_search(id: str | None) -> list[JsonObject]:
    """A search for tools; without an id it was run on the server."""
    where = "client" if id else "server"
    head: JsonObject = {"call_id": id, "execution": where}
    tools: list[Json] = [{"type": "function", "name": "found", "parameters": {}}]
    return [
        {"type": "tool_search_call", "id": "tsc_1", "arguments": {"query": "x"}, **head},
        {"type": "tool_search_output", "id": "tso_1", "tools": tools, **head},
    ]


def self_contained(result: str) -> list[JsonObject]:
    """What the model and the server did between themselves."""
    found: list[Json] = [{"file_id": "f", "text": result}]
    printed: list[Json] = [{"type": "logs", "logs": result}]
    queries: list[Json] = ["x"]
    search: JsonObject = {"type": "search", "query": "x"}
    return [
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": search},
        {"type": "file_search_call", "id": "fs_1", "queries": queries, "results": found},
        {
            "type": "code_interpreter_call",
            "id": "ci_1",
            "code": "1",
            "container_id": "c",
            "outputs": printed,
        },
        {
            "type": "image_generation_call",
            "id": "ig_1",
            "result": b.data_url(b.png(280, 140)).partition(",")[2],
        },
        mcp_call(result),
    ]


COMPACTIONS: Sequence[JsonObject] = (
    {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAA" * 40},
    {"type": "compaction_summary", "encrypted_content": "gAAAB" * 40},
    {"type": "context_compaction", "encrypted_content": "gAAAC" * 40},
)
_TOOLS: list[Json] = [{"type": "function", "name": "late", "parameters": {}}]
DEFINITIONS: Sequence[JsonObject] = (
    {"type": "additional_tools", "role": "developer", "tools": _TOOLS},
    {"type": "configuration_update", "reasoning": {"effort": "high"}},
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "docs", "tools": _TOOLS},
)
UNKNOWN: Sequence[JsonObject] = (
    {"type": "agent_message", "text": "from another agent"},
    {"type": "ghost_snapshot", "ghost_commit": {"id": "abc"}},
    {"type": "other"},
)
TRIGGER: JsonObject = {"type": "compaction_trigger"}
REFERENCE: JsonObject = {"type": "item_reference", "id": "msg_123"}


def from_chat(messages: Sequence[JsonObject], *, sealed_bytes: int = 120) -> list[list[JsonObject]]:
    """The items of each message of a chat, in an agent's spelling.

    What has a `type` is an item already. A system message in front has none: it goes into
    `instructions`. Each model output begins with a reasoning item unless `sealed_bytes` is 0. Ids
    are made of what an output says, so they stay the same in a branch of the chat.
    """
    seen: Counter[str] = Counter()
    items: list[list[JsonObject]] = []
    for number, said in enumerate(messages):
        if "type" in said:
            items.append([said])
        elif said["role"] == "assistant":
            name = hashlib.sha1(dumps(said), usedforsecurity=False).hexdigest()[:12]
            seen[name] += 1
            items.append(_model_output(said, f"{name}_{seen[name]}", sealed_bytes))
        elif said["role"] == "tool":
            items.append([output(as_text(said["tool_call_id"]), _content(said["content"]))])
        elif number or said["role"] != "system":
            items.append([{"type": "message", **said, "content": _parts(said["content"])}])
        else:
            items.append([])
    return items


def part(given: JsonObject) -> JsonObject:
    """A part of a chat message as a part of an item."""
    image = given.get("image_url")
    if not isinstance(image, dict):
        return text_part(as_text(given["text"]))
    url, rest = as_text(image["url"]), {k: v for k, v in image.items() if k != "url"}
    return image_part(url, **rest)


def _content(content: Json) -> str | list[JsonObject]:
    return content if isinstance(content, str) else [part(p) for p in as_objects(content)]


def _parts(content: Json) -> Json:
    said = _content(content)
    return said if isinstance(said, str) else [*said]


def _model_output(said: JsonObject, name: str, sealed_bytes: int) -> list[JsonObject]:
    thought = as_text(said.get("reasoning_content"))
    items = [reasoning(name, thought, sealed_bytes)] if sealed_bytes or thought else []
    text = _content(said["content"] or "")
    if not isinstance(text, str):
        text = "".join(as_text(p["text"]) for p in text)
    if text:
        items.append(answer(text, f"msg_{name}"))
    for number, made in enumerate(as_objects(said.get("tool_calls"))):
        function = made["function"]
        assert isinstance(function, dict)
        asked = as_text(function["name"]), as_text(function["arguments"])
        items.append({**call(as_text(made["id"]), *asked), "id": f"fc_{name}_{number}"})
    return items


def tool_session(steps: int, *, result_chars: int = 2000, seed: int = 0) -> list[JsonObject]:
    """One task, then `steps` times reasoning, a call and its output; ends with an output.

    The output of step n (from 0) begins with `builders.marker(seed, n)`.
    """
    return joined(b.tool_session(steps, result_chars=result_chars, seed=seed))


def turn_session(
    turns: int,
    calls_per_turn: int = 2,
    *,
    result_chars: int = 2000,
    seed: int = 0,
    parallel: bool = False,
) -> list[JsonObject]:
    """Whole turns, as `builders.turn_session` has them; ends with an answer."""
    return joined(
        b.turn_session(
            turns, calls_per_turn, result_chars=result_chars, seed=seed, parallel=parallel
        )
    )


def joined(messages: Sequence[JsonObject], *, sealed_bytes: int = 120) -> list[JsonObject]:
    """The items of a chat as one list."""
    return [item for group in from_chat(messages, sealed_bytes=sealed_bytes) for item in group]


def body(given: str | Iterable[JsonObject], **fields: Json) -> bytes:
    """A request; further members stand behind the list."""
    said: Json = given if isinstance(given, str) else [*given]
    return dumps({"model": "test-model", "input": said, **fields})
