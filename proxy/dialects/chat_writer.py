"""Writing the messages of a rewritten Chat Completions body.

Only what must differ is encoded anew: the content of a message that is clipped or carries the
checkpoint. Its other members, and every other message, are the client's own bytes.
"""

from dataclasses import dataclass

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.dialects.bodies import ArgumentClipper, TextClipper
from proxy.transcript import Caps, Carry, Keep, Piece


@dataclass(frozen=True, slots=True)
class MessageWriter:
    """Writes the messages of one body."""

    clip_texts: TextClipper
    clip_arguments: ArgumentClipper

    def write(self, piece: Piece) -> bytes:
        """Return the raw JSON of one message; a message kept whole is the client's own bytes."""
        if isinstance(piece, Keep):
            return self._kept(piece)
        if not piece.onto:
            return codec.dumps({"role": "user", "content": piece.text})
        return self._carried(piece)

    def _kept(self, kept: Keep) -> bytes:
        if kept.caps == Caps():
            return kept.item.raw
        message = codec.loads(kept.item.raw)
        if not isinstance(message, dict):
            return kept.item.raw
        changes: dict[str, bytes] = {}
        if kept.caps.text is not None:
            content = self._clip_content(message.get("content"), kept.caps.text)
            changes["content"] = codec.dumps(content)
        if kept.caps.arguments is not None:
            for key in ("tool_calls", "function_call"):
                if message.get(key):
                    changes[key] = codec.dumps(self._clip_calls(message[key], kept.caps.arguments))
        return codec.replace_members(codec.mend_surrogates(kept.item.raw), changes)

    def _clip_content(self, content: Json, cap: int) -> Json:
        if isinstance(content, str):
            return self.clip_texts([content], cap)[0]
        if not isinstance(content, list):
            return content
        keys = [_text_key(part) if isinstance(part, dict) else None for part in content]
        texts = [
            codec.as_text(part[key])
            for part, key in zip(content, keys, strict=True)
            if key is not None and isinstance(part, dict)
        ]
        left = self.clip_texts(texts, cap)
        clipped: list[Json] = []
        for part, key in zip(content, keys, strict=True):
            if key is None or not isinstance(part, dict):
                clipped.append(part)
            elif left:
                clipped.append({**part, key: left.pop(0)})
            # Emptied parts go: servers refuse empty text parts.
        return clipped

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
            argument = value.get(key)
            if isinstance(argument, str):
                clipped[key] = self.clip_arguments(argument, cap)
            elif isinstance(argument, dict | list):
                text = self.clip_arguments(codec.dumps(argument).decode(), cap)
                clipped[key] = codec.loads(text)
        return clipped

    def _carried(self, carry: Carry) -> bytes:
        contents = [codec.split_object(codec.mend_surrogates(self._kept(k))) for k in carry.onto]
        values = [codec.loads(members.get("content", b"null")) for members in contents]
        content: Json
        if all(isinstance(value, str) for value in values):
            content = carry.text + "\n\n".join(codec.as_text(value) for value in values)
        else:
            parts: list[Json] = [{"type": "text", "text": carry.text}]
            for value in values:
                parts += _as_parts(value)
            content = parts
        # The newest of the joined messages gives the other members, such as `name`.
        return codec.join_object({**contents[-1], "content": codec.dumps(content)})


def _as_parts(content: Json) -> list[Json]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _text_key(part: JsonObject) -> str | None:
    return next((key for key in ("text", "refusal") if isinstance(part.get(key), str)), None)
