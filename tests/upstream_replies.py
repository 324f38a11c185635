"""What the scripted upstream answers, and how that is spelled in Chat Completions."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proxy.codec import Json, JsonObject, dumps
from tests.upstream_rules import measured, prompt_tokens


@dataclass(kw_only=True)
class Reply:
    """How a request to a model is answered; the first of drop, hang, chunks, raw_body set."""

    text: str = "ok"
    tool_calls: Sequence[tuple[str, str, str]] = ()
    """(id, name, arguments) of each call."""
    status: int = 200
    """With another status and no `raw_body`, `text` is the message of an OpenAI error."""
    headers: Mapping[str, str] = field(default_factory=dict)
    raw_body: bytes | None = None
    chunks: Sequence[bytes] | None = None
    """Body pieces written one by one as they are."""
    delay: float = 0.0
    """Seconds before the headers."""
    gate: asyncio.Event | None = None
    """Waited for after the first half of a streamed body (never set: hangs mid-stream)."""
    hang: bool = False
    """Never answer; wait until the client leaves."""
    drop: bool = False
    """Break the connection before any byte of the answer, and again when it is sent once more."""
    cut: bool = False
    """Break the connection after the first half of the body."""
    finish_reason: str | None = None
    custom_calls: Sequence[tuple[str, str, str]] = ()
    """(call id, name, input) of each call of a custom tool; in the Responses API only."""
    reasoning: str = ""
    """Summary of a reasoning item in front of all else; in the Responses API only."""

    @property
    def finish(self) -> str:
        return self.finish_reason or ("tool_calls" if self.tool_calls else "stop")


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """A reply as Chat Completions spells it."""

    number: int
    model: str
    timings: bool
    body: JsonObject
    """The request."""
    reply: Reply

    def _head(self, kind: str) -> JsonObject:
        return {
            "id": f"chatcmpl-{self.number}",
            "object": kind,
            "created": 1795000000 + self.number,
            "model": self.model,
            "system_fingerprint": "fp_scripted",
        }

    def _usage(self) -> tuple[JsonObject, JsonObject]:
        usage, timings = measured(prompt_tokens(self.body), output_tokens(self.reply))
        return usage, {"timings": timings} if self.timings else {}

    def whole(self) -> JsonObject:
        usage, timings = self._usage()
        reply = self.reply
        message: JsonObject = {"role": "assistant", "content": reply.text}
        if reply.tool_calls:
            message["content"] = reply.text or None
            message["tool_calls"] = [_call(*call) for call in reply.tool_calls]
        choice: JsonObject = {"index": 0, "message": message, "finish_reason": reply.finish}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage, **timings}

    def events(self) -> list[bytes]:
        usage, timings = self._usage()
        reply = self.reply
        options = self.body.get("stream_options")
        with_usage = isinstance(options, dict) and options.get("include_usage") is True
        head = self._head("chat.completion.chunk")

        def chunk(choices: list[Json], extra: JsonObject) -> bytes:
            return b"data: " + dumps({**head, "choices": choices, **extra}) + b"\n\n"

        def delta(content: JsonObject, finish: str | None = None) -> bytes:
            extra: JsonObject = {"usage": None} if with_usage else {}
            if finish is not None and not with_usage:
                extra = timings
            return chunk([{"index": 0, "delta": content, "finish_reason": finish}], extra)

        events = [delta({"role": "assistant", "content": None})]
        events += [delta({"content": piece}) for piece in pieces(reply.text, 4)]
        for index, (call_id, name, arguments) in enumerate(reply.tool_calls):
            opening: JsonObject = {"index": index, **_call(call_id, name, "")}
            events.append(delta({"tool_calls": [opening]}))
            for piece in (arguments[: len(arguments) // 2], arguments[len(arguments) // 2 :]):
                fragment: JsonObject = {"index": index, "function": {"arguments": piece}}
                events.append(delta({"tool_calls": [fragment]}))
        events.append(delta({}, reply.finish))
        if with_usage:
            events.append(chunk([], {"usage": usage, **timings}))
        return [*events, b"data: [DONE]\n\n"]


def pieces(text: str, count: int) -> list[str]:
    """Cut a text into at most so many pieces."""
    step = max(1, -(-len(text) // count))
    return [text[start : start + step] for start in range(0, len(text), step)]


def output_tokens(reply: Reply) -> int:
    """Return what the scripted upstream counts for a reply."""
    calls = [*reply.tool_calls, *reply.custom_calls]
    made = len(reply.text) + len(reply.reasoning)
    return max(1, (made + sum(len(name) + len(given) for _, name, given in calls)) // 4)


def _call(call_id: str, name: str, arguments: str) -> JsonObject:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
