"""Writing the messages of a rewritten Chat Completions body."""

from proxy.codec import Json, JsonObject
from proxy.dialects.writing import PieceWriter
from proxy.transcript import Caps


class MessageWriter(PieceWriter):
    """Writes the messages of one body."""

    __slots__ = ()
    text_part = "text"

    def record(self, text: str) -> JsonObject:
        """Return a user message that holds nothing but a checkpoint."""
        return {"role": "user", "content": text}

    def clipped(self, element: JsonObject, caps: Caps) -> dict[str, Json]:
        """Return the members of a message that change when it is clipped."""
        changes: dict[str, Json] = {}
        if caps.text is not None:
            changes["content"] = self._clip_content(element.get("content"), caps.text)
        if caps.arguments is not None:
            for key in ("tool_calls", "function_call"):
                if element.get(key):
                    changes[key] = self._clip_calls(element[key], caps.arguments)
        return changes

    def _clip_content(self, content: Json, cap: int) -> Json:
        if isinstance(content, str):
            return self.clip_texts([content], cap)[0]
        return self.clip_parts(content, cap) if isinstance(content, list) else content

    def _clip_calls(self, value: Json, cap: int) -> Json:
        if isinstance(value, list):
            return [self._clip_calls(entry, cap) for entry in value]
        if not isinstance(value, dict):
            return value
        clipped: JsonObject = dict(value)
        for holder in ("function", "custom"):
            if isinstance(value.get(holder), dict):
                clipped[holder] = self._clip_calls(value[holder], cap)
        for key in ("arguments", "input"):
            if isinstance(value.get(key), str | dict | list):
                clipped[key] = self.clip_argument(value[key], cap)
        return clipped
