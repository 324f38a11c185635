"""Writing the messages of a rewritten Chat Completions body.

Only what must differ is encoded anew: the content of a message that is clipped or carries the
checkpoint. Its other members, and every other message, are the client's own bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.transcript import Caps, Carry, Keep, Piece

TextClipper = Callable[[Sequence[str], int], list[str]]
ArgumentClipper = Callable[[str, int], str]


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
        texts = [t for part in content if isinstance(part, dict) for t in _text_of(part)]
        left = self.clip_texts(texts, cap)
        clipped: list[Json] = []
        for part in content:
            if isinstance(part, dict) and _text_of(part):
                # Emptied parts go: servers refuse empty text parts.
                if left:
                    clipped.append({**part, "text": left.pop(0)})
            else:
                clipped.append(part)
        return clipped

    def _clip_calls(self, value: Json, cap: int) -> Json:
        if isinstance(value, list):
            return [self._clip_calls(entry, cap) for entry in value]
        if not isinstance(value, dict):
            return value
        clipped: JsonObject = dict(value)
        if isinstance(value.get("function"), dict):
            clipped["function"] = self._clip_calls(value["function"], cap)
        if isinstance(value.get("arguments"), str):
            clipped["arguments"] = self.clip_arguments(codec.as_text(value["arguments"]), cap)
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


def _text_of(part: JsonObject) -> list[str]:
    text = part.get("text")
    return [text] if isinstance(text, str) else []
