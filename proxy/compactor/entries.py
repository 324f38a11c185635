"""What one process remembers of one anchor, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from proxy.compaction.checkpoint import Checkpoint
from proxy.compaction.clip import Clipped
from proxy.sessions.state import MAX_CLIP_SETS, AnchorState, Change, Struggle
from proxy.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Found:
    """What is known about one request's prefix."""

    checkpoint: Checkpoint | None
    clips: Mapping[int, Clipped]
    struggle: Struggle
    session: str
    """Session of the checkpoint or clips found; empty when there are none."""


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

    @property
    def is_blank(self) -> bool:
        """Nothing at all is known for the anchor."""
        state = self.state
        return not state.cuts and not state.clip_sets and state.struggle == NOTHING.struggle


def lost_checkpoint(
    old: AnchorState, new: AnchorState, transcript: Transcript
) -> Checkpoint | None:
    """Return the checkpoint in use that the store no longer has, though nobody deleted it."""
    if new.version > old.version or new.corrupt:
        return None
    for item in reversed(transcript.items[:-1]):
        if item.digest in new.cuts:
            return None
        if item.digest in old.cuts:
            return old.checkpoints.get(old.cuts[item.digest])
    return None


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
