"""Reading a reply of the Responses API: which response it is, and what it put out.

In a stream an item is complete in its ``response.output_item.done``; the event that adds it may
hold less (facts: encrypted reasoning). Everything else of the stream is passed over unread.
"""

import re
from collections.abc import Mapping

from proxy import codec
from proxy.dialects import slices
from proxy.dialects.sse import EventReader
from proxy.transcript import Record

_WANTED = re.compile(rb'"response\.(?:output_item\.done|completed|incomplete)"')
_DONE = "response.output_item.done"
_ENDS = frozenset({"response.completed", "response.incomplete"})
_ENDED = frozenset({b'"completed"', b'"incomplete"'})
_NOTHING = b"null"
_BLANK = (b"\n\n", b"\r\n\r\n")


class Answer(Record, frozen=True):
    """A response that can be continued."""

    id: str
    items: tuple[bytes, ...]
    """What it put out, as raw JSON in order."""
    previous: str = ""
    """Id of the response that it says it continued."""


class AnswerReader:
    """Reads the stream of one reply."""

    def __init__(self, limit: int) -> None:
        """Read at most `limit` bytes of items; a larger answer is given up."""
        self._limit = limit
        self._reader = EventReader()
        self._pending: list[bytes] = []
        self._held = 0
        self._items: dict[int, bytes] = {}
        self._closed = False
        self._between = True
        """Whether nothing of an event is waiting for its rest."""

    def feed(self, chunk: bytes) -> Answer | None:
        """Take more of the stream; return the answer once it is complete."""
        if self._closed:
            return None
        whole = chunk.endswith(_BLANK)
        if self._between and whole and _WANTED.search(chunk) is None:
            # Nearly all of a stream: whole events, and none that matters.
            return None
        self._between = whole
        self._pending.append(chunk)
        self._held += len(chunk)
        if self._held > self._limit:
            self._close()
            return None
        # A large event comes in many chunks and holds no line end; it is joined once.
        if b"\n" not in chunk and b"\r" not in chunk:
            return None
        data = b"".join(self._pending) if len(self._pending) > 1 else chunk
        self._pending.clear()
        try:
            return self._events(data)
        except codec.MalformedJson:
            self._close()
            return None

    def end(self) -> Answer | None:
        """Take the end of the stream, which ends its last event, too."""
        return self.feed(b"\n\n")

    def _events(self, data: bytes) -> Answer | None:
        for event in self._reader.feed(data):
            # Only what is kept counts against the limit.
            self._held = sum(map(len, self._items.values())) if self._items else 0
            if _WANTED.search(event) is None:
                continue
            members = _members(event)
            type_ = slices.string(members.get("type", _NOTHING))
            if type_ == _DONE:
                self._take(members)
            elif type_ in _ENDS:
                self._closed = True
                return self._answer(members)
        return None

    def _take(self, members: Mapping[str, bytes]) -> None:
        place = members.get("output_index", b"")
        index = int(place) if place.isdigit() and len(place) < 9 else len(self._items)
        if members.get("item", b"")[:1] == b"{":
            self._items[index] = members["item"]

    def _answer(self, members: Mapping[str, bytes]) -> Answer | None:
        answer = _read(members.get("response", _NOTHING))
        items = tuple(self._items[index] for index in sorted(self._items))
        if answer is None or len(answer.items) > len(items):
            return answer
        return Answer(answer.id, items, answer.previous)

    def _close(self) -> None:
        self._closed = True
        self._items.clear()
        self._pending.clear()


def answer_of(body: bytes) -> Answer | None:
    """Read a whole response; None when it cannot be continued, or is none.

    Raises:
        MalformedJson: when it is not JSON.
    """
    return _read(body, needs_output=True)


def _read(body: bytes, *, needs_output: bool = False) -> Answer | None:
    if body.lstrip()[:1] != b"{":
        return None
    members = _members(body)
    name = slices.string(members.get("id", _NOTHING))
    output = members.get("output", _NOTHING)
    if not name or members.get("status", b'"completed"') not in _ENDED:
        return None
    if output[:1] != b"[":
        return None if needs_output else Answer(name, (), _previous(members))
    return Answer(name, tuple(_elements(output)), _previous(members))


def _previous(members: Mapping[str, bytes]) -> str:
    return slices.string(members.get("previous_response_id", _NOTHING))


def _members(data: bytes) -> dict[str, bytes]:
    try:
        return codec.split_object(data)
    except codec.MalformedJson:
        return slices.original_members(data)


def _elements(data: bytes) -> list[bytes]:
    try:
        return codec.split_array(data)
    except codec.MalformedJson:
        return slices.original_elements(data)
