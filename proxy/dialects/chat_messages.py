"""One Chat Completions message: what is in it, its canonical form, and how it is rewritten.

Shapes: the `messages` of the Chat Completions API, with the vendor fields that real clients
send. The canonical form decides only whether two prefixes are the same conversation; clients
re-serialise their own history, so it ignores what they are known to change: null and empty
fields, call ids, reasoning, caching hints, the spelling of JSON arguments, the split of text
into parts. Unknown fields count.
"""

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.dialects.bodies import Message
from proxy.dialects.canonical import arguments_form, content_form, extras_of
from proxy.dialects.parts import audio_of, file_of, image_of, read_parts
from proxy.transcript import Binary, Call, Content, Kind

_KINDS = {
    "system": Kind.INSTRUCTION,
    "developer": Kind.INSTRUCTION,
    "user": Kind.USER,
    "assistant": Kind.ASSISTANT,
    "tool": Kind.RESULT,
    "function": Kind.RESULT,
}
_PLAIN = frozenset({"role", "content"})
_PLAIN_ROLES = frozenset({"system", "developer", "user", "assistant"})
_FUNCTION_CALL = "function:"


def decode(raw: bytes) -> Message:
    """Decode one message; a shape we cannot interpret becomes `Kind.OPAQUE`, never an error.

    Raises:
        MalformedJson: when `raw` is not JSON.
    """
    value = codec.loads(raw)
    content = None
    if isinstance(value, dict):
        content = _plain(value) or _content(value)
    if content is None:
        role = codec.as_text(value.get("role")) if isinstance(value, dict) else ""
        content = Content(role or "unknown", Kind.OPAQUE, extra=raw.decode("utf-8", "replace"))
    return Message(content, value)


def _plain(message: JsonObject) -> Content | None:
    # Most messages are a role and a text and nothing else; they need no second look.
    if len(message) != len(_PLAIN):
        return None
    role, text = message.get("role"), message.get("content")
    if not isinstance(role, str) or not isinstance(text, str) or role not in _PLAIN_ROLES:
        return None
    return Content(role, _KINDS[role], (text,))


def _content(message: JsonObject) -> Content | None:
    role = codec.as_text(message.get("role"))
    kind = _KINDS.get(role)
    parts = read_parts(message.get("content"), _binary)
    calls = _calls(message) if kind is Kind.ASSISTANT else ()
    answers = _answers(role, message) if kind is Kind.RESULT else None
    if kind is None or parts is None or calls is None or (kind is Kind.RESULT and answers is None):
        return None
    texts, binaries = parts
    refusal = codec.as_text(message.get("refusal"))
    return Content(
        role=role,
        kind=kind,
        texts=tuple(texts),
        reasoning=_reasoning(message),
        extra=codec.as_text(message.get("name")) + refusal,
        calls=calls,
        answers=answers,
        binaries=tuple(binaries),
    )


def _reasoning(message: JsonObject) -> str:
    for key in ("reasoning_content", "reasoning", "thinking"):
        text = codec.as_text(message.get(key))
        if text:
            return text
    return ""


def _answers(role: str, message: JsonObject) -> str | None:
    if role == "function":
        name = codec.as_text(message.get("name"))
        return _FUNCTION_CALL + name if name else None
    return codec.as_text(message.get("tool_call_id")) or None


def _calls(message: JsonObject) -> tuple[Call, ...] | None:
    listed = message.get("tool_calls")
    calls: list[Call] = []
    if listed is not None and not isinstance(listed, list):
        return None
    for entry in listed or []:
        call = _call(entry)
        if call is None:
            return None
        calls.append(call)
    single = message.get("function_call")
    if isinstance(single, dict):
        name = codec.as_text(single.get("name"))
        calls.append(Call(_FUNCTION_CALL + name, name, codec.as_text(single.get("arguments"))))
    return tuple(calls)


def _call(entry: Json) -> Call | None:
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        return None
    body = entry.get("custom") if entry.get("type") == "custom" else entry.get("function")
    if not isinstance(body, dict):
        return None
    text = body.get("input") if entry.get("type") == "custom" else body.get("arguments")
    return Call(
        codec.as_text(entry.get("id")),
        codec.as_text(body.get("name")),
        text if isinstance(text, str) else codec.dumps(text).decode(),
    )


def _binary(part: JsonObject) -> Binary:
    kind = codec.as_text(part.get("type"))
    inner = part.get(kind)
    fields = inner if isinstance(inner, dict) else {}
    if kind == "image_url":
        return image_of(inner, low_detail=fields.get("detail") == "low")
    return audio_of(fields) if kind == "input_audio" else file_of(fields)


def canonical(message: Message, ordinal: int | None) -> bytes:
    """Return the canonical form that the fingerprint is made of.

    Args:
        message: the decoded message.
        ordinal: for a result, how many calls back its call was made; None when no call
            precedes it.
    """
    value = message.value
    if message.content.kind is Kind.OPAQUE or not isinstance(value, dict):
        return b"opaque" + codec.canonical(value)
    role = codec.as_text(value.get("role"))
    if value.keys() == _PLAIN and role in _PLAIN_ROLES and isinstance(value["content"], str):
        plain = content_form(value["content"])
        return codec.dumps(["system" if role == "developer" else role, plain, [], None, {}])
    structure = {"role", "content"}
    calls: list[Json] = []
    answer: Json = None
    if message.content.kind is Kind.ASSISTANT:
        structure.add("tool_calls")
        calls += [_canonical_call(c) for c in codec.as_objects(value.get("tool_calls"))]
        if isinstance(value.get("function_call"), dict):
            structure.add("function_call")
            single: JsonObject = {"type": "function_call", "function": value["function_call"]}
            calls.append(_canonical_call(single))
    elif message.content.kind is Kind.RESULT:
        structure |= {"tool_call_id"} if role == "tool" else set()
        answer = message.content.answers if ordinal is None else ordinal
    return codec.canonical(
        [
            "system" if role == "developer" else role,
            content_form(value.get("content")),
            calls,
            answer,
            extras_of(value, structure),
        ]
    )


def _canonical_call(entry: JsonObject) -> Json:
    custom = entry.get("type") == "custom"
    holder = "custom" if custom else "function"
    body = entry.get(holder)
    body = body if isinstance(body, dict) else {}
    key = "input" if custom else "arguments"
    argument = body.get(key)
    if isinstance(argument, str) and not custom:
        argument = arguments_form(argument)
    rest = extras_of(entry, {"id", "type", holder})
    return [
        entry.get("type") or "function",
        codec.as_text(body.get("name")),
        argument,
        extras_of(body, {"name", key}),
        rest,
    ]
