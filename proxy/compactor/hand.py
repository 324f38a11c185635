"""Recorded responses that a process has in hand, so that the store is asked for few of them."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

CONVERSATION_BYTES = 32 * 1024 * 1024
ITEM_BYTES = 8 * 1024 * 1024
"""What is kept of conversations, and of items to refer to."""

MAX_RESPONSES = 64
"""Responses of one conversation that are kept, the latest ones."""

_REFERENCE_BYTES = 8


@dataclass(slots=True)
class Known:
    """A response in hand."""

    anchor: bytes
    items: tuple[bytes, ...] = field(repr=False)
    """What led to the response and what it put out."""
    checked_at: float
    """When it was recorded, or the store was last known to have it; seconds since the epoch."""


@dataclass(slots=True)
class _Conversation:
    """The responses of one anchor."""

    responses: OrderedDict[bytes, Known] = field(default_factory=OrderedDict)
    held: int = 0
    """Bytes of them all; never too few."""


@dataclass(slots=True)
class _Item:
    raw: bytes = field(repr=False)
    checked_at: float


class Hand:
    """What a process has in hand; whole conversations go when it is too much."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._conversations: OrderedDict[bytes, _Conversation] = OrderedDict()
        self._anchors: dict[bytes, bytes] = {}
        self._held = 0
        self._items: OrderedDict[bytes, _Item] = OrderedDict()
        self._item_bytes = 0

    @property
    def held_bytes(self) -> int:
        """What is kept of conversations now."""
        return self._held

    def response(self, key: bytes) -> Known | None:
        """Return a response."""
        anchor = self._anchors.get(key)
        if anchor is None:
            return None
        self._conversations.move_to_end(anchor)
        return self._conversations[anchor].responses[key]

    def latest(self, anchor: bytes) -> bytes:
        """Return the key of the conversation's latest response; empty when there is none."""
        conversation = self._conversations.get(anchor)
        return next(reversed(conversation.responses)) if conversation is not None else b""

    def take(self, key: bytes, known: Known, own: Sequence[bytes]) -> None:
        """Take a response; `own` are those of its items that no other in hand shares."""
        self.drop(key)
        conversation = self._conversations.setdefault(known.anchor, _Conversation())
        self._conversations.move_to_end(known.anchor)
        conversation.responses[key] = known
        self._anchors[key] = known.anchor
        self._hold(conversation, sum(map(len, own)) + _REFERENCE_BYTES * len(known.items))
        if len(conversation.responses) > MAX_RESPONSES:
            # Its items stay counted: later responses most likely share them.
            self.drop(next(iter(conversation.responses)))
        while self._held > CONVERSATION_BYTES and len(self._conversations) > 1:
            _, gone = self._conversations.popitem(last=False)
            self._held -= gone.held
            for key_ in gone.responses:
                del self._anchors[key_]

    def drop(self, key: bytes) -> Known | None:
        """Let go of a response; return it if it was there."""
        anchor = self._anchors.pop(key, None)
        if anchor is None:
            return None
        conversation = self._conversations[anchor]
        known = conversation.responses.pop(key)
        self._hold(conversation, -_REFERENCE_BYTES * len(known.items))
        if not conversation.responses:
            self._held -= conversation.held
            del self._conversations[anchor]
        return known

    def item(self, key: bytes, since: float) -> bytes | None:
        """Return an item that was seen after a time."""
        found = self._items.get(key)
        return found.raw if found is not None and found.checked_at >= since else None

    def take_item(self, key: bytes, raw: bytes, now: float) -> None:
        """Take an item."""
        self.drop_item(key)
        self._items[key] = _Item(raw, now)
        self._item_bytes += len(raw)
        while self._item_bytes > ITEM_BYTES:
            _, gone = self._items.popitem(last=False)
            self._item_bytes -= len(gone.raw)

    def drop_item(self, key: bytes) -> None:
        """Let go of an item."""
        found = self._items.pop(key, None)
        self._item_bytes -= len(found.raw) if found is not None else 0

    def _hold(self, conversation: _Conversation, change: int) -> None:
        conversation.held += change
        self._held += change
