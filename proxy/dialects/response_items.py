"""One item of the Responses API's `input`: what is in it, and its canonical form.

Shapes: the union of 33 input item types, and what servers and clients make of it. Calls and
outputs pair by `call_id`; a local shell output names its call by `id`, an MCP approval by
`approval_request_id`. Items that define tools or settings, and types we do not know, are
`Kind.OPAQUE`: they are kept wherever the cut falls. Ids of items do not count for the canonical
form, since some clients drop them.
"""

from collections.abc import Callable, Mapping

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.dialects import images
from proxy.dialects.bodies import Message
from proxy.dialects.canonical import arguments_form, content_form, data_form, extras_of
from proxy.transcript import Binary, Call, Content, Kind

REFERENCE = "item_reference"
_ROLES = {
    "system": Kind.INSTRUCTION,
    "developer": Kind.INSTRUCTION,
    "user": Kind.USER,
    "assistant": Kind.ASSISTANT,
}
_MODEL = "model"
"""Role of what is no message: model output may stand beside model output."""
_TOOL = "tool"
_CALLS: Mapping[str, tuple[str, str, str]] = {
    "function_call": ("call_id", "", "arguments"),
    "custom_tool_call": ("call_id", "", "input"),
    "computer_call": ("call_id", "computer", "action"),
    "local_shell_call": ("call_id", "local_shell", "action"),
    "shell_call": ("call_id", "shell", "action"),
    "apply_patch_call": ("call_id", "apply_patch", "operation"),
    "program": ("call_id", "program", "code"),
    "mcp_approval_request": ("id", "", "arguments"),
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

_ORDINAL_IDS = frozenset({"call_id", "id", "approval_request_id"})


def decode(raw: bytes) -> Message:
    """Decode one item; a shape we cannot interpret becomes `Kind.OPAQUE`, never an error.

    Raises:
        MalformedJson: when `raw` is not JSON.
    """
    value = codec.loads(raw)
    content = _content(value) if isinstance(value, dict) else None
    if content is None:
        type_ = codec.as_text(value.get("type")) if isinstance(value, dict) else ""
        calls, answers = _defining_pair(value, type_)
        content = Content(
            type_ or "unknown",
            Kind.OPAQUE,
            extra=raw.decode("utf-8", "replace"),
            calls=calls,
            answers=answers,
        )
    return Message(content, value)


def _content(item: JsonObject) -> Content | None:
    type_ = codec.as_text(item.get("type"))
    if type_ in {"", "message"}:
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
    kind, parts = _ROLES.get(role), _parts(item.get("content"))
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
    id_key, name, key = _CALLS[type_]
    call_id = codec.as_text(item.get(id_key))
    if not call_id:
        return None
    name = name or codec.as_text(item.get("name"))
    argument = item.get(key)
    if argument is None and type_ == "computer_call":
        argument = item.get("actions")
    text = argument if isinstance(argument, str) else codec.dumps(argument).decode()
    return Content(_MODEL, Kind.ASSISTANT, calls=(Call(call_id, name, text),))


def _output(item: JsonObject, type_: str) -> Content | None:
    id_key, key = _OUTPUTS[type_]
    answers = codec.as_text(item.get(id_key)) or None
    if answers is None and type_ not in _OPTIONAL_ID:
        return None
    output = item.get(key)
    if type_ == "shell_call_output":
        output = _shell_parts(output)
    elif isinstance(output, dict):
        output = [output]
    parts = _parts(output)
    if parts is None:
        return None
    texts, binaries = parts
    return Content(_TOOL, Kind.RESULT, tuple(texts), answers=answers, binaries=tuple(binaries))


def _shell_parts(output: Json) -> Json:
    return [
        {"type": "input_text", "text": codec.as_text(part.get(stream))}
        for part in codec.as_objects(output)
        for stream in ("stdout", "stderr")
        if part.get(stream)
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
    return Content(_MODEL, Kind.ASSISTANT, extra="\n".join(texts), binaries=tuple(binaries))


def _defining_pair(value: Json, type_: str) -> tuple[tuple[Call, ...], str | None]:
    call_id = codec.as_text(value.get("call_id")) if isinstance(value, dict) else ""
    if not call_id or type_ not in _DEFINING_CALLS:
        return (), None
    if _DEFINING_CALLS[type_] == "calls":
        return (Call(call_id, type_, ""),), None
    return (), call_id


def _parts(content: Json) -> tuple[list[str], list[Binary]] | None:
    if content is None:
        return [], []
    if isinstance(content, str):
        return [content], []
    if not isinstance(content, list):
        return None
    texts: list[str] = []
    binaries: list[Binary] = []
    for part in content:
        if not isinstance(part, dict):
            return None
        text = next((t for key in ("text", "refusal") if isinstance(t := part.get(key), str)), None)
        if text is not None:
            texts.append(text)
        else:
            binaries.append(_binary(part))
    return texts, binaries


def _binary(part: JsonObject) -> Binary:
    kind = codec.as_text(part.get("type"))
    if kind in {"input_image", "computer_screenshot", "image_url"}:
        inner = part.get("image_url")
        url = codec.as_text(inner.get("url")) if isinstance(inner, dict) else codec.as_text(inner)
        low = part.get("detail") == "low"
        split = images.split_data_url(url)
        if split is None:
            return Binary("image", low_detail=low)
        media_type, data = split
        width, height = images.dimensions(images.decode_base64(data, images.HEAD_BYTES))
        return Binary("image", media_type, width, height, len(data) * 3 // 4, low)
    if kind == "input_audio":
        inner = part.get("input_audio")
        fields = inner if isinstance(inner, dict) else part
        data = codec.as_text(fields.get("data"))
        return Binary("audio", codec.as_text(fields.get("format")), size_bytes=len(data) * 3 // 4)
    data = codec.as_text(part.get("file_data"))
    split = images.split_data_url(data)
    return Binary("file", split[0] if split else "", size_bytes=len(data) * 3 // 4)


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
    type_ = codec.as_text(value.get("type")) or "message"
    if type_ == "reasoning":
        # Clients drop and add what is in it, but not the item.
        return b"reasoning"
    if content.kind is Kind.OPAQUE:
        return b"opaque" + codec.canonical([type_, extras_of(value, {"type", "id"})])
    form = _FORMS.get(type_, _other_form)
    answer: Json = None
    if content.kind is Kind.RESULT:
        answer = content.answers if ordinal is None else ordinal
    return codec.canonical([type_, *form(value, type_), answer])


def _message_form(item: JsonObject, _: str) -> list[Json]:
    role = codec.as_text(item.get("role"))
    role = "system" if role == "developer" else role
    extras = extras_of(item, {"type", "id", "role", "content"})
    return [role, content_form(item.get("content")), extras]


def _call_form(item: JsonObject, type_: str) -> list[Json]:
    id_key, _, key = _CALLS[type_]
    argument = item.get(key)
    if isinstance(argument, str) and type_ == "function_call":
        argument = arguments_form(argument)
    return [argument, extras_of(item, {"type", "id", id_key, key})]


def _output_form(item: JsonObject, type_: str) -> list[Json]:
    id_key, key = _OUTPUTS[type_]
    output = item.get(key)
    if isinstance(output, dict):
        output = [output]
    plain = isinstance(output, str | list) and type_ != "shell_call_output"
    return [content_form(output) if plain else output, extras_of(item, {"type", "id", id_key, key})]


def _other_form(item: JsonObject, _: str) -> list[Json]:
    members = extras_of(item, {"type", "id"})
    return [{k: data_form(v) if isinstance(v, str) else v for k, v in members.items()}]


_FORMS: Mapping[str, Callable[[JsonObject, str], list[Json]]] = {
    "message": _message_form,
    **dict.fromkeys(_CALLS, _call_form),
    **dict.fromkeys(_OUTPUTS, _output_form),
}
