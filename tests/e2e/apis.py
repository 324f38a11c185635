"""The two APIs behind one face, so that what must hold of both is said once.

A conversation is told in chat messages (`tests.builders`); an `Api` spells it as its clients do,
scripts and reads replies, and reads what the summariser was asked. Items of the Responses API may
stand among the messages where only that API is meant.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.codec import Json, JsonObject, as_objects, as_text, dumps, loads
from tests import items as i
from tests.upstream import CHAT as CHAT_NAME
from tests.upstream import CHAT_PATH, Recorded
from tests.upstream import RESPONSES as RESPONSES_NAME
from tests.upstream_responses import RESPONSES_PATH

COMMENT = b": compacting\n\n"
STATELESS: JsonObject = {
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "high"},
}
"""What agents send that leave nothing to the server."""


class Api(ABC):
    """One of the APIs, as agents use it."""

    name: str
    path: str
    member: str
    """Where a body has the conversation."""
    stream_option: str
    """What clients may ask of a stream besides."""
    limits: tuple[str, ...]
    """Members that limit the output, the usual one first."""
    summary_members: frozenset[str]
    """What a request of the summariser consists of."""

    @abstractmethod
    def spelled(self, messages: Sequence[JsonObject]) -> list[list[JsonObject]]:
        """The elements that each message becomes."""

    @abstractmethod
    def body(self, messages: Sequence[JsonObject], **fields: Json) -> bytes:
        """A request."""

    def part(self, part: JsonObject) -> JsonObject:
        """A part of a user message or a result."""
        return part

    @abstractmethod
    def events(self, received: bytes) -> list[JsonObject]:
        """The events of a stream that came to its proper end; comments are passed over."""

    @abstractmethod
    def error_of(self, received: bytes) -> JsonObject:
        """The error that is all that a stream tells, besides comments, in its proper form."""

    @abstractmethod
    def delta(self, text: str) -> bytes:
        """An event with a piece of text."""

    @abstractmethod
    def thought(self, text: str) -> bytes:
        """An event with a piece of reasoning."""

    @abstractmethod
    def end(self, text: str) -> bytes:
        """What comes when all of the text was told."""

    @abstractmethod
    def failure(self, message: str) -> bytes:
        """An error in the midst of a stream."""

    @abstractmethod
    def whole(self, text: str) -> bytes:
        """A reply that is not streamed."""

    @abstractmethod
    def structure_of(self, call: Recorded) -> str:
        """Which form of structured output a summariser's call asks for."""

    def limits_of(self, call: Recorded) -> list[str]:
        """Which members limit the output of a summariser's call."""
        return [name for name in self.limits if name in call.json]

    def __str__(self) -> str:
        return self.name


class Chat(Api):
    """Chat Completions."""

    name = CHAT_NAME
    path = CHAT_PATH
    member = "messages"
    stream_option = "include_usage"
    limits = ("max_tokens", "max_completion_tokens")
    summary_members = frozenset({"model", "messages", "max_tokens", "stream", "response_format"})

    def spelled(self, messages: Sequence[JsonObject]) -> list[list[JsonObject]]:
        return [[message] for message in messages]

    def body(self, messages: Sequence[JsonObject], **fields: Json) -> bytes:
        return dumps({"model": "test-model", "messages": [*messages], **fields})

    def events(self, received: bytes) -> list[JsonObject]:
        blocks = _blocks(received)
        assert blocks.pop() == b"data: [DONE]"
        return [_data(block) for block in blocks]

    def error_of(self, received: bytes) -> JsonObject:
        assert received.endswith(b"\n\n")
        (block,) = _blocks(received)
        error = _data(block)["error"]
        return {"message": error} if isinstance(error, str) else _object(error)

    def delta(self, text: str) -> bytes:
        return self._chunk({"content": text})

    def thought(self, text: str) -> bytes:
        return self._chunk({"reasoning_content": text})

    def end(self, text: str) -> bytes:
        return self._chunk({}, "stop") + b"data: [DONE]\n\n"

    def failure(self, message: str) -> bytes:
        return b"data: %b\n\n" % dumps({"error": {"message": message, "code": 503}})

    def whole(self, text: str) -> bytes:
        choice: JsonObject = {"index": 0, "message": {"content": text}, "finish_reason": "stop"}
        return dumps({"choices": [choice]})

    def structure_of(self, call: Recorded) -> str:
        wanted = call.json.get("response_format")
        return as_text(wanted["type"]) if isinstance(wanted, dict) else ""

    def _chunk(self, delta: JsonObject, finish: str | None = None) -> bytes:
        choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": finish}
        return b"data: %b\n\n" % dumps({"choices": [choice]})


@dataclass(frozen=True)
class Responses(Api):
    """Responses, as stateless agents use it: with sealed reasoning in front of each output."""

    sealed_bytes: int = 120
    """Size of each reasoning item; with 0 there are none."""
    ids: bool = True
    """Whether items come back with their ids and states; pydantic-ai and others drop them."""
    stateless: bool = True
    """Whether the client says that nothing is left to the server."""

    name = RESPONSES_NAME
    path = RESPONSES_PATH
    member = "input"
    stream_option = "include_obfuscation"
    limits = ("max_output_tokens",)
    summary_members = frozenset({"model", "input", "text", "max_output_tokens", "stream", "store"})

    def spelled(self, messages: Sequence[JsonObject]) -> list[list[JsonObject]]:
        groups = i.from_chat(messages, sealed_bytes=self.sealed_bytes)
        if self.ids:
            return groups
        lost = {"id", "status"}
        return [[{k: v for k, v in item.items() if k not in lost} for item in g] for g in groups]

    def body(self, messages: Sequence[JsonObject], **fields: Json) -> bytes:
        """A leading system message becomes the instructions; tools are spelled in this API, too."""
        items = [item for group in self.spelled(messages) for item in group]
        told = bool(messages) and messages[0].get("role") == "system" and "type" not in messages[0]
        head: JsonObject = {"instructions": messages[0]["content"]} if told else {}
        state = STATELESS if self.stateless else {}
        if "tools" in fields:
            tools = as_objects(fields["tools"])
            fields["tools"] = [{"type": "function", **_object(t["function"])} for t in tools]
        return dumps({"model": "test-model", **head, "input": [*items], **state, **fields})

    def part(self, part: JsonObject) -> JsonObject:
        return i.part(part)

    def events(self, received: bytes) -> list[JsonObject]:
        events = _named(received)
        assert events[0]["type"] == "response.created"
        assert events[-1]["type"] == "response.completed"
        return events

    def error_of(self, received: bytes) -> JsonObject:
        """As OpenAI tells it: the response is made, fails, and says why in both places."""
        events = _named(received)
        kinds = ["response.created", "response.in_progress", "error", "response.failed"]
        assert [e["type"] for e in events] == kinds
        error, failed = _object(events[2]["error"]), _object(events[3]["response"])
        why = _object(failed["error"])
        assert error.keys() >= {"type", "code", "message", "param"}
        assert (failed["status"], failed["model"]) == ("failed", "test-model")
        assert why["message"] == error["message"]
        assert isinstance(why["code"], str)
        return {**error, "code": why["code"]}

    def delta(self, text: str) -> bytes:
        return event("response.output_text.delta", delta=text)

    def thought(self, text: str) -> bytes:
        return event("response.reasoning_summary_text.delta", delta=text)

    def end(self, text: str) -> bytes:
        done = event("response.output_text.done", text=text) if text else b""
        return done + event("response.completed", response=said(text))

    def failure(self, message: str) -> bytes:
        error: JsonObject = {"code": "server_error", "message": message}
        return event("error", error=error) + event(
            "response.failed", response={"status": "failed", "error": error}
        )

    def whole(self, text: str) -> bytes:
        return dumps(said(text))

    def structure_of(self, call: Recorded) -> str:
        text = call.json.get("text")
        wanted = text.get("format") if isinstance(text, dict) else None
        return as_text(wanted["type"]) if isinstance(wanted, dict) else ""


CHAT, RESPONSES = Chat(), Responses()
APIS: Sequence[Api] = (CHAT, RESPONSES)


def said(text: str, status: str = "completed", **fields: Json) -> JsonObject:
    """A whole response with one message, or with none."""
    part: JsonObject = {"type": "output_text", "text": text}
    message: JsonObject = {"type": "message", "role": "assistant", "content": [part]}
    output: list[Json] = [message] if text else []
    return {"object": "response", "status": status, "output": output, **fields}


def event(type_: str, **fields: Json) -> bytes:
    """An event of the Responses API."""
    return b"event: %b\ndata: %b\n\n" % (type_.encode(), dumps({"type": type_, **fields}))


def _blocks(received: bytes) -> list[bytes]:
    return [block for block in received.replace(COMMENT, b"").split(b"\n\n") if block]


def _data(block: bytes) -> JsonObject:
    assert block.startswith(b"data: ")
    return _object(loads(block.removeprefix(b"data: ")))


def _object(value: Json) -> JsonObject:
    assert isinstance(value, dict)
    return value


def _named(received: bytes) -> list[JsonObject]:
    """The events of the Responses API, each named as its type says, numbered through."""
    events = []
    for block in _blocks(received):
        name, _, data = block.partition(b"\n")
        events.append(_data(data))
        assert name == b"event: " + as_text(events[-1]["type"]).encode()
    assert [e["sequence_number"] for e in events] == [*range(len(events))]
    return events
