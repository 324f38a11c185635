"""Builders of Responses items and bodies; everything is deterministic."""

from collections.abc import Iterable, Mapping, Sequence

from proxy.codec import Json, JsonObject, dumps
from tests import builders


def easy(role: str, content: str | Iterable[JsonObject], **extra: Json) -> JsonObject:
    """A message without `type`, as most clients write it."""
    return {"role": role, "content": content if isinstance(content, str) else [*content], **extra}


def message(role: str, text: str, **extra: Json) -> JsonObject:
    return {"type": "message", "role": role, "content": [text_part(text)], **extra}


def said(text: str, **extra: Json) -> JsonObject:
    """A message of the model as servers write it."""
    part: JsonObject = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    content: list[Json] = [part]
    return {
        "type": "message",
        "id": "msg_1",
        "status": "completed",
        "role": "assistant",
        "content": content,
        **extra,
    }


def text_part(text: str) -> JsonObject:
    return {"type": "input_text", "text": text}


def image_part(url: str, **extra: Json) -> JsonObject:
    return {"type": "input_image", "image_url": url, **extra}


IMAGE = image_part(builders.data_url(builders.png(280, 140, 64)))


def reasoning(summary: str = "", sealed: str = "", id: str = "rs_1") -> JsonObject:
    parts: list[Json] = [{"type": "summary_text", "text": summary}] if summary else []
    item: JsonObject = {"type": "reasoning", "id": id, "summary": parts}
    return {**item, "encrypted_content": sealed} if sealed else item


def call(
    id: str, name: str = "read_file", arguments: str | Mapping[str, Json] = "{}", **extra: Json
) -> JsonObject:
    text = arguments if isinstance(arguments, str) else dumps(dict(arguments)).decode()
    item: JsonObject = {"type": "function_call", "id": f"fc_{id}", "call_id": id}
    return {**item, "name": name, "arguments": text, **extra}


def output(id: str | None, content: str | Iterable[JsonObject], **extra: Json) -> JsonObject:
    """The output of a function call; without an id of one that the tool began by itself."""
    item: JsonObject = {"type": "function_call_output", **({"call_id": id} if id else {})}
    return {**item, "output": content if isinstance(content, str) else [*content], **extra}


def pair(kind: str, id: str, given: str, result: str) -> tuple[JsonObject, JsonObject]:
    """A call of any kind and its output."""
    command: list[Json] = [given]
    match kind:
        case "custom":
            first: JsonObject = {"name": "sh", "input": given}
            second: JsonObject = {"output": result}
        case "computer":
            first = {"action": {"type": "type", "text": given}, "pending_safety_checks": []}
            shot: JsonObject = {"type": "computer_screenshot", "image_url": IMAGE["image_url"]}
            second = {"output": shot}
        case "local_shell":
            first = {"action": {"type": "exec", "command": command, "env": {}}}
            second = {"output": result}
        case "shell":
            first = {"action": {"commands": command, "timeout_ms": 1000}}
            ended: JsonObject = {"type": "exit", "exit_code": 0}
            streams: JsonObject = {"stdout": result, "stderr": "", "outcome": ended}
            second = {"output": [streams]}
        case "apply_patch":
            operation: JsonObject = {"type": "update_file", "path": "src/a.py", "diff": given}
            first, second = {"operation": operation}, {"status": "completed", "output": result}
        case _:
            return call(id, "read_file", {"path": given}), output(id, result)
    asked, answered = f"{kind}_call", f"{kind}_call_output"
    if kind in {"custom"}:
        asked, answered = "custom_tool_call", "custom_tool_call_output"
    key = "id" if kind == "local_shell" else "call_id"
    return (
        {"type": asked, "id": f"item_{id}", "call_id": id, **first},
        {"type": answered, key: id, **second},
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
    answer: JsonObject = {"type": "mcp_approval_response", "approval_request_id": id}
    answer |= {"approve": approve}
    done = [mcp_call(result, approval_request_id=id)] if approve else []
    return [asked, answer, *done]


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
            "result": builders.data_url(builders.png(280, 140)).partition(",")[2],
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


def body(
    items: str | Iterable[JsonObject],
    *,
    model: str = "test-model",
    fields: Mapping[str, Json] | None = None,
) -> bytes:
    """A request; further members stand behind the list."""
    listed: Json = items if isinstance(items, str) else [*items]
    return dumps({"model": model, "input": listed, **(fields or {})})
