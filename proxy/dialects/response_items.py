"""One item of the Responses API's `input`: what is in it, and its canonical form.

Shapes: the union of 33 input item types, and what servers and clients make of it. Calls and
outputs pair by `call_id`; a local shell output names its call by `id`, an MCP approval and the
call that it allows by `approval_request_id`. Items that define tools or settings, and types we do
not know, are `Kind.OPAQUE`: they are kept wherever the cut falls. Ids of items do not count for
the canonical form, since some clients drop them.
"""

from collections.abc import Callable, Mapping

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.dialects import images
from proxy.dialects.bodies import Message
from proxy.dialects.canonical import arguments_form, content_form, data_form, extras_of
from proxy.dialects.continuations import REFERENCE
from proxy.dialects.parts import audio_of, file_of, image_of, read_parts
from proxy.transcript import Binary, Call, Content, Kind

_ROLES = {
    "system": Kind.INSTRUCTION,
    "developer": Kind.INSTRUCTION,
    "user": Kind.USER,
    "assistant": Kind.ASSISTANT,
}
_MODEL = "model"
"""Role of what is no message: model output may stand beside model output."""
_TOOL = "tool"
SHELL_OUTPUT = "shell_call_output"
STREAMS = ("stdout", "stderr")
_LOCAL_SHELL = "local_shell_call"
_APPROVAL = "mcp_approval_request"
_APPROVED = "approved:"
"""In front of the id of an approval, it names the MCP call that was allowed by it."""
_CALLS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "function_call": ("call_id", "", ("arguments",)),
    "custom_tool_call": ("call_id", "", ("input",)),
    "computer_call": ("call_id", "computer", ("action", "actions")),
    _LOCAL_SHELL: ("call_id", "local_shell", ("action",)),
    "shell_call": ("call_id", "shell", ("action",)),
    "apply_patch_call": ("call_id", "apply_patch", ("operation",)),
    # The code of a program is sealed by its fingerprint: never clipped, so no argument.
    "program": ("call_id", "program", ()),
    _APPROVAL: ("id", "", ("arguments",)),
}
"""Type of a call: where its id, its name (or the name itself) and its arguments are."""

_OUTPUTS: Mapping[str, tuple[str, str]] = {
    "function_call_output": ("call_id", "output"),
    "custom_tool_call_output": ("call_id", "output"),
    "computer_call_output": ("call_id", "output"),
    "local_shell_call_output": ("id", "output"),
    "shell_call_output": ("call_id", "output"),
    "apply_patch_call_output": ("call_id", "output"),
    "program_output": ("call_id", "result"),
    "mcp_approval_response": ("approval_request_id", "reason"),
}
"""Type of an output: where the id of its call and its text are."""

_JSON_ARGUMENTS = frozenset({"function_call", _APPROVAL})
_OPTIONAL_ID = frozenset({"function_call_output"})
"""A tool may have begun by itself, so there is no call (seen from Codex)."""

_SELF_CONTAINED: Mapping[str, tuple[str, ...]] = {
    "web_search_call": ("action",),
    "file_search_call": ("queries", "results"),
    "code_interpreter_call": ("code", "outputs"),
    "image_generation_call": (),
    "mcp_call": ("name", "arguments", "output", "error"),
    "compaction": (),
    "compaction_summary": (),
    "context_compaction": (),
}
"""What the model and the server did between themselves: nothing pairs with it."""

_DEFINING_CALLS = {"tool_search_call": "calls", "tool_search_output": "answers"}
"""Pairs that define tools: both stay, wherever the cut falls."""


def decode(raw: bytes) -> Message:
    """Decode one item; a shape we cannot interpret becomes `Kind.OPAQUE`, never an error.

    Raises:
        MalformedJson: when `raw` is not JSON.
    """
    value = codec.loads(raw)
    content = _content(value) if isinstance(value, dict) else None
    return Message(content or _opaque(value, raw), value)


def item_type(item: JsonObject) -> str:
    """Return the type of an item, which messages and references may leave out."""
    type_ = item.get("type")
    if type_ is not None:
        return codec.as_text(type_)
    return REFERENCE if "role" not in item and codec.as_text(item.get("id")) else "message"


def text_member(item: JsonObject) -> str | None:
    """Return the member with the texts of a message or an output; None for other items."""
    type_ = item_type(item)
    return "content" if type_ == "message" else _OUTPUTS.get(type_, ("", None))[1]


def argument_member(item: JsonObject) -> str | None:
    """Return the member with the arguments of a call; None when there are none."""
    keys = _CALLS.get(item_type(item), ("", "", ()))[2]
    return next((key for key in keys if item.get(key) is not None), None)


def names_item(message: Message) -> bool:
    """Whether an output may name its call by the id of the item instead of that of the call."""
    value = message.value
    return isinstance(value, dict) and item_type(value) == _LOCAL_SHELL + "_output"


def shell_id(raw: bytes) -> str:
    """Return the id of the item when it is a local shell call; an empty string for others."""
    item = codec.loads(raw) if _LOCAL_SHELL.encode() in raw else None
    if not isinstance(item, dict) or item_type(item) != _LOCAL_SHELL:
        return ""
    return codec.as_text(item.get("id"))


def _opaque(value: Json, raw: bytes) -> Content:
    type_ = item_type(value) if isinstance(value, dict) else ""
    calls, answers = _defining_pair(value, type_)
    return Content(
        type_ or "unknown",
        Kind.OPAQUE,
        extra=raw.decode("utf-8", "replace"),
        calls=calls,
        answers=answers,
        # Both stay in any case.
        detached=bool(calls),
    )


def _content(item: JsonObject) -> Content | None:
    type_ = item_type(item)
    if type_ == "message":
        return _message(item)
    if type_ == "reasoning":
        return _reasoning(item)
    if type_ in _CALLS:
        return _call(item, type_)
    if type_ in _OUTPUTS:
        return _output(item, type_)
    if type_ in _SELF_CONTAINED:
        return _self_contained(item, type_)
    return None


def _message(item: JsonObject) -> Content | None:
    role = codec.as_text(item.get("role"))
    kind, parts = _ROLES.get(role), read_parts(item.get("content"), _binary)
    if kind is None or parts is None:
        return None
    texts, binaries = parts
    return Content(role, kind, tuple(texts), binaries=tuple(binaries))


def _reasoning(item: JsonObject) -> Content:
    said = [*codec.as_objects(item.get("summary")), *codec.as_objects(item.get("content"))]
    text = "\n".join(filter(None, (codec.as_text(part.get("text")) for part in said)))
    return Content(_MODEL, Kind.ASSISTANT, reasoning=text, binaries=_sealed(item), leads=True)


def _sealed(item: JsonObject) -> tuple[Binary, ...]:
    blob = codec.as_text(item.get("encrypted_content"))
    return (Binary("sealed", size_bytes=len(blob) * 3 // 4),) if blob else ()


def _call(item: JsonObject, type_: str) -> Content | None:
    id_key, name, _ = _CALLS[type_]
    call_id = codec.as_text(item.get(id_key))
    if not call_id and type_ == _LOCAL_SHELL:
        call_id = codec.as_text(item.get("id"))
    if not call_id:
        return None
    key = argument_member(item)
    argument = item[key] if key is not None else ""
    text = argument if isinstance(argument, str) else codec.dumps(argument).decode()
    # A call that a program made is answered while the program runs.
    later = item.get("async") is True and item.get("caller") is None
    return Content(
        _MODEL,
        Kind.ASSISTANT,
        notes=codec.as_text(item.get("code")) if type_ == "program" else "",
        calls=(Call(call_id, name or codec.as_text(item.get("name")), text),),
        detached=later or type_ == _APPROVAL,
    )


def _output(item: JsonObject, type_: str) -> Content | None:
    id_key, key = _OUTPUTS[type_]
    answers = codec.as_text(item.get("call_id")) or codec.as_text(item.get(id_key)) or None
    if answers is None and type_ not in _OPTIONAL_ID:
        return None
    output, ended = item.get(key), ""
    if type_ == SHELL_OUTPUT and isinstance(output, list):
        ended = _shell_outcome(output)
        output = _shell_parts(output)
    elif isinstance(output, dict):
        output = [output]
    parts = read_parts(output, _binary)
    if parts is None:
        return None
    texts, binaries = parts
    allowed = type_ == "mcp_approval_response" and item.get("approve") is True
    return Content(
        _TOOL,
        Kind.RESULT,
        tuple(texts),
        notes=ended if "approve" not in item else "allowed" if allowed else "not allowed",
        calls=(Call(f"{_APPROVED}{answers}", "", ""),) if allowed else (),
        answers=answers,
        binaries=tuple(binaries),
        detached=allowed,
    )


def _shell_outcome(output: Json) -> str:
    # The first command that failed tells how the call ended.
    outcomes = [part.get("outcome") for part in codec.as_objects(output)]
    codes = [o.get("exit_code", 124) for o in outcomes if isinstance(o, dict) and o.get("type")]
    failed = next((code for code in codes if code != 0), 0)
    return f"exit code {failed}" if codes and isinstance(failed, int) else ""


def _shell_parts(output: Json) -> Json:
    return [
        {"type": "input_text", "text": part[stream]}
        for part in codec.as_objects(output)
        for stream in STREAMS
        if isinstance(part.get(stream), str) and part[stream]
    ]


def _self_contained(item: JsonObject, type_: str) -> Content:
    texts = [
        value if isinstance(value, str) else codec.dumps(value).decode()
        for key in _SELF_CONTAINED[type_]
        if (value := item.get(key))
    ]
    binaries = list(_sealed(item))
    if type_ == "image_generation_call" and (data := codec.as_text(item.get("result"))):
        width, height = images.dimensions(images.decode_base64(data, images.HEAD_BYTES))
        binaries.append(Binary("image", "", width, height, len(data) * 3 // 4))
    allowed = codec.as_text(item.get("approval_request_id")) if type_ == "mcp_call" else ""
    return Content(
        _MODEL,
        Kind.ASSISTANT,
        notes="\n".join(texts),
        answers=_APPROVED + allowed if allowed else None,
        binaries=tuple(binaries),
    )


def _defining_pair(value: Json, type_: str) -> tuple[tuple[Call, ...], str | None]:
    call_id = codec.as_text(value.get("call_id")) if isinstance(value, dict) else ""
    if not call_id or type_ not in _DEFINING_CALLS:
        return (), None
    if _DEFINING_CALLS[type_] == "calls":
        return (Call(call_id, type_, ""),), None
    return (), call_id


def _binary(part: JsonObject) -> Binary:
    kind = codec.as_text(part.get("type"))
    if kind in {"input_image", "computer_screenshot", "image_url"}:
        return image_of(part.get("image_url"), low_detail=part.get("detail") == "low")
    if kind == "input_audio":
        inner = part.get("input_audio")
        return audio_of(inner if isinstance(inner, dict) else part)
    return file_of(part)


def canonical(message: Message, ordinal: int | None) -> bytes:
    """Return the canonical form that the fingerprint is made of.

    Args:
        message: the decoded item.
        ordinal: for an output, how many calls back its call was made; None when no call precedes
            it.
    """
    value, content = message.value, message.content
    if not isinstance(value, dict):
        return b"opaque" + codec.canonical(value)
    type_ = item_type(value)
    if content.kind is Kind.OPAQUE:
        return b"opaque" + codec.canonical(_opaque_form(value, type_))
    if type_ == "reasoning":
        # Clients drop and add what is in it, but not the item.
        return b"reasoning"
    form = _FORMS.get(type_, _other_form)
    answer: Json = content.answers if ordinal is None else ordinal
    return codec.canonical([type_, *form(value, type_), answer])


def _opaque_form(item: JsonObject, type_: str) -> list[Json]:
    # What it means is not known, so only what every item may lose is left out.
    known = {"status"} if type_ == REFERENCE else {"id", "status"}
    members: JsonObject = {k: v for k, v in item.items() if k not in known and v is not None}
    return [type_, members]


def _message_form(item: JsonObject, _: str) -> list[Json]:
    role = codec.as_text(item.get("role"))
    role = "system" if role == "developer" else role
    extras = extras_of(item, {"type", "id", "role", "content"})
    return [role, content_form(item.get("content")), extras]


def _call_form(item: JsonObject, type_: str) -> list[Json]:
    key = argument_member(item)
    argument = item[key] if key is not None else None
    if isinstance(argument, str) and type_ in _JSON_ARGUMENTS:
        argument = arguments_form(argument)
    return [argument, extras_of(item, {"type", "id", _CALLS[type_][0], *([key] if key else [])})]


def _output_form(item: JsonObject, type_: str) -> list[Json]:
    id_key, key = _OUTPUTS[type_]
    output = item.get(key)
    if isinstance(output, dict):
        output = [output]
    if type_ != SHELL_OUTPUT or not isinstance(output, list):
        output = content_form(output)
    return [output, extras_of(item, {"type", "id", "call_id", id_key, key})]


def _other_form(item: JsonObject, type_: str) -> list[Json]:
    members = extras_of(item, {"type", "id"})
    if type_ == "mcp_call" and isinstance(item.get("approval_request_id"), str):
        del members["approval_request_id"]
    if type_ == "mcp_call" and isinstance(arguments := item.get("arguments"), str):
        members["arguments"] = arguments_form(arguments)
    return [{k: data_form(v) if isinstance(v, str) else v for k, v in members.items()}]


_FORMS: Mapping[str, Callable[[JsonObject, str], list[Json]]] = {
    "message": _message_form,
    **dict.fromkeys(_CALLS, _call_form),
    **dict.fromkeys(_OUTPUTS, _output_form),
}
