"""The Chat Completions dialect: a request body to a `Transcript`, and back."""

from proxy.dialects import chat_messages
from proxy.dialects.bodies import ArgumentClipper, Dialect, Message, TextClipper
from proxy.dialects.chat_writer import MessageWriter
from proxy.transcript import Piece

NAME = "chat"


class ChatCompletions(Dialect):
    """Bodies of ``/chat/completions``."""

    name = NAME
    member = "messages"
    catalogue_fields = ("tools", "functions")
    output_fields = ("max_completion_tokens", "max_tokens")

    def decode(self, raw: bytes) -> Message:
        return chat_messages.decode(raw)

    def canonical(self, message: Message, ordinal: int | None) -> bytes:
        return chat_messages.canonical(message, ordinal)

    def write(
        self, piece: Piece, clip_texts: TextClipper, clip_arguments: ArgumentClipper
    ) -> bytes:
        return MessageWriter(clip_texts, clip_arguments).write(piece)
