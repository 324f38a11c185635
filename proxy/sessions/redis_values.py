"""Records in Redis: sealed on the way in, opened on the way out, each bound to its place."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from proxy.compaction.checkpoint import SCHEMA_VERSION, Checkpoint
from proxy.errors import StateCorrupt
from proxy.sessions import redis_events, state
from proxy.sessions.redis_cluster import Argument, Reply
from proxy.sessions.redis_keys import data, text, tuples
from proxy.sessions.sealing import Sealer
from proxy.sessions.state import Change, ClipSet, Note, Struggle, ignore, readable

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RedisValues:
    """The stored form of checkpoints, clips and struggles."""

    sealer: Sealer

    def checkpoint_body(self, anchor: bytes, checkpoint: Checkpoint) -> bytes:
        """Return the stored form of a checkpoint."""
        return self.sealer.seal(state.dump_checkpoint(checkpoint), _context(anchor, checkpoint.id))

    def clips_body(self, anchor: bytes, clips: ClipSet) -> bytes:
        """Return the stored form of clip decisions."""
        context = _clips_context(anchor, clips.digest, clips.checkpoint)
        return self.sealer.seal(state.dump_clips(clips.clips), context)

    def struggle_body(self, anchor: bytes, struggle: Struggle) -> bytes:
        """Return the stored form of a struggle."""
        return self.sealer.seal(state.dump_struggle(struggle), _context(anchor, "struggle"))

    def commit_arguments(self, change: Change, life: int, max_cuts: int) -> list[Argument]:
        """Return what the commit script takes of a change, in its order."""
        anchor, lease = change.anchor, change.lease
        arguments: list[Argument] = [life, change.session, repr(change.time)]
        arguments += [lease.cut_digest, lease.token] if lease else ["", 0]
        checkpoint = change.checkpoint
        if checkpoint is None:
            arguments += ["", "", 0, "", ""]
        else:
            body = self.checkpoint_body(anchor, checkpoint)
            created = repr(checkpoint.created)
            arguments += [checkpoint.id, checkpoint.cut_digest, created, checkpoint.session, body]
        clips = change.clip_set
        if clips is None:
            arguments += ["", "", "", ""]
        else:
            body = self.clips_body(anchor, clips)
            arguments += [clips.digest, clips.checkpoint, clips.session or "-", body]
        struggle = change.struggle
        told = struggle and self.struggle_body(anchor, struggle)
        arguments += ["1", told] if told else ["", ""]
        archive_id = change.archive_id if change.archive else ""
        limits = (max_cuts, state.MAX_CLIP_SETS, SCHEMA_VERSION, redis_events.MAX_EVENTS)
        base = "" if change.version is None else change.version
        return [*arguments, archive_id, *limits, self.sealer.key_names, base]

    def checkpoint(
        self, anchor: bytes, id_: str, body: Reply, note: Note = ignore
    ) -> Checkpoint | None:
        """Read a checkpoint; None, with a note, when it cannot be."""
        load = partial(self._opened, body, _context(anchor, id_), state.load_checkpoint)
        return readable(load, note)

    def clip_sets(self, anchor: bytes, reply: Reply, note: Note = ignore) -> list[ClipSet]:
        """Read clip sets told as digest, checkpoint, session and body; others leave a note."""
        sets = []
        for digest, checkpoint, session, body in tuples(reply, 4):
            context = _clips_context(anchor, data(digest), text(checkpoint))
            clips = readable(partial(self._opened, body, context, state.load_clips), note)
            if clips is not None:
                name = text(session).removeprefix("-")
                sets.append(ClipSet(data(digest), text(checkpoint), name, clips))
        return sets

    def struggle(self, anchor: bytes, body: Reply, note: Note = ignore) -> Struggle | None:
        """Read a struggle; None when there is none or, with a note, when it cannot be read."""
        if body is None:
            return None
        load = partial(self._opened, body, _context(anchor, "struggle"), state.load_struggle)
        return readable(load, note)

    def _opened(self, body: Reply, context: bytes, load: Callable[[bytes], _T | None]) -> _T | None:
        """Return what a body says; None when a newer version wrote it."""
        if not isinstance(body, bytes):
            raise StateCorrupt("a stored value is gone")
        if self.sealer.version_of(body) > SCHEMA_VERSION:
            return None
        return load(self.sealer.open(body, context))


def _context(anchor: bytes, name: str) -> bytes:
    # Binds an encrypted value to its place, so that it cannot be put elsewhere.
    return anchor.hex().encode() + b":" + name.encode()


def _clips_context(anchor: bytes, digest: bytes, checkpoint: str) -> bytes:
    return _context(anchor, f"{digest.hex()} {checkpoint}")
