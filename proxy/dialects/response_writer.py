"""Writing the items of a rewritten Responses body.

Only what must differ is encoded anew: the text of an item that is clipped or carries the
checkpoint. Its other members, and every other item, are the client's own bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.dialects import response_items
from proxy.dialects.bodies import ArgumentClipper, TextClipper
from proxy.transcript import Caps, Carry, Keep, Piece


@dataclass(frozen=True, slots=True)
class ItemWriter:
    """Writes the items of one body."""

    clip_texts: TextClipper
    clip_arguments: ArgumentClipper

    def write(self, piece: Piece) -> bytes:
        """Return the raw JSON of one item; an item kept whole is the client's own bytes."""
        if isinstance(piece, Keep):
            return self._kept(piece)
        if not piece.onto:
            part: JsonObject = {"type": "input_text", "text": piece.text}
            return codec.dumps({"type": "message", "role": "user", "content": [part]})
        return self._carried(piece)

    def _kept(self, kept: Keep) -> bytes:
        if kept.caps == Caps():
            return kept.item.raw
        item = codec.loads(kept.item.raw)
        if not isinstance(item, dict):
            return kept.item.raw
        changes: dict[str, bytes] = {}
        key = response_items.text_member(item)
        if kept.caps.text is not None and key is not None and item.get(key):
            changes[key] = codec.dumps(self._clip_text(item, item[key], kept.caps.text))
        key = response_items.argument_member(item)
        if kept.caps.arguments is not None and key is not None:
            changes[key] = codec.dumps(self._clip_argument(item[key], kept.caps.arguments))
        return codec.replace_members(codec.mend_surrogates(kept.item.raw), changes)

    def _clip_argument(self, argument: Json, cap: int) -> Json:
        if isinstance(argument, str):
            return self.clip_arguments(argument, cap)
        return codec.loads(self.clip_arguments(codec.dumps(argument).decode(), cap))

    def _clip_text(self, item: JsonObject, value: Json, cap: int) -> Json:
        if isinstance(value, str):
            return self.clip_texts([value], cap)[0]
        if isinstance(value, dict):
            # One part without a list around it.
            return self._clip_parts([value], cap)[0]
        if not isinstance(value, list):
            return value
        if item.get("type") == response_items.SHELL_OUTPUT:
            return self._clip_streams(value, cap)
        return self._clip_parts(value, cap)

    def _clip_parts(self, parts: Sequence[Json], cap: int) -> list[Json]:
        keys = [_text_key(part) for part in parts]
        left = self.clip_texts(
            [_text(part, key) for part, key in zip(parts, keys, strict=True) if key], cap
        )
        clipped: list[Json] = []
        for part, key in zip(parts, keys, strict=True):
            if key is None or not isinstance(part, dict):
                clipped.append(part)
            elif left:
                clipped.append({**part, key: left.pop(0)})
            # Emptied parts go: servers refuse empty text parts.
        return clipped

    def _clip_streams(self, outputs: Sequence[Json], cap: int) -> list[Json]:
        said = [_text(output, name) for output in outputs for name in response_items.STREAMS]
        left = self.clip_texts([text for text in said if text], cap)
        clipped: list[Json] = []
        for output in outputs:
            if not isinstance(output, dict):
                clipped.append(output)
                continue
            # An emptied stream stays, since both must be there.
            names = [name for name in response_items.STREAMS if _text(output, name)]
            clipped.append({**output, **{n: left.pop(0) if left else "" for n in names}})
        return clipped

    def _carried(self, carry: Carry) -> bytes:
        items = [codec.split_object(codec.mend_surrogates(self._kept(k))) for k in carry.onto]
        values = [codec.loads(members.get("content", b"null")) for members in items]
        content: Json
        if all(isinstance(value, str) for value in values):
            content = carry.text + "\n\n".join(codec.as_text(value) for value in values)
        else:
            parts: list[Json] = [{"type": "input_text", "text": carry.text}]
            for value in values:
                parts += _as_parts(value)
            content = parts
        # The newest of the joined messages gives the other members.
        return codec.join_object({**items[-1], "content": codec.dumps(content)})


def _text_key(part: Json) -> str | None:
    if not isinstance(part, dict):
        return None
    return next((key for key in response_items.TEXT_KEYS if isinstance(part.get(key), str)), None)


def _text(part: Json, key: str) -> str:
    return codec.as_text(part.get(key)) if isinstance(part, dict) else ""


def _as_parts(content: Json) -> list[Json]:
    if isinstance(content, list):
        return content
    return [{"type": "input_text", "text": content}] if content else []
