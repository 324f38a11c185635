"""Writing the items of a rewritten Responses body.

Only what must differ is encoded anew: the text of an item that is clipped or carries the
checkpoint. Its other members, and every other item, are the client's own bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.dialects.bodies import ArgumentClipper, TextClipper
from proxy.transcript import Caps, Carry, Keep, Piece

_TEXT_MEMBERS = ("content", "output", "result")
_ARGUMENT_MEMBERS = ("arguments", "input")
_SHELL = "shell_call_output"
_STREAMS = ("stdout", "stderr")


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
        if kept.caps.text is not None:
            for key in _TEXT_MEMBERS:
                if item.get(key):
                    changes[key] = codec.dumps(self._clip(item, key, kept.caps.text))
        if kept.caps.arguments is not None:
            for key in _ARGUMENT_MEMBERS:
                argument = item.get(key)
                if isinstance(argument, str):
                    text = self.clip_arguments(argument, kept.caps.arguments)
                    changes[key] = codec.dumps(text)
        return codec.replace_members(codec.mend_surrogates(kept.item.raw), changes)

    def _clip(self, item: Mapping[str, Json], key: str, cap: int) -> Json:
        value = item[key]
        if isinstance(value, str):
            return self.clip_texts([value], cap)[0]
        if not isinstance(value, list):
            return value
        names = _STREAMS if item.get("type") == _SHELL else ("text", "refusal")
        places = [
            (index, name)
            for index, part in enumerate(value)
            if isinstance(part, dict)
            for name in names
            if isinstance(part.get(name), str) and (part[name] or names is not _STREAMS)
        ]
        parts = [dict(part) if isinstance(part, dict) else part for part in value]
        texts = [codec.as_text(_member(parts[index], name)) for index, name in places]
        left = self.clip_texts(texts, cap)
        emptied = set[int]()
        for number, (index, name) in enumerate(places):
            part = parts[index]
            if isinstance(part, dict):
                if number < len(left):
                    part[name] = left[number]
                elif names is _STREAMS:
                    part[name] = ""
                else:
                    # Emptied parts go: servers refuse empty text parts.
                    emptied.add(index)
        return [part for index, part in enumerate(parts) if index not in emptied]

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


def _member(part: Json, name: str) -> Json:
    return part.get(name) if isinstance(part, dict) else None


def _as_parts(content: Json) -> list[Json]:
    if isinstance(content, list):
        return content
    return [{"type": "input_text", "text": content}] if content else []
