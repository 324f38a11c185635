"""Request bodies of either dialect: to a `Transcript`, and back.

What was parsed before is taken from the memo. A body that is not the shape of its endpoint gives
None: it is the upstream's to judge. What the elements of its list are, only the dialects know.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from proxy import codec
from proxy.codec import Json
from proxy.dialects import slices
from proxy.dialects.continuations import Continuation
from proxy.dialects.memo import LARGE_BODY_BYTES, MIN_BODY_BYTES, Match, PrefixMemo
from proxy.dialects.parts import member_text
from proxy.transcript import (
    Content,
    Item,
    Kind,
    Piece,
    Record,
    Size,
    Transcript,
    total,
)

_PLACEHOLDER = b"0"
# The member that continues the known items. This key has no other spelling in JSON, so a body
# that does not hold the spelling has no such member of its own.
_CONTINUED = b"\\u0000\\u0000\\u0000\\u0000"
_CONTINUED_KEY = "\0" * 4
_MAX_DIGITS = 12
GLANCE_BYTES = 1024
"""A request with at most this much new in it need not be read when it plainly fits."""

MAX_PART_TOKENS = 1536
"""What a part of unknown kind may be priced at, at most."""

MAX_MESSAGE_TOKENS = 4
_NOT_AT_A_GLANCE = (b'"model"', b"image", b"audio", b"video", b"file")
# Binary parts may cost more tokens than they have bytes; the model chooses the upstream.
TextClipper = Callable[[Sequence[str], int], list[str]]
ArgumentClipper = Callable[[str, int], str]


@dataclass(frozen=True, slots=True)
class Message:
    """An element of the list, decoded once: what is in it, and its JSON."""

    content: Content
    value: Json


class ParsedRequest(Record, frozen=True):
    """A request body, read."""

    transcript: Transcript
    model: str
    stream: bool
    output_field: str
    """The field that limits the output: the one the client used, else the common one."""
    fields: dict[str, bytes]
    """Every top-level member as raw JSON, in order; that of the list marks only its place."""
    continues: Continuation | None = None
    """What the request draws on that is not in its body."""
    stored: bool = False
    """Whether the upstream is asked to keep the response, so that others can continue it."""

    @property
    def raws(self) -> list[bytes]:
        """The elements of the list, as they came."""
        transcript = self.transcript
        return [item.raw for item in (*transcript.instructions, *transcript.items) if item.raw]


class Glance(Record, frozen=True):
    """Bounds on a request that was not read to its end."""

    model: str
    anchor: bytes
    chars: int
    """At most so many characters, catalogue included."""
    tokens: int
    """At most so many tokens, catalogue included."""
    estimate: int
    """A fair guess of the tokens."""
    stored: bool = False
    """As for `ParsedRequest`."""


@dataclass(frozen=True, slots=True)
class Annotators:
    """The two measures of the compaction floor that are taken of each item once."""

    measure: Callable[[Content], Size]
    extend: Callable[[bytes, bytes], bytes]
    text_size: Callable[[str], Size]


class Dialect(ABC):
    """Reads and writes request bodies of one process; holds the memo."""

    name: ClassVar[str]
    """Keeps the fingerprints of the dialects apart."""
    member: ClassVar[str]
    """The member of a body that holds the list."""
    catalogue_fields: ClassVar[tuple[str, ...]]
    """Members with definitions of tools."""
    output_fields: ClassVar[tuple[str, ...]]
    """Members that limit the output, the first that is there counts; the last is the usual one."""
    can_record: ClassVar[bool] = False
    """Whether later requests may draw on a response without repeating it."""
    has_prelude: ClassVar[bool] = False
    """Whether streams begin with events that say nothing yet."""

    @abstractmethod
    def decode(self, raw: bytes) -> Message:
        """Decode one element; a shape we cannot interpret becomes `Kind.OPAQUE`, never an error.

        Raises:
            MalformedJson: when `raw` is not JSON.
        """

    @abstractmethod
    def canonical(self, message: Message, ordinal: int | None) -> bytes:
        """Return the canonical form that the fingerprint is made of.

        Args:
            message: the decoded element.
            ordinal: for a result, how many calls back its call was made; None when no call
                precedes it.
        """

    @abstractmethod
    def write(
        self, piece: Piece, clip_texts: TextClipper, clip_arguments: ArgumentClipper
    ) -> bytes:
        """Return the raw JSON of one element of a rewritten list."""

    def answered(self, message: Message, items: Sequence[Item]) -> str | None:
        """Return the id under which a result's call stands among the items before it."""
        return message.content.answers

    def elements(self, raw: bytes) -> list[bytes] | None:
        """Return the elements of the list as a body has it; None when it is none."""
        return codec.split_array(raw) if raw[:1] == b"[" else None

    def instructions(self, fields: dict[str, bytes]) -> tuple[Item, ...]:
        """Return the instructions that stand outside the list."""
        return ()

    def continuation(self, fields: dict[str, bytes], items: Sequence[Item]) -> Continuation | None:
        """Return what a request draws on that is not in its body; None for nothing."""
        return None

    def is_remembered(self, fields: dict[str, bytes]) -> bool:
        """Whether the items of such a request are likely to come again in the same place."""
        return True

    def is_stored(self, fields: dict[str, bytes]) -> bool:
        """Whether the upstream is asked to keep the response."""
        return False

    def __init__(
        self, annotators: Annotators, memo: PrefixMemo, small_memo: PrefixMemo | None = None
    ) -> None:
        """Take the measures and the memo; small bodies may have one of their own.

        A crowd of short conversations then cannot push a long one out, nor fill the memory that
        is meant for long ones.
        """
        self._annotators = annotators
        self._memo = memo
        self._small_memo = small_memo or memo
        self._catalogue_size = lru_cache(maxsize=64)(self._measure_catalogue)
        self._text_size = lru_cache(maxsize=64)(self._measure_text)

    def recall(self, body: bytes, origin: bytes) -> Match | None:
        """Return how far a body is known.

        Args:
            body: the request body, decoded from any content encoding.
            origin: first digest of the tenant's chain; it also keeps tenants apart in the memo.
        """
        if len(body) < MIN_BODY_BYTES:
            return None
        return self._memo_for(body).match(origin, body)

    def glance(self, body: bytes, known: Match) -> Glance | None:
        """Return bounds on a body of which only a little is new, without reading that little.

        None when they cannot be told: much is new, binary parts may be among it, or the model
        or the first user message is not in the known part.
        """
        node, rest = known.node, len(body) - known.end
        if rest > GLANCE_BYTES or not node.anchor:
            return None
        model = slices.head_model(known.head)
        tail = body[known.end :]
        if model is None or any(mark in tail for mark in _NOT_AT_A_GLANCE):
            return None
        before = self._outside(known.head)
        # No text has more tokens than bytes; each message adds a little, and each object might be
        # a part that is not text.
        parts = MAX_PART_TOKENS * tail.count(b"{")
        most = rest + MAX_MESSAGE_TOKENS * (1 + tail.count(b",")) + parts
        return Glance(
            model,
            node.anchor,
            before.chars + node.chars + rest + 4 * parts,
            before.tokens + node.tokens + most,
            before.tokens + node.tokens + rest // 4,
            self.is_stored(slices.head_fields(known.head)),
        )

    def _outside(self, head: bytes) -> Size:
        # Some clients put tools and instructions in front of the list.
        fields = slices.head_fields(head)
        return self._catalogue(fields) + total(self.instructions(fields))

    def _catalogue(self, fields: dict[str, bytes]) -> Size:
        size = Size()
        for name in self.catalogue_fields:
            if name in fields:
                size += self._size_of_catalogue(fields[name])
        return size

    def parse(self, body: bytes, origin: bytes, known: Match | None = None) -> ParsedRequest | None:
        """Read a body; None when it is not a request of this dialect.

        Args:
            body: the request body, decoded from any content encoding.
            origin: as for `recall`.
            known: what `recall` said of this body, if it was asked just now.
        """
        known = known or self.recall(body, origin)
        try:
            return self._parse_tail(body, origin, known) or self._parse_whole(body, origin)
        except codec.MalformedJson:
            return None

    def _memo_for(self, body: bytes) -> PrefixMemo:
        return self._memo if len(body) >= LARGE_BODY_BYTES else self._small_memo

    def _parse_tail(self, body: bytes, origin: bytes, known: Match | None) -> ParsedRequest | None:
        # Only what follows the known items is parsed: the body is continued as if it began
        # with a placeholder in their stead.
        if known is None or not known.items:
            return None
        rest = body[known.end :]
        if _CONTINUED in rest:
            return None
        try:
            fields = codec.split_object(b'{"%b":[%b%b' % (_CONTINUED, _PLACEHOLDER, rest))
            messages = fields.pop(_CONTINUED_KEY)
            raws = codec.split_array(messages)
        except codec.MalformedJson:
            return None
        if not raws or raws[0] != _PLACEHOLDER or self.member in fields:
            return None
        items = list(known.items)
        self._read_items(raws[1:], items, origin)
        self._memo_for(body).remember(origin, known.head, known, items[len(known.items) :])
        head = {**slices.head_fields(known.head), self.member: messages}
        return self._request(head | fields, items)

    def _parse_whole(self, body: bytes, origin: bytes) -> ParsedRequest | None:
        mended = False
        try:
            fields = codec.split_object(body)
        except codec.MalformedJson:
            fields = slices.original_members(body)
            mended = True
        messages = fields.get(self.member, b"")
        if mended and messages[:1] == b"[":
            raws: list[bytes] | None = slices.original_elements(messages)
        else:
            raws = self.elements(messages)
        if raws is None:
            return None
        items: list[Item] = []
        self._read_items(raws, items, origin)
        if len(body) >= MIN_BODY_BYTES and self.is_remembered(fields):
            head = slices.head_of(body, self.member, messages)
            if head is not None:
                self._memo_for(body).remember(origin, head, None, items)
        return self._request(fields, items)

    def _read_items(self, raws: Sequence[bytes], items: list[Item], origin: bytes) -> None:
        annotators = self._annotators
        for raw in raws:
            message = self.decode(raw)
            content = message.content
            answers = self.answered(message, items)
            digest = b""
            if content.kind is not Kind.INSTRUCTION or (items and items[-1].digest):
                form = self.canonical(message, _ordinal(items, answers))
                digest = annotators.extend((items and items[-1].digest) or origin, form)
            size = annotators.measure(content)
            items.append(
                Item(
                    content.kind,
                    content.role,
                    raw,
                    size.chars,
                    size.tokens,
                    digest,
                    tuple(call.id for call in content.calls),
                    answers,
                    any(b.kind == "image" for b in content.binaries),
                    content.leads,
                    content.detached,
                )
            )

    def _request(self, fields: dict[str, bytes], items: list[Item]) -> ParsedRequest:
        leading = 0
        while leading < len(items) and not items[leading].digest:
            leading += 1
        transcript = Transcript(
            (*self.instructions(fields), *items[:leading]),
            tuple(items[leading:]),
            self._catalogue(fields),
            self._requested_output(fields),
        )
        model = slices.string(fields["model"]) if "model" in fields else ""
        output_field = next((f for f in self.output_fields if f in fields), self.output_fields[-1])
        return ParsedRequest(
            transcript,
            model,
            fields.get("stream") == b"true",
            output_field,
            fields,
            self.continuation(fields, items),
            self.is_stored(fields),
        )

    def _requested_output(self, fields: dict[str, bytes]) -> int | None:
        raws = [fields.get(name, b"") for name in self.output_fields]
        values = (int(raw) for raw in raws if raw.isdigit() and len(raw) < _MAX_DIGITS)
        return next(filter(None, values), None)

    def _size_of_catalogue(self, raw: bytes) -> Size:
        if len(raw) > slices.MAX_CACHED_BYTES:
            return self._measure_catalogue(raw)
        return self._catalogue_size(raw)

    def _measure_catalogue(self, raw: bytes) -> Size:
        if raw in {b"null", b"[]"}:
            return Size()
        return self._annotators.text_size(raw.decode("utf-8", "replace"))

    def size_of_text(self, raw: bytes) -> Size:
        """Measure a member that holds a text for the model."""
        if len(raw) > slices.MAX_CACHED_BYTES:
            return self._measure_text(raw)
        return self._text_size(raw)

    def _measure_text(self, raw: bytes) -> Size:
        text = member_text(raw)
        return self._annotators.measure(Content("system", Kind.INSTRUCTION, (text,)))

    def read(self, item: Item) -> Content:
        """Decode an item again, for what is summarised, quoted or clipped."""
        return self.decode(item.raw).content

    def prompt_texts(self, request: ParsedRequest) -> list[str]:
        """Return the leading instructions, decoded."""
        return [self.read(item).text for item in request.transcript.instructions if item.raw]

    def rebuild(
        self,
        request: ParsedRequest,
        pieces: Sequence[Piece],
        clip_texts: TextClipper,
        clip_arguments: ArgumentClipper,
    ) -> bytes:
        """Write the body with `pieces` in place of the items.

        Every member of the request and every kept element that is neither clipped nor carries
        the checkpoint keeps the client's bytes.
        """
        raws = [item.raw for item in request.transcript.instructions if item.raw]
        raws += [self.write(piece, clip_texts, clip_arguments) for piece in pieces]
        return codec.join_object({**request.fields, self.member: codec.join_array(raws)})


def _ordinal(items: Sequence[Item], answers: str | None) -> int | None:
    # Counted back over all calls, so that results of two groups are never taken for each other.
    if answers is None:
        return None
    since = 0
    for item in reversed(items):
        if answers in item.calls:
            return since + len(item.calls) - item.calls.index(answers)
        since += len(item.calls)
    return None
