"""The Responses dialect: a request body to a `Transcript`, and back."""

from collections.abc import Sequence

from proxy import codec
from proxy.dialects import response_items
from proxy.dialects.bodies import ArgumentClipper, Dialect, Message, TextClipper
from proxy.dialects.response_writer import ItemWriter
from proxy.transcript import Item, Kind, Piece

NAME = "responses"
_NOTHING = frozenset({b"null", b'""'})
_KEPT_ELSEWHERE = ("previous_response_id", "conversation", "prompt")


class Responses(Dialect):
    """Bodies of ``/responses``."""

    name = NAME
    member = "input"
    catalogue_fields = ("tools",)
    output_fields = ("max_output_tokens",)

    def decode(self, raw: bytes) -> Message:
        return response_items.decode(raw)

    def canonical(self, message: Message, ordinal: int | None) -> bytes:
        return response_items.canonical(message, ordinal)

    def write(
        self, piece: Piece, clip_texts: TextClipper, clip_arguments: ArgumentClipper
    ) -> bytes:
        return ItemWriter(clip_texts, clip_arguments).write(piece)

    def elements(self, raw: bytes) -> list[bytes] | None:
        """Return the items; a text stands for one user message."""
        if raw[:1] == b'"':
            return [codec.join_object({"role": b'"user"', "content": raw})]
        return super().elements(raw)

    def instructions(self, fields: dict[str, bytes]) -> tuple[Item, ...]:
        """Return the member ``instructions`` as an item without bytes: it stays where it is."""
        raw = fields.get("instructions", b"null")
        if raw in _NOTHING:
            return ()
        size = self.size_of_text(raw)
        return (Item(Kind.INSTRUCTION, "system", b"", size.chars, size.tokens),)

    def answered(self, message: Message, items: Sequence[Item]) -> str | None:
        """Return the id of an output's call; a local shell output may name it by either id."""
        answers = message.content.answers
        if answers is None or not response_items.names_item(message):
            return answers
        for item in reversed(items):
            if answers in item.calls:
                return answers
            if item.calls and response_items.shell_id(item.raw) == answers:
                return item.calls[0]
        return answers

    def is_elsewhere(self, fields: dict[str, bytes], items: Sequence[Item]) -> bool:
        """Whether the upstream keeps part of the conversation: a chain, or items by reference."""
        return any(fields.get(name, b"null") not in _NOTHING for name in _KEPT_ELSEWHERE) or any(
            item.role == response_items.REFERENCE for item in items
        )
