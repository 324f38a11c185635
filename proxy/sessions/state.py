"""The records that are remembered between requests, and their stored form.

A stored value is zstd-compressed JSON with a schema version. A value that is newer than this
program knows is treated as absent and never overwritten.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import zstandard
from pydantic import TypeAdapter, ValidationError

from proxy import codec
from proxy.compaction.checkpoint import SCHEMA_VERSION, Checkpoint, Fold
from proxy.compaction.clip import Clipped
from proxy.errors import StateCorrupt, StateLocked
from proxy.telemetry import Event

COOL_AFTER_FAILURES = 3
MAX_CLIP_SETS = 64
"""Clip decisions kept per anchor, the newest ones; older ones are of branches long left."""

MAX_FOLDS = 16
"""Running summaries kept per anchor, the newest ones."""

_MAX_VALUE_BYTES = 1 << 30

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Struggle:
    """How compacting this conversation went wrong lately; drives the cool-down."""

    failures: int = 0
    cool_until: float = 0.0
    """Seconds since the epoch; no summariser call before."""
    attempted: bytes = b""
    budget_tried: bytes = b""


@dataclass(frozen=True, slots=True)
class ClipSet:
    """Clips decided for one prefix under one checkpoint."""

    digest: bytes
    """Fingerprint of the whole list they were decided for."""
    checkpoint: str
    """Id of the checkpoint in force; empty when there was none."""
    session: str
    clips: dict[int, Clipped]


@dataclass(frozen=True, slots=True)
class AnchorState:
    """Everything remembered for conversations that share an opening."""

    cuts: Mapping[bytes, str] = field(default_factory=dict)
    """Cut digest to checkpoint id."""
    clip_sets: Sequence[ClipSet] = ()
    struggle: Struggle = Struggle()
    checkpoints: Mapping[str, Checkpoint] = field(default_factory=dict)
    """The records read so far, by id."""
    corrupt: int = 0
    """Values that could not be read and count as absent."""
    newer: int = 0
    """Values of a newer version, which count as absent too."""
    version: int = 0
    """Raised by every deletion; lower than remembered means that the store lost data."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to make one compaction, for a short time by the store's clock."""

    anchor: bytes
    cut_digest: bytes
    """Which compaction: the fingerprint of the prefix it replaces."""
    token: int
    """Fencing token: a commit under a lease that somebody else took over is refused."""


@dataclass(frozen=True, slots=True)
class Archived:
    """A replaced or clipped item, as the client sent it."""

    index: int
    raw: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Change:
    """What one request adds; committed whole or not at all."""

    anchor: bytes
    session: str
    time: float
    checkpoint: Checkpoint | None = None
    clip_set: ClipSet | None = None
    struggle: Struggle | None = None
    archive: tuple[Archived, ...] = ()
    archive_id: str = ""
    """Checkpoint id (or clip digest) that the archived items belong to."""
    events: tuple[Event, ...] = ()
    version: int | None = None
    """`AnchorState.version` of what it is based on; committed only while none is higher."""
    lease: Lease | None = None
    """Committed only while nobody else took this lease over; given back by the commit."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session in a listing."""

    id: str
    created: float
    used: float
    checkpoints: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a stored value counts as absent."""

    why: Literal["damaged", "newer", "locked"]
    key: str = ""
    """Id of the encryption key that is not there, when it is locked."""


Note = Callable[[Unreadable], None]
"""Takes note of a value that is left out."""


def ignore(_: Unreadable) -> None:
    """Take no note."""


def readable(load: Callable[[], _T | None], note: Note) -> _T | None:
    """Return what `load` reads; None, with a note, when that is damaged, newer or locked."""
    try:
        value = load()
    except StateLocked as error:
        note(Unreadable("locked", error.key))
    except StateCorrupt:
        note(Unreadable("damaged"))
    else:
        if value is None:
            note(Unreadable("newer"))
        return value
    return None


_CHECKPOINT: TypeAdapter[Checkpoint] = TypeAdapter(Checkpoint)
_FOLD: TypeAdapter[Fold] = TypeAdapter(Fold)


@dataclass(frozen=True, slots=True)
class _StoredClips:
    schema_version: int
    clips: dict[int, Clipped]


_CLIPS: TypeAdapter[_StoredClips] = TypeAdapter(_StoredClips)


@dataclass(frozen=True, slots=True)
class _StoredStruggle:
    schema_version: int
    failures: int
    cool_until: float
    attempted: str
    budget_tried: str


_STRUGGLE: TypeAdapter[_StoredStruggle] = TypeAdapter(_StoredStruggle)


class _Threads(threading.local):
    """What each thread has for itself."""

    def __init__(self) -> None:
        # Made once: to make it takes ten times as long as to unpack a message with it.
        self.zstd = zstandard.ZstdDecompressor()


_threads = _Threads()


def pack(data: bytes) -> bytes:
    """Compress a stored value."""
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(data)


def unpack(data: bytes) -> bytes:
    """Undo `pack`.

    Raises:
        StateCorrupt: when the value is damaged.
    """
    try:
        # The size in a damaged header would be allocated before anything else is looked at.
        if zstandard.frame_content_size(data) <= _MAX_VALUE_BYTES:
            return _threads.zstd.decompress(data, max_output_size=_MAX_VALUE_BYTES)
    except zstandard.ZstdError:
        pass
    raise StateCorrupt("a stored value is damaged")


def checkpoint_json(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as JSON."""
    return _CHECKPOINT.dump_json(checkpoint)


def dump_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the stored form of a checkpoint."""
    return pack(checkpoint_json(checkpoint))


def load_checkpoint(data: bytes) -> Checkpoint | None:
    """Read a stored checkpoint; None when a newer version wrote it.

    Raises:
        StateCorrupt: when the value is damaged.
    """
    return _loaded(data, _CHECKPOINT, "checkpoint")


def dump_fold(fold: Fold) -> bytes:
    """Return the stored form of a running summary."""
    return pack(_FOLD.dump_json(fold))


def load_fold(data: bytes) -> Fold | None:
    """Read a stored running summary; None when a newer version wrote it.

    Raises:
        StateCorrupt: when the value is damaged.
    """
    return _loaded(data, _FOLD, "running summary")


def dump_clips(clips: Mapping[int, Clipped]) -> bytes:
    """Return the stored form of clip decisions."""
    return pack(_CLIPS.dump_json(_StoredClips(SCHEMA_VERSION, dict(clips))))


def load_clips(data: bytes) -> dict[int, Clipped] | None:
    """Read stored clip decisions; None when a newer version wrote them.

    Raises:
        StateCorrupt: when the value is damaged.
    """
    stored = _loaded(data, _CLIPS, "clip set")
    return None if stored is None else stored.clips


def dump_struggle(struggle: Struggle) -> bytes:
    """Return the stored form of how compacting went wrong."""
    return pack(_STRUGGLE.dump_json(_StoredStruggle(SCHEMA_VERSION, *_hexed(struggle))))


def load_struggle(data: bytes) -> Struggle:
    """Read what `dump_struggle` wrote.

    Raises:
        StateCorrupt: when the value is damaged.
    """
    try:
        stored = _STRUGGLE.validate_json(unpack(data))
        attempted, tried = bytes.fromhex(stored.attempted), bytes.fromhex(stored.budget_tried)
    except ValueError:
        raise StateCorrupt("a stored struggle is damaged") from None
    return Struggle(stored.failures, stored.cool_until, attempted, tried)


def _hexed(struggle: Struggle) -> tuple[int, float, str, str]:
    return (
        struggle.failures,
        struggle.cool_until,
        struggle.attempted.hex(),
        struggle.budget_tried.hex(),
    )


def _loaded(data: bytes, kind: TypeAdapter[_T], name: str) -> _T | None:
    text = unpack(data)
    if _is_newer(text):
        return None
    try:
        return kind.validate_json(text)
    except ValidationError:
        raise StateCorrupt(f"a stored {name} is damaged") from None


def _is_newer(text: bytes) -> bool:
    try:
        document = codec.loads(text)
    except codec.MalformedJson:
        raise StateCorrupt("a stored value is damaged") from None
    version = document.get("schema_version") if isinstance(document, dict) else None
    return isinstance(version, int) and version > SCHEMA_VERSION
