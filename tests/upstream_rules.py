"""What real chat-completion servers reject, as pure checks of a decoded request body."""

import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import zstandard

from proxy.codec import Json, JsonObject, MalformedJson, as_objects, as_text, dumps, loads

VIOLATIONS = frozenset(
    {
        "pairing",
        "one_system",
        "alternate",
        "first_user",
        "template",
        "window",
        "item",
        "ids",
        "reasoning",
    }
)
"""The rules whose rejections count as violations of the conversation's structure."""

INSTRUCTION_ROLES = frozenset({"system", "developer"})
ROLES = INSTRUCTION_ROLES | {"user", "assistant", "tool", "function"}
PART_TYPES = frozenset({"text", "image_url", "input_audio", "file"})
BINARY_TOKENS = 1000
_UNANSWERED = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
    "'tool_call_id'. The following tool_call_ids did not have response messages: "
)
_ORPHAN = (
    "Invalid parameter: messages with role 'tool' must be a response to a preceeding message "
    "with 'tool_calls'."
)
_ALTERNATE = "Jinja Exception: Conversation roles must alternate user/assistant/user/assistant/..."


@dataclass(frozen=True, slots=True)
class Rejection:
    """One reason to refuse a request, and the answer that says so."""

    rule: str
    status: int
    error: JsonObject

    @property
    def message(self) -> str:
        return as_text(self.error["message"])

    @property
    def body(self) -> bytes:
        return dumps({"error": self.error})

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"


@dataclass(kw_only=True, eq=False)
class Rules:
    """Which of the optional checks apply; may be changed between requests."""

    window: int | None = None
    strict_pairing: bool = True
    one_system: bool = False
    alternate: bool = False
    first_user: bool = False
    json_arguments: bool = False
    template: "Callable[[Sequence[JsonObject]], Iterator[Rejection]] | None" = None
    """What the model's chat template objects to (`tests.upstream_templates`)."""
    reject_response_format: set[str] = field(default_factory=set)
    reject_params: set[str] = field(default_factory=set)
    takes_response_format: bool = False
    """Whether `response_format` is taken in the Responses API, too, as llama.cpp does."""
    keeps_chains: bool = True
    """Whether `previous_response_id` means anything; else it is passed over."""


def openai(
    rule: str, message: str, *, param: str | None = None, code: str | None = None, status: int = 400
) -> Rejection:
    """Reject in OpenAI's shape."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return Rejection(rule, status, {"message": message, "type": kind, "param": param, "code": code})


def llama(rule: str, message: str, *, status: int = 500, kind: str = "server_error") -> Rejection:
    """Reject in llama.cpp's shape, where the code is the integer status."""
    return Rejection(rule, status, {"code": status, "message": message, "type": kind})


def check(raw: bytes, rules: Rules) -> list[Rejection]:
    """Return every rejection of a chat request; the first one is what a server answers."""
    try:
        body = loads(raw)
    except MalformedJson:
        return [openai("json", "We could not parse the JSON body of your request.")]
    if not isinstance(body, dict):
        return [openai("json", "The JSON body of your request must be an object.")]
    found = list(_shape(body))
    if not found:
        messages = as_objects(body["messages"])
        found = [
            *_parameters(body, rules),
            *_roles(messages),
            *_contents(messages),
            *_structure(messages, rules),
            *_window(body, rules.window),
        ]
    return found


def _shape(body: JsonObject) -> Iterator[Rejection]:
    if not isinstance(body.get("model"), str):
        yield openai("shape", "you must provide a model parameter", param="model")
    messages = body.get("messages")
    if not isinstance(messages, list):
        yield openai("shape", "Missing required parameter: 'messages'.", param="messages")
    elif not messages:
        text = "Invalid 'messages': empty array. Expected an array with minimum length 1."
        yield openai("shape", text, param="messages", code="empty_array")
    elif len(as_objects(messages)) != len(messages):
        yield openai("shape", "Invalid type for 'messages': expected objects.", param="messages")


def _parameters(body: JsonObject, rules: Rules) -> Iterator[Rejection]:
    response_format = body.get("response_format")
    kind = as_text(response_format.get("type")) if isinstance(response_format, dict) else ""
    if kind in rules.reject_response_format:
        text = (
            f"Invalid parameter: 'response_format' of type '{kind}' is not supported with this "
            "model. response_format is unsupported."
        )
        yield openai("response_format", text, param="response_format")
    for name in sorted(rules.reject_params & body.keys()):
        text = f"Unsupported parameter: '{name}' is not supported with this model."
        if name == "max_tokens":
            text += " Use 'max_completion_tokens' instead."
        yield openai("params", text, param=name, code="unsupported_parameter")


def _roles(messages: Sequence[JsonObject]) -> Iterator[Rejection]:
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in ROLES:
            text = (
                f"Invalid value: '{role}'. Supported values are: 'system', 'assistant', 'user', "
                "'function', 'tool', and 'developer'."
            )
            yield openai("role", text, param=f"messages[{index}].role", code="invalid_value")


def _contents(messages: Sequence[JsonObject]) -> Iterator[Rejection]:
    for index, message in enumerate(messages):
        problem = _content_problem(message)
        if problem:
            yield openai("content", problem, param=f"messages[{index}].content")
        problem = _calls_problem(message)
        if problem:
            yield openai("calls", problem, param=f"messages[{index}].tool_calls")


def _content_problem(message: JsonObject) -> str:
    content = message.get("content")
    if content is None:
        if message.get("tool_calls") or message.get("function_call"):
            return ""
        return "Invalid value for 'content': expected a string, got null."
    if isinstance(content, str):
        return ""
    if not isinstance(content, list) or not content:
        return "Invalid 'content': expected a string or a non-empty array of parts."
    allowed = PART_TYPES | {"refusal"} if message.get("role") == "assistant" else PART_TYPES
    return next(filter(None, (_part_problem(part, allowed) for part in content)), "")


def _part_problem(part: Json, allowed: frozenset[str]) -> str:
    if not isinstance(part, dict):
        return "Invalid content part: expected an object."
    kind = part.get("type")
    if kind not in allowed:
        return f"Invalid value: '{kind}'. Supported values are: 'text', 'image_url', 'input_audio'."
    if kind == "text" and not as_text(part.get("text")):
        return "text content blocks must be non-empty"
    return ""


def _calls_problem(message: JsonObject) -> str:
    calls = message.get("tool_calls")
    if calls is None:
        return ""
    if not isinstance(calls, list) or len(as_objects(calls)) != len(calls):
        return "Invalid type for 'tool_calls': expected an array of objects."
    for call in as_objects(calls):
        name, arguments = call_texts(call)
        if not isinstance(call.get("id"), str) or not name or arguments is None:
            return "Invalid tool call: 'id', 'name' and string 'arguments' are required."
    return ""


def call_texts(call: JsonObject) -> tuple[str, str | None]:
    """Return the name and the argument text of a function or custom tool call."""
    key, field_name = (
        ("custom", "input") if call.get("type") == "custom" else ("function", "arguments")
    )
    inner = call.get(key)
    if not isinstance(inner, dict):
        return "", None
    arguments = inner.get(field_name)
    return as_text(inner.get("name")), arguments if isinstance(arguments, str) else None


def _structure(messages: Sequence[JsonObject], rules: Rules) -> Iterator[Rejection]:
    if rules.strict_pairing:
        yield from pairing(messages)
    if rules.one_system:
        yield from one_system(messages)
    if rules.alternate:
        yield from alternate(messages)
    if rules.first_user:
        yield from first_user(messages)
    if rules.json_arguments:
        yield from json_arguments(messages)
    if rules.template is not None:
        yield from rules.template(messages)


def pairing(messages: Sequence[JsonObject]) -> Iterator[Rejection]:
    """Each call answered once, directly after its message, and no other tool message."""
    opened = 0
    missing: list[str] = []
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            answered = as_text(message.get("tool_call_id"))
            if answered in missing:
                missing.remove(answered)
            else:
                yield openai("pairing", _ORPHAN, param=f"messages.[{index}].role")
            continue
        yield from _unanswered(missing, opened)
        calls = as_objects(message.get("tool_calls")) if message.get("role") == "assistant" else ()
        opened, missing = index, [as_text(call.get("id")) for call in calls]
    yield from _unanswered(missing, opened)


def _unanswered(missing: Sequence[str], opened: int) -> Iterator[Rejection]:
    if missing:
        text = _UNANSWERED + ", ".join(missing)
        yield openai("pairing", text, param=f"messages.[{opened}].role")


def one_system(messages: Sequence[JsonObject]) -> Iterator[Rejection]:
    """At most one instruction message, and only as the first message."""
    for index, message in enumerate(messages):
        if index and message.get("role") in INSTRUCTION_ROLES:
            text = "System message must be the only one and at the beginning."
            yield openai("one_system", text, param=f"messages.[{index}].role")


def alternate(messages: Sequence[JsonObject]) -> Iterator[Rejection]:
    """No user next to a user and no assistant next to an assistant; instructions do not count."""
    roles = [m.get("role") for m in messages if m.get("role") not in INSTRUCTION_ROLES]
    for before, after in pairwise(roles):
        if before == after and after in {"user", "assistant"}:
            yield llama("alternate", _ALTERNATE)


def first_user(messages: Sequence[JsonObject]) -> Iterator[Rejection]:
    """A conversation begins with a user."""
    roles = [m.get("role") for m in messages if m.get("role") not in INSTRUCTION_ROLES]
    if not roles or roles[0] != "user":
        yield openai("first_user", 'messages: first message must use the "user" role')


def json_arguments(messages: Sequence[JsonObject]) -> Iterator[Rejection]:
    """Function arguments parse as JSON, which tool-capable templates need."""
    for message in messages:
        for call in as_objects(message.get("tool_calls")):
            try:
                loads(call_texts(call)[1] or "")
            except MalformedJson:
                if call.get("type") != "custom":
                    yield llama("json_arguments", "Failed to parse tool call arguments as JSON")


def _window(body: JsonObject, window: int | None) -> Iterator[Rejection]:
    if window is None or (count := prompt_tokens(body)) < window:
        return
    text = (
        f"request ({count} tokens) exceeds the available context size ({window} tokens), "
        "try increasing it"
    )
    found = llama("window", text, status=400, kind="exceed_context_size_error")
    found.error.update(n_prompt_tokens=count, n_ctx=window)
    yield found


def prompt_tokens(body: JsonObject) -> int:
    """Return the size of a prompt as the scripted upstream counts it."""
    chars = len(dumps(body["tools"]).decode()) if body.get("tools") else 0
    binaries = 0
    for message in as_objects(body.get("messages")):
        chars += len("".join(message_texts(message)))
        for call in as_objects(message.get("tool_calls")):
            name, arguments = call_texts(call)
            chars += len(name) + len(arguments or "")
        parts = as_objects(message.get("content"))
        binaries += sum(part.get("type") in PART_TYPES - {"text"} for part in parts)
    return chars // 4 + binaries * BINARY_TOKENS


def message_texts(message: JsonObject) -> list[str]:
    """Return the texts of a message: content, refusal and reasoning."""
    texts = [as_text(message.get(key)) for key in ("content", "refusal", "reasoning_content")]
    for part in as_objects(message.get("content")):
        texts += [as_text(part.get("text")), as_text(part.get("refusal"))]
    return [text for text in texts if text]


def measured(prompt: int, output: int) -> tuple[JsonObject, JsonObject]:
    """Return `usage` and llama.cpp's `timings` of a completion."""
    usage: JsonObject = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    return usage, {"cache_n": 0, "prompt_n": prompt, "predicted_n": output}


def decompress(body: bytes, encoding: str) -> bytes:
    """Undo a content encoding; ValueError when that is impossible."""
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        return body
    try:
        if encoding == "gzip":
            return gzip.decompress(body)
        if encoding == "deflate":
            return zlib.decompress(body)
        if encoding == "zstd":
            return zstandard.ZstdDecompressor().decompressobj().decompress(body)
    except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"the request body is not {encoding}") from error
    raise ValueError(f"unsupported content encoding {encoding}")


def plausible_checkpoint(messages: Sequence[JsonObject]) -> str:
    """Write a small checkpoint that mentions words and files of the request."""
    text = "\n".join(
        text
        for message in messages
        if message.get("role") not in INSTRUCTION_ROLES
        for text in message_texts(message)
    )
    words = list(dict.fromkeys(re.findall(r"\w{6,30}", text))) or ["nothing"]
    files: list[Json] = [*list(dict.fromkeys(re.findall(r"[\w./-]+/[\w-]+\.\w{1,4}\b", text)))[:5]]
    first, last = " ".join(words[:6]), " ".join(words[-6:])
    checkpoint: JsonObject = {
        "goal": f"The user asked about {first}.",
        "instructions": ["Keep the public interface as it is.", "Run the tests before finishing."],
        "discoveries": [f"The work so far concerns {last}."],
        "accomplished": [f"Looked into {words[0]} and {words[-1]}."],
        "currentState": f"In the middle of {words[-1]}.",
        "nextSteps": [f"Continue with {words[len(words) // 2]}."],
        "relevantFiles": files,
    }
    return dumps(checkpoint).decode()
