"""The Responses API of the scripted upstream: what it rejects, keeps and answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from proxy.codec import Json, JsonObject, MalformedJson, as_objects, as_text, dumps, loads
from tests import upstream_rules as chat
from tests.upstream_replies import Reply, output_tokens, pieces
from tests.upstream_rules import Rejection, Rules, openai

RESPONSES_PATH = "/v1/responses"
INPUT_PARTS = frozenset({"input_text", "input_image", "input_file"})
OUTPUT_PARTS = frozenset({"output_text", "refusal"})
REFERENCE = "item_reference"
MAX_CALL_ID = 64
MIN_OUTPUT = 16

PAIRS: Mapping[str, tuple[str, str]] = {
    "function_call_output": ("function_call", "call_id"),
    "custom_tool_call_output": ("custom_tool_call", "call_id"),
    "computer_call_output": ("computer_call", "call_id"),
    "local_shell_call_output": ("local_shell_call", "id"),
    "shell_call_output": ("shell_call", "call_id"),
    "apply_patch_call_output": ("apply_patch_call", "call_id"),
}
"""Type of an output: that of its call, and where it has the call's id."""

CALLS = {call: output for output, (call, _) in PAIRS.items()}
TEXT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "function_call": ("call_id", "name", "arguments"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id",),
    "computer_call": ("call_id",),
    "computer_call_output": ("call_id",),
    "local_shell_call": ("call_id",),
    "local_shell_call_output": ("id",),
    "shell_call": ("call_id",),
    "shell_call_output": ("call_id",),
    "apply_patch_call": ("call_id",),
    "apply_patch_call_output": ("call_id",),
    "compaction": ("encrypted_content",),
    REFERENCE: ("id",),
}
"""What must be there as a string."""

PREFIXES = {
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "assistant message": "msg",
}
OTHER_TYPES = frozenset(
    {
        "message",
        "reasoning",
        "function_call_output",
        "web_search_call",
        "file_search_call",
        "code_interpreter_call",
        "image_generation_call",
        "mcp_call",
        "mcp_list_tools",
        "mcp_approval_request",
        "mcp_approval_response",
        "tool_search_call",
        "tool_search_output",
        "additional_tools",
        "configuration_update",
        "compaction_trigger",
        "program",
        "program_output",
    }
)
NOT_THE_MODELS = frozenset(
    {
        "mcp_approval_response",
        "program_output",
        "tool_search_output",
        "additional_tools",
        "configuration_update",
        "compaction_trigger",
        REFERENCE,
    }
)
TYPES = OTHER_TYPES | TEXT_FIELDS.keys()
MOVED = {
    "messages": "'messages'. In the Responses API, this parameter has moved to 'input'.",
    "response_format": (
        "'response_format'. In the Responses API, this parameter has moved to 'text.format'."
    ),
    "max_tokens": "'max_tokens'. Use 'max_output_tokens' instead.",
    "max_completion_tokens": "'max_completion_tokens'. Use 'max_output_tokens' instead.",
}


@dataclass(eq=False)
class Stored:
    """What the server keeps between requests."""

    responses: dict[str, JsonObject] = field(default_factory=dict)
    inputs: dict[str, list[JsonObject]] = field(default_factory=dict)
    """By response, the whole input that led to it."""
    items: dict[str, JsonObject] = field(default_factory=dict)
    led: dict[str, str] = field(default_factory=dict)
    """Id of an item: that of the reasoning it was produced with, once seen together."""
    numbers: int = 0

    def next_number(self) -> int:
        self.numbers += 1
        return self.numbers

    def keep(self, response: JsonObject, items: Sequence[JsonObject]) -> None:
        """Store a response and its whole input."""
        name = as_text(response["id"])
        self.responses[name] = response
        self.inputs[name] = [*items]
        for item in (*items, *as_objects(response["output"])):
            if item.get("id"):
                self.items[as_text(item["id"])] = item

    def observe(self, items: Sequence[JsonObject]) -> None:
        """Remember which items were produced with which reasoning."""
        for item, reasoning in _led(items):
            self.led.setdefault(item, reasoning)

    def page(self, method: str, tail: str, body: bytes) -> tuple[int, bytes]:
        """Answer what stands under the endpoint: its path behind it, and the body."""
        name, _, sub = tail.partition("/")
        if method == "POST" and name in {"input_tokens", "compact"} and not sub:
            return 200, dumps(_counted(loads(body)) if name == "input_tokens" else _compacted())
        if name not in self.responses:
            found = openai("url", f"Response with id '{name}' not found.", status=404)
            return found.status, found.body
        if method == "DELETE":
            del self.responses[name]
            return 200, dumps({"id": name, "object": "response", "deleted": True})
        if sub == "input_items":
            return 200, dumps({"object": "list", "data": [*self.inputs[name]], "has_more": False})
        return 200, dumps(self.responses[name])


def _counted(body: Json) -> JsonObject:
    tokens = input_tokens(body, input_items(body)) if isinstance(body, dict) else 0
    return {"object": "response.input_tokens", "input_tokens": tokens}


def _compacted() -> JsonObject:
    item: JsonObject = {"id": "cmp_1", "type": "compaction", "encrypted_content": "c2VhbGVk"}
    return {"id": "resp_cmp", "object": "response.compaction", "output": [item], "usage": None}


# Reading


def input_items(body: JsonObject) -> Sequence[JsonObject]:
    """Return the items of a request; a text is one user message."""
    given = body.get("input")
    return [{"role": "user", "content": given}] if isinstance(given, str) else as_objects(given)


def type_of(item: JsonObject) -> str:
    """Return the type of an item, which may be left out of two."""
    return as_text(item.get("type")) or ("message" if "role" in item else REFERENCE)


def item_texts(item: JsonObject) -> list[str]:
    """Return what an item says: texts, outputs, summaries and arguments."""
    texts = [as_text(item.get(key)) for key in ("content", "output", "name", "arguments", "input")]
    for key in ("content", "output", "summary"):
        for part in as_objects(item.get(key)):
            texts += [as_text(part.get("text")), as_text(part.get("refusal"))]
    return [text for text in texts if text]


def as_messages(items: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the conversation as chat templates see it; chat messages stay what they are."""
    messages: list[JsonObject] = []
    for item in items:
        if "role" in item:
            role = as_text(item["role"])
        else:
            role = "tool" if type_of(item) in PAIRS else "assistant"
        text = "\n".join(item_texts(item))
        if role == "assistant" and messages and messages[-1]["role"] == role:
            messages[-1]["content"] = as_text(messages[-1]["content"]) + "\n" + text
        else:
            messages.append({"role": role, "content": text})
    return messages


def input_tokens(body: JsonObject, items: Sequence[JsonObject]) -> int:
    """Return the size of a prompt as the scripted upstream counts it."""
    chars = len(as_text(body.get("instructions")))
    chars += len(dumps(body["tools"]).decode()) if body.get("tools") else 0
    binaries = 0
    for item in items:
        chars += len("".join(item_texts(item)))
        chars += len(as_text(item.get("encrypted_content"))) * 3 // 4
        parts = [*as_objects(item.get("content")), *as_objects(item.get("output"))]
        binaries += sum(part.get("type") in {"input_image", "input_file"} for part in parts)
    return chars // 4 + binaries * chat.BINARY_TOKENS


# Rejecting


def check(raw: bytes, rules: Rules, stored: Stored) -> list[Rejection]:
    """Return every rejection of a request; the first one is what a server answers."""
    try:
        body = loads(raw)
    except MalformedJson:
        return [openai("json", "We could not parse the JSON body of your request.")]
    if not isinstance(body, dict):
        return [openai("json", "The JSON body of your request must be an object.")]
    if not rules.keeps_chains:
        body.pop("previous_response_id", None)
    found = [*_shape(body), *_parameters(body, rules), *_chain(body, stored)]
    if found:
        return found
    given = input_items(body)
    found = [r for i, item in enumerate(given) for r in _item(i, item)]
    found += _references(given, stored)
    if found:
        return found
    items = _whole_input(body, given, stored)
    found = [
        *_structure(body, items, rules),
        *_ids(items, stored),
        *_window(body, items, rules.window),
    ]
    if not found:
        stored.observe(items)
    return found


def _shape(body: JsonObject) -> Iterator[Rejection]:
    if not isinstance(body.get("model"), str):
        yield openai("shape", "Missing required parameter: 'model'.", param="model")
    given = body.get("input")
    if not isinstance(given, str | list):
        yield openai("shape", "Missing required parameter: 'input'.", param="input")
    elif isinstance(given, list) and len(as_objects(given)) != len(given):
        yield openai("shape", "Invalid type for 'input': expected objects.", param="input")
    if not isinstance(body.get("instructions"), str | None):
        yield openai("shape", "Invalid type for 'instructions'.", param="instructions")


def _parameters(body: JsonObject, rules: Rules) -> Iterator[Rejection]:
    text = body.get("text")
    wanted = text.get("format") if isinstance(text, dict) else None
    kind = as_text(wanted.get("type")) if isinstance(wanted, dict) else ""
    if kind in rules.reject_response_format:
        message = f"Invalid parameter: 'text.format' of type '{kind}' is not supported."
        yield openai("response_format", message, param="text.format")
    if kind == "json_schema" and isinstance(wanted, dict) and not wanted.get("name"):
        yield openai("params", "Missing required parameter: 'text.format.name'.")
    taken = {"response_format"} if rules.takes_response_format else set[str]()
    for name in sorted(MOVED.keys() & body.keys() - taken):
        message = f"Unsupported parameter: {MOVED[name]}"
        yield openai("params", message, param=name, code="unsupported_parameter")
    for name in sorted(rules.reject_params & body.keys()):
        message = f"Unsupported parameter: '{name}' is not supported with this model."
        yield openai("params", message, param=name, code="unsupported_parameter")
    limit = body.get("max_output_tokens")
    if isinstance(limit, int) and limit < MIN_OUTPUT:
        message = f"Invalid 'max_output_tokens': integer below minimum value {MIN_OUTPUT}."
        yield openai("params", message, param="max_output_tokens", code="integer_below_min_value")


def _chain(body: JsonObject, stored: Stored) -> Iterator[Rejection]:
    previous = as_text(body.get("previous_response_id"))
    if previous and body.get("conversation"):
        yield openai("params", "Mutually exclusive: 'previous_response_id' and 'conversation'.")
    if previous and previous not in stored.responses:
        yield openai(
            "chain",
            f"Previous response with id '{previous}' not found.",
            param="previous_response_id",
            code="previous_response_not_found",
        )


def _item(index: int, item: JsonObject) -> Iterator[Rejection]:
    kind, place = type_of(item), f"input[{index}]"
    if kind not in TYPES:
        text = f"Invalid value: '{kind}'. Supported values are: 'message', 'reasoning', ..."
        yield openai("item", text, param=f"{place}.type", code="invalid_value")
    for name in TEXT_FIELDS.get(kind, ()):
        if not isinstance(item.get(name), str):
            text = f"Missing required parameter: '{place}.{name}'."
            yield openai("item", text, param=f"{place}.{name}", code="missing_required_parameter")
    if len(as_text(item.get("call_id"))) > MAX_CALL_ID:
        yield openai("item", f"Invalid '{place}.call_id': string too long.", param=place)
    if kind == "reasoning" and not isinstance(item.get("summary"), list):
        text = f"Missing required parameter: '{place}.summary'."
        yield openai("item", text, param=f"{place}.summary", code="missing_required_parameter")
    problem = _content_problem(item, kind)
    if problem:
        yield openai("item", problem, param=place)


def _content_problem(item: JsonObject, kind: str) -> str:
    if kind == "message":
        role = item.get("role")
        if role not in {"user", "assistant", "system", "developer"}:
            return f"Invalid value: '{role}'. Supported values are: 'assistant', 'system', ..."
        allowed = OUTPUT_PARTS if role == "assistant" else INPUT_PARTS
        return _parts_problem(item.get("content"), allowed)
    if kind in {"function_call_output", "custom_tool_call_output"}:
        return _parts_problem(item.get("output"), INPUT_PARTS)
    return ""


def _parts_problem(value: Json, allowed: frozenset[str]) -> str:
    if isinstance(value, str):
        return ""
    if not isinstance(value, list) or not value:
        return "Invalid type: expected a string or an array of parts."
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in allowed:
            return f"Invalid value: '{kind}'. Supported values are: {sorted(allowed)}."
        if isinstance(part, dict) and kind == "input_text" and not as_text(part.get("text")):
            return "text content blocks must be non-empty"
    return ""


def _references(items: Sequence[JsonObject], stored: Stored) -> Iterator[Rejection]:
    for item in items:
        name = as_text(item.get("id"))
        if type_of(item) == REFERENCE:
            gone = name not in stored.items
        else:
            # What is neither sealed nor spelled out must be in the server's own store.
            told = item.get("encrypted_content") or item.get("content") or name in stored.items
            gone = type_of(item) == "reasoning" and bool(name) and not told
        if gone:
            text = (
                f"Item with id '{name}' not found. Items are not persisted when `store` is set to "
                "false. Try again with `store` set to true, or remove this item from your input."
            )
            yield openai("ids", text, param="input", status=404)


def whole_input(body: JsonObject, stored: Stored) -> list[JsonObject]:
    """Return the items of a request, with everything kept that it refers to."""
    return _whole_input(body, input_items(body), stored)


def _whole_input(body: JsonObject, given: Sequence[JsonObject], stored: Stored) -> list[JsonObject]:
    items: list[JsonObject] = []
    previous = as_text(body.get("previous_response_id"))
    if previous:
        items += stored.inputs.get(previous, [])
        items += as_objects(stored.responses.get(previous, {}).get("output"))
    for item in given:
        kept = stored.items.get(as_text(item.get("id")), item)
        items.append(kept if type_of(item) == REFERENCE else item)
    return items


def _structure(body: JsonObject, items: Sequence[JsonObject], rules: Rules) -> Iterator[Rejection]:
    if rules.strict_pairing:
        yield from pairing(items)
        yield from followed(items)
    messages = as_messages(items)
    if rules.one_system:
        yield from chat.one_system(messages)
    if rules.alternate:
        yield from chat.alternate(messages)
    if rules.first_user:
        yield from chat.first_user(messages)
    if rules.template is not None:
        yield from rules.template(rendered(items, as_text(body.get("instructions"))))


def rendered(items: Sequence[JsonObject], told: str = "") -> list[JsonObject]:
    """Return what a chat template is given: calls belong to the model's message before them."""
    messages: list[JsonObject] = [{"role": "system", "content": told}] if told else []
    for item in items:
        kind = type_of(item)
        if kind in CALLS:
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": ""})
            messages[-1]["tool_calls"] = [{}]
        elif kind in PAIRS:
            messages.append({"role": "tool", "content": ""})
        elif kind == "message":
            messages.append({"role": as_text(item.get("role")), "content": ""})
    return messages


def pairing(items: Sequence[JsonObject]) -> Iterator[Rejection]:
    """Each call answered once by an output of its kind behind it, and no other output."""
    opened: list[tuple[str, str]] = []
    for item in items:
        kind = type_of(item)
        if kind in CALLS:
            opened.append((kind, as_text(item.get("call_id"))))
        elif kind in PAIRS:
            call, key = PAIRS[kind]
            answered = (call, as_text(item.get(key)))
            if answered in opened:
                opened.remove(answered)
            elif answered[1]:
                what = kind.replace("_", " ")
                text = f"No tool call found for {what} with call_id {answered[1]}."
                yield openai("pairing", text, param="input")
    for kind, name in opened:
        text = f"No tool output found for {kind.replace('_', ' ')} {name}."
        yield openai("pairing", text, param="input")


def followed(items: Sequence[JsonObject]) -> Iterator[Rejection]:
    """Behind reasoning comes what it produced."""
    end: JsonObject = {"role": "user"}
    for item, after in pairwise([*items, end]):
        if type_of(item) == "reasoning" and not _is_output(after):
            text = (
                f"Item '{as_text(item.get('id'))}' of type 'reasoning' was provided without its "
                "required following item."
            )
            yield openai("reasoning", text, param="input")


def _is_output(item: JsonObject) -> bool:
    kind = type_of(item)
    if kind == "message":
        return item.get("role") == "assistant"
    return kind not in PAIRS and kind not in NOT_THE_MODELS


def _led(items: Sequence[JsonObject]) -> Iterator[tuple[str, str]]:
    """Yield the id of each item that was led to, and that of its reasoning."""
    reasoning = ""
    for item in items:
        if type_of(item) == "reasoning":
            reasoning = as_text(item.get("id"))
        elif not _is_output(item):
            reasoning = ""
        elif reasoning and item.get("id"):
            yield as_text(item["id"]), reasoning


def _ids(items: Sequence[JsonObject], stored: Stored) -> Iterator[Rejection]:
    seen = set[str]()
    present = dict(_led(items))
    for index, item in enumerate(items):
        kind, name = type_of(item), as_text(item.get("id"))
        if not name or kind in PAIRS:
            continue
        if name in seen:
            text = f"Duplicate item found with id {name}. Remove duplicate items and try again."
            yield openai("ids", text, param="input")
        seen.add(name)
        role = "assistant message" if item.get("role") == "assistant" else kind
        prefix = PREFIXES.get(role, "")
        if not name.startswith(prefix):
            text = (
                f"Invalid 'input[{index}].id': '{name}'. Expected an ID that begins with "
                f"'{prefix}'."
            )
            yield openai("ids", text, param=f"input[{index}].id", code="invalid_value")
        reasoning = stored.led.get(name)
        if reasoning and present.get(name) != reasoning:
            text = (
                f"Item '{name}' of type '{kind}' was provided without its required 'reasoning' "
                f"item: '{reasoning}'."
            )
            yield openai("reasoning", text, param="input")


def _window(
    body: JsonObject, items: Sequence[JsonObject], window: int | None
) -> Iterator[Rejection]:
    if window is not None and input_tokens(body, items) >= window:
        text = (
            "Your input exceeds the context window of this model. Please adjust your input and "
            "try again."
        )
        yield openai("window", text, param="input", code="context_length_exceeded")


# Answering


@dataclass(frozen=True, slots=True)
class ResponsesAnswer:
    """A reply as the Responses API spells it; making it whole or as events stores it."""

    number: int
    model: str
    body: JsonObject
    """The request."""
    reply: Reply
    stored: Stored

    def whole(self) -> JsonObject:
        status = "incomplete" if self.reply.finish == "length" else "completed"
        response = response_object(self.body, self.number, self.model, status)
        response["output"] = [*self._output()]
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        items = _whole_input(self.body, input_items(self.body), self.stored)
        read, made = input_tokens(self.body, items), output_tokens(self.reply)
        response["usage"] = {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + made,
        }
        if self.body.get("store") is not False:
            self.stored.keep(response, items)
        self.stored.observe(as_objects(response["output"]))
        return response

    def _output(self) -> list[JsonObject]:
        reply, output = self.reply, list[JsonObject]()
        if reply.reasoning:
            part: JsonObject = {"type": "summary_text", "text": reply.reasoning}
            item: JsonObject = {"type": "reasoning", "summary": [part]}
            include = self.body.get("include")
            if isinstance(include, list) and "reasoning.encrypted_content" in include:
                item["encrypted_content"] = "c2VhbGVk" * 40
            output.append({"id": f"rs_{self.number}", **item})
        if reply.text or not (reply.tool_calls or reply.custom_calls):
            said: JsonObject = {"type": "output_text", "text": reply.text, "annotations": []}
            output.append(
                {
                    "id": f"msg_{self.number}",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [said],
                }
            )
        calls = [("fc", "function_call", "arguments", call) for call in reply.tool_calls]
        calls += [("ctc", "custom_tool_call", "input", call) for call in reply.custom_calls]
        for place, (prefix, kind, key, (call_id, name, given)) in enumerate(calls):
            call: JsonObject = {"id": f"{prefix}_{self.number}_{place}", "type": kind}
            output.append({**call, "status": "completed", "call_id": call_id, "name": name})
            output[-1][key] = given
        return output

    def events(self) -> list[bytes]:
        whole = self.whole()
        status = as_text(whole["status"])
        begun: JsonObject = {**whole, "status": "in_progress", "output": [], "usage": None}
        begun["incomplete_details"] = None
        events: list[JsonObject] = [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
        ]
        for index, item in enumerate(as_objects(whole["output"])):
            events += _item_events(index, item)
        events.append({"type": f"response.{status}", "response": whole})
        return _spelled(events)


def _item_events(index: int, item: JsonObject) -> list[JsonObject]:
    kind, at = as_text(item["type"]), {"output_index": index}
    place: JsonObject = {"item_id": item["id"], **at}
    if kind == "function_call":
        opening: JsonObject = {**item, "status": "in_progress", "arguments": ""}
        inner = _text_events("function_call_arguments", place, "arguments", item["arguments"])
    elif kind == "custom_tool_call":
        opening = {**item, "status": "in_progress", "input": ""}
        inner = _text_events("custom_tool_call_input", place, "input", item["input"])
    elif kind == "reasoning":
        opening = {**item, "summary": []}
        inner = _part_events("reasoning_summary", "summary_index", place, item["summary"])
    else:
        opening = {**item, "status": "in_progress", "content": []}
        inner = _part_events("output", "content_index", place, item["content"])
    return [
        {"type": "response.output_item.added", **at, "item": opening},
        *inner,
        {"type": "response.output_item.done", **at, "item": item},
    ]


def _part_events(name: str, counter: str, place: JsonObject, parts: Json) -> list[JsonObject]:
    prefix = "content" if name == "output" else name
    events: list[JsonObject] = []
    for index, part in enumerate(as_objects(parts)):
        at: JsonObject = {**place, counter: index}
        events.append({"type": f"response.{prefix}_part.added", **at, "part": {**part, "text": ""}})
        events += _text_events(f"{name}_text", at, "text", part["text"])
        events.append({"type": f"response.{prefix}_part.done", **at, "part": part})
    return events


def _text_events(name: str, place: JsonObject, key: str, text: Json) -> list[JsonObject]:
    whole = as_text(text)
    more: JsonObject = {"logprobs": []} if name == "output_text" else {}
    deltas: list[JsonObject] = [
        {"type": f"response.{name}.delta", **place, "delta": piece, **more}
        for piece in pieces(whole, 4)
    ]
    return [*deltas, {"type": f"response.{name}.done", **place, key: whole, **more}]


def _spelled(events: Sequence[JsonObject]) -> list[bytes]:
    return [
        b"event: %b\ndata: %b\n\n"
        % (as_text(event["type"]).encode(), dumps({**event, "sequence_number": number}))
        for number, event in enumerate(events)
    ]


def failure(body: JsonObject, error: JsonObject) -> list[bytes]:
    """Return the stream in which OpenAI tells of an overflow, after a status of 200."""
    begun = response_object(body, 0, as_text(body.get("model")), "in_progress")
    why: JsonObject = {"code": error["code"], "message": error["message"]}
    return _spelled(
        [
            {"type": "response.created", "response": begun},
            {"type": "response.in_progress", "response": begun},
            {"type": "error", "error": error},
            {"type": "response.failed", "response": {**begun, "status": "failed", "error": why}},
        ]
    )


def response_object(body: JsonObject, number: int, model: str, status: str) -> JsonObject:
    """Return a response without output, with the members and in the order of OpenAI's."""
    return {
        "id": f"resp_{number:032x}",
        "object": "response",
        "created_at": 1795000000 + number,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.get("instructions"),
        "max_output_tokens": body.get("max_output_tokens"),
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "reasoning": {"effort": None, "summary": None},
        "store": body.get("store") is not False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None,
        "user": None,
        "metadata": {},
    }
