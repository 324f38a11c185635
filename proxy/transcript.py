"""The neutral model of a conversation that both API dialects are read into.

An `Item` keeps the caller's own JSON (`raw`) and only those facts that the compaction rules
need. Kept items go upstream as `raw`, unknown fields included; nothing here interprets them.
Everything is immutable, so items are shared freely between requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec


class Kind(Enum):
    """What an item is to the compaction rules."""

    INSTRUCTION = auto()
    """A system or developer message, leading or in the middle."""
    USER = auto()
    ASSISTANT = auto()
    """Output of the model; may open calls."""
    RESULT = auto()
    """The answer to one call."""
    OPAQUE = auto()
    """A shape we cannot interpret: kept as it is, wherever the cut falls."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large something is: code points of decoded text, and estimated tokens."""

    chars: int = 0
    tokens: int = 0

    def __add__(self, other: "Size") -> "Size":
        """Return the size of both together."""
        return Size(self.chars + other.chars, self.tokens + other.tokens)


@dataclass(frozen=True, slots=True)
class Binary:
    """An image, sound or file part, known by its declared type and, for images, its pixels."""

    kind: str
    """``image``, ``audio``, ``file``, or ``sealed`` for what only its maker can read."""
    media_type: str = ""
    width: int = 0
    height: int = 0
    """Pixels; 0 when unknown."""
    size_bytes: int = 0
    """Bytes of the decoded data; 0 when the part is only a reference."""
    low_detail: bool = False
    name: str = ""
    """What the client calls a file; anything may stand in it."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call as the model made it."""

    id: str
    name: str
    arguments: str
    """The raw argument string; JSON for function calls, free text for custom tools."""


class Record(msgspec.Struct, frozen=True):
    """A value made for every request: cheaper to make than a dataclass, and silent.

    Its representation names the kind and nothing of what it holds, so that no text or key gets
    into a log or a traceback.
    """

    def __repr__(self) -> str:
        """Show the kind only."""
        return f"<{type(self).__name__}>"


class Content(Record, frozen=True):
    """What is inside an item, decoded: everything that is measured, summarised or quoted."""

    role: str
    """The role on the wire, for example ``user`` or ``tool``."""
    kind: Kind = Kind.OPAQUE
    texts: tuple[str, ...] = ()
    reasoning: str = ""
    extra: str = ""
    """Other text that costs tokens: names, unknown fields."""
    notes: str = ""
    """What was done on the server and is told in no text: searched, run, asked. Never clipped."""
    calls: tuple[Call, ...] = ()
    answers: str | None = None
    """Id of the call that this result answers."""
    binaries: tuple[Binary, ...] = ()
    leads: bool = False
    """Whether upstreams refuse it without the model output that follows it, and that without it."""
    detached: bool = False
    """Whether its calls may be answered much later, or never."""

    @property
    def text(self) -> str:
        """All text parts of the item, joined."""
        return "".join(self.texts)

    def __repr__(self) -> str:
        """Show what it is and none of what it says."""
        return f"<Content {self.role} {self.kind.name}>"


class Item(msgspec.Struct, frozen=True, gc=False):
    """One element of the caller's list, measured and fingerprinted once.

    There is one per message of every remembered conversation, so it is of the cheapest kind to
    make, and the garbage collector does not visit it: it cannot be part of a cycle.
    """

    kind: Kind
    role: str
    raw: bytes
    chars: int
    tokens: int
    digest: bytes = b""
    """Fingerprint of the prefix that ends with this item; empty for leading instructions."""
    calls: tuple[str, ...] = ()
    """Ids of the calls it opens."""
    answers: str | None = None
    has_image: bool = False
    leads: bool = False
    """Belongs to the model output that follows it: reasoning of the Responses API."""
    detached: bool = False
    """A cut may fall between its calls and their results; it is pinned until they are there."""

    def __repr__(self) -> str:
        """Show what it is and none of what it says."""
        return f"<Item {self.role} {self.kind.name} {self.digest.hex()[:8]}>"


class Transcript(Record, frozen=True):
    """A request seen as instructions, items and a tool catalogue."""

    instructions: tuple[Item, ...]
    """Leading system and developer messages: never summarised, moved or fingerprinted."""
    items: tuple[Item, ...]
    catalogue: Size = Size()
    """Tool definitions, as serialised in the request."""
    requested_output: int | None = None
    """Output tokens that the caller asked for, if any."""

    @property
    def anchor(self) -> bytes:
        """Fingerprint through the first user item (or the first item when there is none)."""
        for item in self.items:
            if item.kind is Kind.USER:
                return item.digest
        return self.items[0].digest if self.items else b""


_NOTHING = Size()


def total(items: Sequence[Item]) -> Size:
    """Return the size of all `items` together."""
    if not items:
        return _NOTHING
    return Size(sum([i.chars for i in items]), sum([i.tokens for i in items]))


@dataclass(frozen=True, slots=True)
class Caps:
    """How far an item is clipped, in characters; None leaves that part whole."""

    text: int | None = None
    arguments: int | None = None
    """Cap of each string leaf in the arguments of its calls."""


@dataclass(frozen=True, slots=True)
class Keep:
    """An item of the caller's that goes upstream, whole or clipped."""

    item: Item
    index: int
    """Its position in `Transcript.items`."""
    caps: Caps = Caps()


@dataclass(frozen=True, slots=True)
class Carry:
    """The message that carries a checkpoint.

    With `onto` empty it is a user message of its own; otherwise `text` stands in front of the
    content of those messages, which become one of the user's.
    """

    text: str = field(repr=False)
    onto: tuple[Keep, ...] = ()
    """User messages; in front of them system messages, where these may not stand apart."""
    plain: bool = False
    """Whether a content that is all text is written as one string."""


Piece = Keep | Carry
"""One message of a rewritten request."""
