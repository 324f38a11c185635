"""The Responses dialect: a request body to a `Transcript`, and back."""

import re
from collections.abc import Sequence

from proxy import codec
from proxy.dialects import continuations, response_items, slices
from proxy.dialects.bodies import (
    ArgumentClipper,
    Dialect,
    Glance,
    Message,
    ParsedRequest,
    TextClipper,
)
from proxy.dialects.continuations import Continuation
from proxy.dialects.memo import Match
from proxy.dialects.parts import member_text
from proxy.dialects.response_writer import ItemWriter
from proxy.transcript import Item, Kind, Piece

NAME = "responses"
_NOTHING = frozenset({b"null", b'""'})
_NOT_AT_A_GLANCE = (
    b'"previous_response_id"',
    b'"conversation"',
    b'"prompt"',
    b'"item_reference"',
)
_UNSTORED = re.compile(rb'"store"\s*:\s*false')


class Responses(Dialect):
    """Bodies of ``/responses``."""

    name = NAME
    member = "input"
    catalogue_fields = ("tools",)
    output_fields = ("max_output_tokens",)
    can_record = True
    has_prelude = True

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

    def prompt_texts(self, request: ParsedRequest) -> list[str]:
        """Return the leading instructions, decoded, the member ``instructions`` first."""
        raw = request.fields.get("instructions", b"null")
        texts = super().prompt_texts(request)
        if raw in _NOTHING:
            return texts
        return [member_text(raw), *texts]

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

    def continuation(self, fields: dict[str, bytes], items: Sequence[Item]) -> Continuation | None:
        """Return what a request leaves to a memory: a chain, or items by reference."""
        return continuations.continuation_of(fields, items)

    def is_remembered(self, fields: dict[str, bytes]) -> bool:
        """Whether the list will grow: what continues a response begins a list of its own."""
        return not continuations.continues(fields)

    def is_stored(self, fields: dict[str, bytes]) -> bool:
        """Whether the response is to be kept, as it is unless the request says otherwise."""
        return fields.get("store") != b"false"

    def glance(self, body: bytes, known: Match) -> Glance | None:
        """Return bounds as `Dialect.glance`; None also when a part is left to a memory."""
        tail = body[known.end :]
        if any(mark in tail for mark in _NOT_AT_A_GLANCE) or continuations.continues(
            slices.head_fields(known.head)
        ):
            return None
        if any(item.role == continuations.REFERENCE for item in known.items):
            return None
        glance = super().glance(body, known)
        if glance is not None and glance.stored and _UNSTORED.search(tail):
            # Most likely said of the request, but only reading it can tell.
            return None
        return glance
