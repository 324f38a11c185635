"""Writing the elements of a rewritten list, as far as both dialects do it alike.

Only what must differ is encoded anew: what is clipped of an element, or the content that carries
the checkpoint. Its other members, and every other element, are the client's own bytes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.dialects.bodies import ArgumentClipper, TextClipper
from proxy.dialects.parts import text_key, text_of
from proxy.transcript import Caps, Carry, Keep, Kind, Piece

SYSTEM_SAID = "A system message of this conversation, still in force:"
"""In front of a system message that had to become part of a user message."""


@dataclass(frozen=True, slots=True)
class PieceWriter(ABC):
    """Writes the elements of one body."""

    clip_texts: TextClipper
    clip_arguments: ArgumentClipper

    text_part: ClassVar[str]
    """Type of a part that holds text of the client's."""

    def write(self, piece: Piece) -> bytes:
        """Return the raw JSON of one element; one that is kept whole is the client's own bytes."""
        if isinstance(piece, Keep):
            return self._kept(piece)
        if not piece.onto:
            return codec.dumps(self.record(piece.text))
        return self._carried(piece)

    @abstractmethod
    def record(self, text: str) -> JsonObject:
        """Return a user message that holds nothing but a checkpoint."""

    @abstractmethod
    def clipped(self, element: JsonObject, caps: Caps) -> dict[str, Json]:
        """Return the members of an element that change when it is clipped."""

    def _kept(self, kept: Keep) -> bytes:
        if kept.caps == Caps():
            return kept.item.raw
        element = codec.loads(kept.item.raw)
        if not isinstance(element, dict):
            return kept.item.raw
        changes = self.clipped(element, kept.caps)
        return codec.replace_members(
            codec.mend_surrogates(kept.item.raw),
            {name: codec.dumps(value) for name, value in changes.items()},
        )

    def clip_parts(self, parts: Sequence[Json], cap: int) -> list[Json]:
        """Clip the texts of parts together; other parts stay."""
        keys = [text_key(part) for part in parts]
        left = self.clip_texts(
            [text_of(part, key) for part, key in zip(parts, keys, strict=True) if key], cap
        )
        clipped: list[Json] = []
        for part, key in zip(parts, keys, strict=True):
            if key is None or not isinstance(part, dict):
                clipped.append(part)
            elif left:
                clipped.append({**part, key: left.pop(0)})
            # Emptied parts go: servers refuse empty text parts.
        return clipped

    def clip_argument(self, argument: Json, cap: int) -> Json:
        """Clip the arguments of a call, written as text or as they are."""
        if isinstance(argument, str):
            return self.clip_arguments(argument, cap)
        return codec.loads(self.clip_arguments(codec.dumps(argument).decode(), cap))

    def _carried(self, carry: Carry) -> bytes:
        messages = [codec.split_object(codec.mend_surrogates(self._kept(k))) for k in carry.onto]
        values = [codec.loads(members.get("content", b"null")) for members in messages]
        if carry.plain:
            values = [_as_string(value) for value in values]
        rules = [
            _quoted(value) if kept.item.kind is Kind.INSTRUCTION else value
            for kept, value in zip(carry.onto, values, strict=True)
        ]
        content = self._joined(carry.text, rules)
        if carry.onto[-1].item.kind is Kind.INSTRUCTION:
            return codec.dumps({**self.record(""), "content": content})
        # The newest of the joined messages gives the other members, such as `name`.
        return codec.join_object({**messages[-1], "content": codec.dumps(content)})

    def _joined(self, text: str, values: Sequence[Json]) -> Json:
        if all(isinstance(value, str) for value in values):
            return text + "\n\n".join(codec.as_text(value) for value in values)
        parts: list[Json] = [self._part(text)]
        for value in values:
            parts += value if isinstance(value, list) else [self._part(value)] if value else []
        return parts

    def _part(self, text: Json) -> Json:
        return {"type": self.text_part, "text": text}


def _as_string(content: Json) -> Json:
    """Return a content as one string, if it is all text."""
    if not isinstance(content, list) or not content:
        return content
    keys = [text_key(part) for part in content]
    if not all(keys):
        return content
    return "\n\n".join(text_of(part, key or "") for part, key in zip(content, keys, strict=True))


def _quoted(content: Json) -> str:
    """Return what a system message says, for where it may not stand apart."""
    text = _as_string(content)
    said = text if isinstance(text, str) else codec.dumps(text).decode()
    return f"{SYSTEM_SAID}\n{said}"
