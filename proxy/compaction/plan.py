"""The decision for one request, as a value.

`plan` is pure: the same request, state and policy give the same decision. It never does the
compaction; it says that one is due and where, and is asked again with the result.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from proxy.compaction import cutpoints
from proxy.compaction.calibration import AS_ESTIMATED, Calibration
from proxy.compaction.checkpoint import Checkpoint
from proxy.compaction.choice import Candidate, choose, gains, why_none
from proxy.compaction.clip import Clippable, Clipped, clip
from proxy.compaction.layout import (
    Cut,
    arrange,
    kept_of,
    size_of_layout,
    validate,
    whole,
)
from proxy.compaction.policy import (
    MIN_TRANSCRIPT_CHARS,
    Budget,
    CompactionPolicy,
    Window,
    budget,
    trigger_reason,
)
from proxy.transcript import Content, Item, Kind, Piece, Size, Transcript, total

_MIN_CLIPPABLE_CHARS = 256
_NO_GAIN = "no_gain"


@dataclass(frozen=True, slots=True)
class State:
    """What is known about the prefix of this request."""

    checkpoint: Checkpoint | None = None
    clips: Mapping[int, Clipped] = field(default_factory=dict)
    attempted: bytes = b""
    """Frontier of the last attempt that came to nothing; no new one before history moves on."""
    budget_tried: bytes = b""
    """Fingerprint of the last item that a compaction by budget was made for."""
    cooling: bool = False
    """Three summaries in a row failed not long ago."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What was already tried for this request."""

    outcome: str = ""
    """Empty, ``completed``, ``failed`` or ``skipped``."""
    detail: str = ""
    """The failure or skip word."""
    by_budget: bool = False


@dataclass(frozen=True, slots=True)
class Question:
    """Everything a decision depends on besides the stored state."""

    transcript: Transcript
    policy: CompactionPolicy
    window: Window
    read: Callable[[Item], Content]
    """Decodes an item again; called only for what is clipped."""
    calibration: Calibration = AS_ESTIMATED
    """What the model counts, of the request in the form that the stored state gives it."""
    force: bool = False
    forced_by: str = "force"
    """Reason word of a forced compaction."""
    attempt: Attempt = Attempt()
    may_extract: bool = True
    """Whether a checkpoint may be made without the summariser, so also during a cool-down."""
    joined: bool = False
    """Whether the model's template lets nothing stand beside a checkpoint (see `layout`)."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Sizes that every decision reports: the request as it came, and as it would leave."""

    before: Size
    after: Size
    skipped: str = ""
    """Why a due compaction is not made, if so."""
    reason: str = ""
    """Which rule fired, if one did."""
    calibration: Calibration = AS_ESTIMATED
    """What it was decided by, for when the same request comes again."""


@dataclass(frozen=True, slots=True)
class Forward:
    """The request goes as it came."""

    outlook: Outlook


@dataclass(frozen=True, slots=True)
class Substitute:
    """The request goes in another form."""

    outlook: Outlook
    pieces: tuple[Piece, ...]
    clips: Mapping[int, Clipped]
    """All clips in force."""
    new_clips: bool
    """Whether `clips` holds more than was stored."""


@dataclass(frozen=True, slots=True)
class Compact:
    """A compaction is due; ask again with its result."""

    outlook: Outlook
    cut: Cut
    reason: str
    limits: Budget
    frontier: bytes
    expected_tokens: int
    extractive_only: bool = False
    factor: float = 1.0
    """What the model counts for each estimated token."""
    clipped: Mapping[int, Size] = field(default_factory=dict)
    """Sizes of the items that are clipped now; what is kept of them is clipped again after."""
    joined: bool = False
    """How the result is laid out."""

    def counted(self, estimate: int) -> int:
        """Return about what the model counts for so many estimated tokens of this request."""
        return math.ceil(round(estimate * self.factor, 6))


@dataclass(frozen=True, slots=True)
class Refuse:
    """The conversation cannot be brought under the hard limit."""

    outlook: Outlook
    message: str
    clips: Mapping[int, Clipped]
    new_clips: bool


Decision = Forward | Substitute | Compact | Refuse


def plan(question: Question, state: State) -> Decision:
    """Decide about one request.

    Raises:
        InvariantBroken: when the stored checkpoint cannot be laid out validly on this request.
    """
    return _Planner(question, state).decide()


def standing(question: Question, state: State) -> tuple[tuple[Piece, ...], Size]:
    """Return a request in the form that the stored state gives it, and its size.

    There are no pieces when it goes as it came.

    Raises:
        InvariantBroken: as `plan` does.
    """
    planner = _Planner(question, state)
    return planner.pieces, planner.full


class _Planner:
    """One decision; holds what its steps share."""

    def __init__(self, question: Question, state: State) -> None:
        self.q = question
        self.state = state
        self.t = question.transcript
        self.instructions = total(self.t.instructions)
        self.before = self.instructions + total(self.t.items) + self.t.catalogue
        self.checkpoint = state.checkpoint
        self.rendered = (
            Size(self.checkpoint.chars, self.checkpoint.tokens) if self.checkpoint else Size()
        )
        changed = self.checkpoint is not None or bool(state.clips)
        self.pieces, self.full = self._apply(state.clips) if changed else ((), self.before)
        # What the whole costs in its form; parts of it may be denser or less dense.
        self.settled = question.calibration.settle(self.full.tokens)
        self.factor, careful = self.settled.ratio, self.settled.settled
        self.limits = budget(question.policy, question.window, self.t, self.factor, careful)

    def decide(self) -> Decision:
        pieces, full = self.pieces, self.full
        clips: Mapping[int, Clipped] = self.state.clips
        due, choice = self._due(full, clips)
        skipped = "" if isinstance(choice, Compact) else choice
        if not isinstance(choice, Compact) and not self._fits(full):
            pieces, full, clips = self._clip(pieces or whole(self.t.items), full)
            if skipped == _NO_GAIN and clips != self.state.clips:
                # Sent again, it would be compared with what is left now; so this is done at once.
                _, choice = self._due(full, clips)
        if isinstance(choice, Compact):
            return choice
        outlook = Outlook(self.before, full, skipped, due, self.settled)
        new = clips != self.state.clips
        if self._over_hard(full) or self._over_window(full):
            choice = self._by_budget(full, clips)
            if isinstance(choice, Compact):
                return choice
            if self._over_hard(full):
                return self._refuse(outlook, clips, new, choice)
        if self.checkpoint is None and not clips:
            return Forward(outlook)
        validate(self.t, pieces)
        return Substitute(outlook, pieces, clips, new)

    def _due(self, full: Size, clips: Mapping[int, Clipped]) -> tuple[str, Compact | str]:
        """Return the rule that fires, and the compaction or why there is none."""
        if self.q.force:
            rule: str | None = self.q.forced_by
        else:
            rule = trigger_reason(self.limits, full, self._chars(full))
        if not rule or self.q.attempt.outcome or not (self.q.policy.auto or self.q.force):
            return rule or "", ""
        return rule, self._compaction(rule, full, clips)

    def _apply(self, clips: Mapping[int, Clipped]) -> tuple[tuple[Piece, ...], Size]:
        caps = {index: clipped.caps for index, clipped in clips.items()}
        checkpoint = self.checkpoint
        if checkpoint is None:
            pieces = whole(self.t.items, caps)
        else:
            cut = Cut(checkpoint.cut_length, checkpoint.kept, checkpoint.front, checkpoint.pinned)
            text = checkpoint.rendered
            pieces = arrange(self.t.items, cut, text, caps, joined=self.q.joined)
        return pieces, self._full(pieces, clips)

    def _full(self, pieces: Sequence[Piece], clips: Mapping[int, Clipped]) -> Size:
        sizes = {index: clipped.size for index, clipped in clips.items()}
        layout = size_of_layout(pieces, self.rendered, sizes)
        return self.instructions + layout + self.t.catalogue

    def _chars(self, full: Size) -> int:
        return full.chars - self.t.catalogue.chars

    def _over_window(self, full: Size) -> bool:
        fit = self.limits.fit
        return fit is not None and full.tokens > fit and not self.limits.overhead

    def _over_hard(self, full: Size) -> bool:
        hard = self.limits.hard_chars
        return hard is not None and self._chars(full) > hard

    def _fits(self, full: Size) -> bool:
        if self._over_window(full):
            return False
        hard = self.limits.hard_chars
        if hard is None:
            return True
        transcript = self._chars(full) - self.instructions.chars
        return transcript <= max(MIN_TRANSCRIPT_CHARS, hard - self.instructions.chars)

    def _clip(
        self, pieces: tuple[Piece, ...], full: Size
    ) -> tuple[tuple[Piece, ...], Size, Mapping[int, Clipped]]:
        clips = clip(self._clippable(pieces), full, self._fits, self.state.clips)
        if clips == self.state.clips:
            return pieces, full, self.state.clips
        clipped, after = self._apply(clips)
        if not self._over_hard(full) and not gains(full.tokens, after.tokens, self.limits.fit):
            return pieces, full, self.state.clips
        return clipped, after, clips

    def _clippable(self, pieces: Sequence[Piece]) -> list[Clippable]:
        answered = {item.answers for item in self.t.items if item.answers is not None}
        messages = []
        for kept in kept_of(pieces):
            item = kept.item
            if item.kind in {Kind.INSTRUCTION, Kind.OPAQUE} or item.chars < _MIN_CLIPPABLE_CHARS:
                continue
            content = self.q.read(item)
            closed = bool(item.calls) and answered.issuperset(item.calls)
            messages.append(
                Clippable(
                    kept.index,
                    item.kind is Kind.RESULT,
                    content.texts,
                    Size(item.chars, item.tokens),
                    tuple(call.arguments for call in content.calls) if closed else (),
                )
            )
        return messages

    def _compaction(self, due: str, full: Size, clips: Mapping[int, Clipped]) -> Compact | str:
        legal = cutpoints.legal_cuts(self.t.items)
        front = cutpoints.frontier(legal, len(self.t.items))
        frontier = self.t.items[front - 1].digest if front else b""
        objection = self._objection(due, full, frontier)
        if objection:
            return objection
        done = self.checkpoint.cut_length if self.checkpoint else 0
        clipped = {index: clip.size for index, clip in clips.items()}
        candidate = choose(
            self.t,
            self.q.policy,
            self.limits,
            after_cut=done,
            smallest=due == "budget",
            wary=bool(self.state.attempted),
            clipped=clipped,
        )
        if candidate is None:
            return why_none(self.t, done)
        exempt = due == "budget" and self._over_hard(full) and candidate.tokens < full.tokens
        if not exempt and not gains(full.tokens, candidate.tokens, self.limits.fit):
            return _NO_GAIN
        return self._compact(due, full, candidate, frontier, clipped)

    def _compact(
        self,
        due: str,
        full: Size,
        candidate: Candidate,
        frontier: bytes,
        clipped: Mapping[int, Size],
    ) -> Compact:
        outlook = Outlook(self.before, full, "", due)
        attempt = self.q.attempt
        # A summariser that has just failed for this request is not waited for again.
        failed = attempt.outcome == "completed" and bool(attempt.detail)
        return Compact(
            outlook,
            candidate.cut,
            due,
            self.limits,
            frontier,
            candidate.tokens,
            extractive_only=self.state.cooling or failed,
            factor=self.factor,
            clipped=clipped,
            joined=self.q.joined,
        )

    def _objection(self, due: str, full: Size, frontier: bytes) -> str:
        by_chars = due == "characters" or (due == "budget" and self._over_hard(full))
        if self.limits.overhead or (by_chars and self.limits.char_overhead):
            return "fixed_overhead"
        if self.q.force or self.q.attempt.outcome:
            return ""
        last = (self.state.attempted, self.checkpoint.frontier if self.checkpoint else b"")
        if due != "budget" and frontier and frontier in last:
            return "not_enough_history"
        fits = due != "budget" and (self.limits.fit is None or full.tokens <= self.limits.fit)
        if self.state.cooling and (fits or not self.q.may_extract):
            return "cooldown"
        return ""

    def _by_budget(self, full: Size, clips: Mapping[int, Clipped]) -> Compact | str:
        # Clipping was not enough: once per last item, whatever leaves least.
        if not self.q.policy.auto or self.q.attempt.by_budget or self._budget_tried():
            return ""
        return self._compaction("budget", full, clips)

    def _budget_tried(self) -> bool:
        return bool(self.t.items) and self.t.items[-1].digest == self.state.budget_tried

    def _refuse(
        self, outlook: Outlook, clips: Mapping[int, Clipped], new: bool, skipped: str
    ) -> Refuse:
        attempt = self.q.attempt
        detail = skipped or outlook.skipped or attempt.detail
        ran = self.checkpoint is not None and detail == "not_enough_history"
        if not attempt.outcome and (ran or self._budget_tried()):
            # The same request again: what was tried for it then still counts.
            attempt = Attempt("completed")
        chars = self._chars(outlook.after)
        message = refusal(chars, self.limits.hard_chars or 0, self.q.policy.auto, attempt, detail)
        return Refuse(outlook, message, clips, new)


def refusal(chars: int, limit: int, auto: bool, attempt: Attempt, detail: str) -> str:
    """Word the one error of the hard limit (specification, "Reducing an oversized kept tail")."""
    if not auto:
        what = "is disabled"
    elif attempt.outcome == "failed" or detail == "cooldown":
        what = f"failed ({attempt.detail or detail})"
    elif attempt.outcome == "completed":
        what = "ran but could not reduce it enough"
    elif detail == "uncertain_tool_results":
        what = "was skipped because a tool result is uncertain"
    else:
        what = "was skipped because there is no safe boundary to summarize"
    return (
        f"Context budget exceeded (approximately {chars} characters of conversation; "
        f"limit {limit}). Automatic compaction {what}. Shorten large tool outputs or "
        "instructions, start a new session, or raise limits.max_context_chars."
    )
