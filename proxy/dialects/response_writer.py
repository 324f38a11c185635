"""Writing the items of a rewritten Responses body."""

from collections.abc import Sequence

from proxy.codec import Json, JsonObject
from proxy.dialects import response_items
from proxy.dialects.parts import text_of
from proxy.dialects.writing import PieceWriter
from proxy.transcript import Caps


class ItemWriter(PieceWriter):
    """Writes the items of one body."""

    __slots__ = ()
    text_part = "input_text"

    def record(self, text: str) -> JsonObject:
        """Return a user message that holds nothing but a checkpoint."""
        part: JsonObject = {"type": self.text_part, "text": text}
        return {"type": "message", "role": "user", "content": [part]}

    def clipped(self, element: JsonObject, caps: Caps) -> dict[str, Json]:
        """Return the members of an item that change when it is clipped."""
        changes: dict[str, Json] = {}
        key = response_items.text_member(element)
        if caps.text is not None and key is not None and element.get(key):
            changes[key] = self._clip_text(element, element[key], caps.text)
        key = response_items.argument_member(element)
        if caps.arguments is not None and key is not None:
            changes[key] = self.clip_argument(element[key], caps.arguments)
        return changes

    def _clip_text(self, item: JsonObject, value: Json, cap: int) -> Json:
        if isinstance(value, str):
            return self.clip_texts([value], cap)[0]
        if isinstance(value, dict):
            # One part without a list around it.
            return self.clip_parts([value], cap)[0]
        if not isinstance(value, list):
            return value
        if item.get("type") == response_items.SHELL_OUTPUT:
            return self._clip_streams(value, cap)
        return self.clip_parts(value, cap)

    def _clip_streams(self, outputs: Sequence[Json], cap: int) -> list[Json]:
        said = [text_of(output, name) for output in outputs for name in response_items.STREAMS]
        left = self.clip_texts([text for text in said if text], cap)
        clipped: list[Json] = []
        for output in outputs:
            if not isinstance(output, dict):
                clipped.append(output)
                continue
            # An emptied stream stays, since both must be there.
            names = [name for name in response_items.STREAMS if text_of(output, name)]
            clipped.append({**output, **{n: left.pop(0) if left else "" for n in names}})
        return clipped
