"""What one process remembers of one anchor, as values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from proxy.compaction.checkpoint import Checkpoint
from proxy.compaction.clip import Clipped
from proxy.sessions.state import MAX_CLIP_SETS, AnchorState, Archived, Change, ClipSet, Struggle
from proxy.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Found:
    """What is known about one request's prefix."""

    checkpoint: Checkpoint | None
    clips: Mapping[int, Clipped]
    struggle: Struggle
    session: str
    """Session of the checkpoint or clips found; empty when there are none."""
    version: int | None = None
    """`AnchorState.version` of what the store said."""


NOTHING = Found(None, {}, Struggle(), "")


@dataclass(slots=True)
class Entry:
    """The state of an anchor and how much it can be relied on."""

    state: AnchorState
    read_at: float
    """When the store said so, seconds since the epoch."""
    pending: int = 0
    """Changes in use that are not stored yet."""
    changed: int = 0
    """Changes made by this process, ever."""
    asked: bool = False
    """Whether the store said anything yet."""

    @property
    def is_blank(self) -> bool:
        """Nothing at all is known for the anchor."""
        state = self.state
        return not state.cuts and not state.clip_sets and state.struggle == NOTHING.struggle


def lost_checkpoint(
    old: AnchorState, new: AnchorState, transcript: Transcript
) -> Checkpoint | None:
    """Return the checkpoint in use that the store no longer has, though nobody deleted it."""
    if new.version > old.version or new.corrupt or new.newer:
        return None
    for item in reversed(transcript.items[:-1]):
        if item.digest in new.cuts:
            return None
        if item.digest in old.cuts:
            return old.checkpoints.get(old.cuts[item.digest])
    return None


def clips_of(state: AnchorState, in_force: str, transcript: Transcript) -> ClipSet | None:
    """Return the clips decided for the longest prefix of a request under a checkpoint."""
    sets = {s.digest: s for s in state.clip_sets if s.checkpoint == in_force}
    if not sets:
        return None
    return next((sets[i.digest] for i in reversed(transcript.items) if i.digest in sets), None)


def lost_clips(old: AnchorState, new: AnchorState, transcript: Transcript) -> ClipSet | None:
    """Return the clips in use that the store no longer has, though nobody deleted them."""
    if new.version > old.version or new.corrupt or new.newer or not old.clip_sets:
        return None
    in_force = next(
        (old.cuts[i.digest] for i in reversed(transcript.items[:-1]) if i.digest in old.cuts), ""
    )
    clips = clips_of(old, in_force, transcript)
    known = {(s.digest, s.checkpoint) for s in new.clip_sets}
    return None if clips is None or (clips.digest, clips.checkpoint) in known else clips


def stored_again(
    transcript: Transcript, lost: Checkpoint | None, clips: ClipSet | None, now: float
) -> Iterator[Change]:
    """Yield the changes that store anew what was lost, with the originals from the request."""
    anchor, items = transcript.anchor, transcript.items
    if lost is not None:
        stayed = {*lost.kept, *lost.front, *lost.pinned}
        replaced = (i for i in range(lost.cut_length) if i not in stayed)
        archive = tuple(Archived(i, items[i].raw) for i in replaced)
        yield Change(anchor, lost.session, now, lost, archive=archive, archive_id=lost.id)
    if clips is not None:
        archive = tuple(Archived(i, items[i].raw) for i in sorted(clips.clips))
        name = clips.digest.hex()
        yield Change(anchor, clips.session, now, clip_set=clips, archive=archive, archive_id=name)


def with_change(state: AnchorState, change: Change) -> AnchorState:
    """Return the state after a change."""
    cuts, checkpoints = dict(state.cuts), dict(state.checkpoints)
    if change.checkpoint is not None:
        cuts[change.checkpoint.cut_digest] = change.checkpoint.id
        checkpoints[change.checkpoint.id] = change.checkpoint
    clip_sets = list(state.clip_sets)
    if change.clip_set is not None:
        new = change.clip_set
        clip_sets = [
            s for s in clip_sets if (s.digest, s.checkpoint) != (new.digest, new.checkpoint)
        ]
        clip_sets = [*clip_sets, new][-MAX_CLIP_SETS:]
    return replace(
        state,
        cuts=cuts,
        checkpoints=checkpoints,
        clip_sets=clip_sets,
        struggle=change.struggle or state.struggle,
    )
