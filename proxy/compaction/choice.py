"""Which of the legal cuts a compaction takes.

In order of preference: all `keep_turns` complete turns stay, then fewer, then a cut inside the
open turn that keeps as many recent call groups as fit. The first that comes down to the aim is
taken, else the smallest. Sizes are estimates, since the checkpoint is not written yet.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from proxy.compaction import cutpoints
from proxy.compaction.layout import Cut, arrange, pin, validate
from proxy.compaction.measure import MESSAGE_OVERHEAD_TOKENS
from proxy.compaction.policy import SUMMARY_TOKENS, Budget, CompactionPolicy
from proxy.errors import InvariantBroken
from proxy.transcript import Kind, Size, Transcript, total

MIN_GAIN = 0.10
"""A rewrite that saves less is not worth the loss, unless it is what makes the request fit."""

NOTHING_CLIPPED: Mapping[int, Size] = {}

FRAME_TOKENS = 130
"""About what the frame and the headings of a checkpoint cost."""

FACTS_SHARE = 0.02
"""About what the facts of a ledger cost, as a share of the items that they are taken from."""

WARY_SLACK = 1.15
"""Text is judged by samples, so a whole may count for more than the parts it was fitted by."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A cut and the estimated size of the full request after it."""

    cut: Cut
    tokens: int


def gains(before: int, after: int, fit: int | None) -> bool:
    """Tell whether going from `before` to `after` tokens is worth a rewrite."""
    return after <= (1 - MIN_GAIN) * before or (fit is not None and after <= fit < before)


def choose(
    transcript: Transcript,
    policy: CompactionPolicy,
    limits: Budget,
    *,
    after_cut: int,
    smallest: bool = False,
    wary: bool = False,
    clipped: Mapping[int, Size] = NOTHING_CLIPPED,
) -> Candidate | None:
    """Return the cut to make, or None when there is no legal one.

    Args:
        transcript: the whole request.
        policy: its `keep_turns` count.
        limits: its aim and checkpoint budget.
        after_cut: cuts up to this index are already covered by a checkpoint.
        smallest: take the cut that leaves least, whatever the aim.
        wary: expect the largest checkpoint that may come of it: a result did not keep what the
            estimate had promised, and none shall be thrown away for that again.
        clipped: sizes of the items that are clipped, by index.
    """
    sizes = _Sizes(transcript, limits, clipped, wary=wary)
    fallback: list[Candidate] = []
    for length, kept in _candidates(transcript, policy, after_cut):
        rough = sizes.after(length, kept, ())
        if not smallest and rough > limits.aim:
            fallback.append(Candidate(Cut(length, kept), rough))
            continue
        candidate = sizes.pinned(length, kept)
        if candidate is None:
            continue
        if not smallest and candidate.tokens <= limits.aim:
            return candidate
        fallback.append(candidate)
    for rough_candidate in sorted(fallback, key=lambda c: c.tokens):
        exact = sizes.pinned(rough_candidate.cut.length, rough_candidate.cut.kept)
        if exact is not None:
            return exact
    return None


def why_none(transcript: Transcript, after_cut: int) -> str:
    """Return the reason word for a transcript that has no cut after `after_cut`."""
    items = transcript.items
    if cutpoints.unanswered_call(items) is not None:
        return "uncertain_tool_results"
    everywhere = cutpoints.between_outputs(items)
    structural = (
        *cutpoints.turn_cuts(items, everywhere),
        *cutpoints.split_cuts(items, everywhere),
    )
    return "no_safe_boundary" if any(c > after_cut for c in structural) else "not_enough_history"


def _candidates(
    transcript: Transcript, policy: CompactionPolicy, after_cut: int
) -> Iterator[tuple[int, tuple[int, ...]]]:
    items = transcript.items
    legal = cutpoints.legal_cuts(items)
    by_turn = cutpoints.turn_cuts(items, legal)[: policy.keep_turns + 1]
    for length in reversed(by_turn):
        if length > after_cut:
            yield length, ()
    kept = tuple(cutpoints.open_user_run(items))
    for length in cutpoints.split_cuts(items, legal):
        if length > after_cut:
            yield length, kept


class _Sizes:
    """Estimates of what is left after a cut, from running sums."""

    def __init__(
        self, transcript: Transcript, limits: Budget, clipped: Mapping[int, Size], *, wary: bool
    ) -> None:
        self._wary = wary
        self._transcript = transcript
        self._limits = limits
        items = transcript.items
        self._base = total(transcript.instructions).tokens + transcript.catalogue.tokens
        self._tokens = [item.tokens for item in items]
        for index, size in clipped.items():
            self._tokens[index] = size.tokens
        self._sums = list(accumulate(self._tokens, initial=0))
        said = (item.tokens if item.kind is Kind.USER else 0 for item in items)
        self._said = list(accumulate(said, initial=0))

    def after(self, length: int, kept: Sequence[int], pinned: Sequence[int]) -> int:
        """Return the estimated full request."""
        items = self._transcript.items
        stay = sum(self._tokens[i] for i in (*kept, *pinned))
        quoted = self._said[length] - sum(items[i].tokens for i in kept)
        facts = int(FACTS_SHARE * (self._sums[length] - stay))
        ledger = min(self._limits.ledger, quoted + facts)
        checkpoint = min(self._limits.checkpoint, ledger + SUMMARY_TOKENS + FRAME_TOKENS)
        if self._wary:
            largest = max(self._limits.checkpoint, FRAME_TOKENS)
            checkpoint = int(WARY_SLACK * largest) + MESSAGE_OVERHEAD_TOKENS
        return self._base + checkpoint + stay + self._sums[-1] - self._sums[length]

    def pinned(self, length: int, kept: Sequence[int]) -> Candidate | None:
        """Return the candidate with its pins, or None when its layout would be invalid."""
        cut = pin(self._transcript.items, length, kept, self._limits.trigger)
        if not cut.replaced():
            return None
        try:
            validate(self._transcript, arrange(self._transcript.items, cut, ""))
        except InvariantBroken:
            return None
        return Candidate(cut, self.after(length, kept, (*cut.front, *cut.pinned)))
