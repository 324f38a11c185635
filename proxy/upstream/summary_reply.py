"""What a summariser replies, in either API: its content channel, and how it ended."""

from dataclasses import dataclass, field

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.dialects.sse import EventReader
from proxy.errors import SummaryFailed
from proxy.upstream.overflow import Overflow, classify_event

MAX_CHARS_PER_TOKEN = 32
"""No text has more; a stream that goes on beyond that is left."""


@dataclass(frozen=True, slots=True)
class SummaryText:
    """What the summariser wrote."""

    text: str = field(repr=False)
    cut: bool
    """Ended by its output limit, the deadline or a broken connection."""
    prompt_tokens: int | None = None
    """What the upstream counted for the prompt, where it told."""
    calls: int = 1
    """How often the upstream was asked, forms that it does not take included."""


def overflowed(reason: str, told: Overflow) -> SummaryFailed:
    """Return the failure of a prompt that was too long, with what was told of it."""
    detail = "the summariser's prompt was too long for it"
    return SummaryFailed(reason, detail, overflowed=True, limit=told.limit, prompt=told.prompt)


def whole(body: bytes, collected: "Collected") -> SummaryText:
    """Read a reply that was not streamed.

    Raises:
        SummaryFailed: when it is none, or an error.
    """
    try:
        document = codec.loads(body)
    except codec.MalformedJson:
        raise SummaryFailed("malformed_reply", "the summariser's reply is not JSON") from None
    if isinstance(document, dict) and document.get("object") == "response":
        if _is_error(document):
            raise SummaryFailed("error_in_stream", "the summariser's response holds an error")
        collected.response(document, with_text=True)
    elif isinstance(document, dict) and codec.as_objects(document.get("choices")):
        collected.choice(document, "message")
    else:
        raise SummaryFailed("malformed_reply", "the summariser's reply is no completion")
    return collected.result()


class Collected:
    """The content channel of a reply, as far as it came."""

    def __init__(self, limit: int) -> None:
        """Take the output limit that was asked for, tokens."""
        self._limit = limit
        self._reader = EventReader()
        self._most = MAX_CHARS_PER_TOKEN * limit
        self._parts: list[str] = []
        self._chars = 0
        self._finish = ""
        self._tool_call = False
        self._prompt: int | None = None

    @property
    def text(self) -> str:
        """What was written so far."""
        return "".join(self._parts)

    def take(self, chunk: bytes) -> bool:
        """Take stream bytes; True once the stream has said that it is done.

        Raises:
            SummaryFailed: when it holds an error, or no JSON.
        """
        for data in self._reader.feed(chunk):
            if data == b"[DONE]":
                return True
            try:
                event = codec.loads(data)
            except codec.MalformedJson:
                raise SummaryFailed("malformed_reply", "the stream is not JSON") from None
            if isinstance(event, dict) and _is_error(event):
                if self.text.strip():
                    self._finish = "length"
                    return True
                overflow = classify_event(data)
                if overflow is not None:
                    raise overflowed("error_in_stream", overflow)
                raise SummaryFailed("error_in_stream", "the summariser's stream held an error")
            if isinstance(event, dict) and _type_of(event).startswith("response."):
                if self._responses_event(event):
                    return True
            else:
                self.choice(event, "delta")
            if self._chars > self._most:
                # Not every server keeps to the output limit.
                self._finish = "length"
                return True
        return False

    def _add(self, text: str) -> None:
        if text:
            self._parts.append(text)
            self._chars += len(text)

    def _responses_event(self, event: JsonObject) -> bool:
        """Take an event of the Responses API; True when it is the last one."""
        type_ = _type_of(event)
        if type_ == "response.output_text.delta":
            self._add(codec.as_text(event.get("delta")))
        elif type_ in {"response.completed", "response.incomplete"}:
            self.response(event.get("response"), with_text=not self._parts)
            return True
        return False

    def response(self, response: Json, *, with_text: bool) -> None:
        """Take a whole response of the Responses API."""
        members = response if isinstance(response, dict) else {}
        for item in codec.as_objects(members.get("output")):
            self._tool_call = self._tool_call or _type_of(item).endswith("_call")
            if with_text and _type_of(item) == "message":
                self._add(_content(item.get("content")))
        usage = members.get("usage")
        written = usage.get("output_tokens") if isinstance(usage, dict) else None
        self._prompt = _count(usage, "input_tokens")
        # llama.cpp says "completed" even of what its output limit cut off.
        cut = isinstance(written, int) and written >= self._limit
        self._finish = "stop" if members.get("status") == "completed" and not cut else "length"

    def choice(self, document: Json, member: str) -> None:
        """Take a chunk or a whole completion of Chat Completions."""
        if not isinstance(document, dict):
            return
        told = _count(document.get("usage"), "prompt_tokens") or _read(document.get("timings"))
        self._prompt = told or self._prompt
        choices = document.get("choices")
        for choice in codec.as_objects(choices)[:1]:
            message = choice.get(member)
            if isinstance(message, dict):
                self._add(_content(message.get("content")))
                self._tool_call = self._tool_call or bool(message.get("tool_calls"))
            self._finish = codec.as_text(choice.get("finish_reason")) or self._finish

    def result(self) -> SummaryText:
        """Return what was written.

        Raises:
            SummaryFailed: when that is nothing, or a tool call.
        """
        if self._tool_call and not self.text.strip():
            raise SummaryFailed("tool_call", "the summariser answered with a tool call")
        if not self._finish and not self.text:
            raise SummaryFailed("broken_stream", "the summariser's reply holds nothing")
        # A stream that ends without a finish reason was cut (llama.cpp and OpenAI always send one).
        cut = self._finish not in {"stop", "tool_calls", "eos"}
        return SummaryText(self.text, cut, self._prompt)


def _read(timings: Json) -> int | None:
    # llama.cpp tells these without being asked: what it read, and what it knew already.
    read = _count(timings, "prompt_n")
    return None if read is None else read + (_count(timings, "cache_n") or 0)


def _count(usage: Json, name: str) -> int | None:
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) and count > 0 else None


def _type_of(event: JsonObject) -> str:
    return codec.as_text(event.get("type"))


def _is_error(event: JsonObject) -> bool:
    return bool(event.get("error")) or _type_of(event) in {"error", "response.failed"}


def _content(content: Json) -> str:
    if isinstance(content, list):
        return "".join(codec.as_text(part.get("text")) for part in codec.as_objects(content))
    return codec.as_text(content)
