"""When to compact: the knobs, and the budget that follows from them for one request.

All lengths are estimated tokens unless the name says characters; those of a window are what the
model counts. The rules are design section 4: the
window rule or the character rule fires, whichever comes first.
"""

import math
from dataclasses import dataclass, field
from functools import lru_cache

from proxy.compaction.measure import CHARS_PER_TOKEN
from proxy.transcript import Size, Transcript

MAX_TRUSTED_WINDOW = 2_000_000
"""A larger declared window hides real pressure and counts as unknown (specification)."""

RESERVE_TOKENS = 4096
MIN_TRANSCRIPT_CHARS = 4000
"""The floor that a transcript keeps, whatever the instructions cost."""

CHECKPOINT_SHARE = 0.6
LEDGER_SHARE = 2 / 3
ESSENTIALS_SHARE = 0.8
"""What rules and labelled statements alone may take of a checkpoint, if they need it."""

MAX_LEDGER_TOKENS = 20_000
SUMMARY_TOKENS = 700
"""The length that the summariser is asked for."""


@dataclass(frozen=True, slots=True)
class LedgerPolicy:
    """How the room of the ledger is divided when not all of it fits.

    Kinds of facts have weights, relative to each other; one of 0 is left out. What was said has no
    weight: rules and what was stated under a label come first, facts may take a share of the rest.
    """

    max_tokens: int = MAX_LEDGER_TOKENS
    facts_share: float = 0.7
    """What facts may take from messages without a rule or a statement."""
    failed_commands: float = 16
    assistant_values: float = 12
    tool_values: float = 12
    files_written: float = 16
    files_read: float = 14
    urls: float = 16
    errors: float = 2
    commands: float = 1
    binaries: float = 1


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """The part of the settings that decisions depend on."""

    auto: bool = True
    threshold: float = 0.85
    keep_turns: int = 2
    target: float = 0.4
    max_output_tokens: int = 16_000
    max_context_chars: int = 800_000
    hard_limit_explicit: bool = False
    """Whether the operator set `max_context_chars`; then it binds with a known window too."""
    ledger: LedgerPolicy = LedgerPolicy()
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        """Work the hash out once: every request's budget is looked up by it."""
        knobs = (
            self.auto,
            self.threshold,
            self.keep_turns,
            self.target,
            self.max_output_tokens,
            self.max_context_chars,
            self.hard_limit_explicit,
            self.ledger,
        )
        object.__setattr__(self, "_hash", hash(knobs))

    def __hash__(self) -> int:
        """Return the hash of the knobs."""
        return self._hash


@dataclass(frozen=True, slots=True)
class Window:
    """A context window and where it was learned; `tokens` None means unknown."""

    tokens: int | None = None
    source: str = "unknown"
    input_only: bool = False
    """Whether `tokens` is a limit of the prompt alone, the reply not counted."""
    input_limit: int | None = None
    """A limit of the prompt that is known beside the window itself."""

    @property
    def total(self) -> int | None:
        """The limit of prompt and reply together, unless it is unknown or absurdly large."""
        return None if self.input_only else _believable(self.tokens)

    @property
    def input(self) -> int | None:
        """The limit of the prompt alone, unless it is unknown or absurdly large."""
        limit = _believable(self.input_limit)
        return _tighter(limit, _believable(self.tokens)) if self.input_only else limit

    @property
    def trusted(self) -> int | None:
        """The tighter of the limits, unless both are unknown or absurdly large."""
        return _tighter(self.total, self.input)


def _believable(tokens: int | None) -> int | None:
    return tokens if tokens is not None and tokens <= MAX_TRUSTED_WINDOW else None


def _tighter(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


@dataclass(frozen=True, slots=True)
class Budget:
    """What one request may cost."""

    trigger: int
    """Full request (instructions, transcript, catalogue) at which compaction is due."""
    char_trigger: int
    """Characters of instructions and transcript at which it is due."""
    fit: int | None
    """Largest full request that leaves the reserve free; None with an unknown window."""
    hard_chars: int | None
    """Limit over instructions and transcript that refuses; None where it only triggers."""
    aim: int
    """Full request that a compaction should come down to."""
    checkpoint: int
    """Largest checkpoint, ledger included."""
    ledger: int
    """Of it, the largest ledger."""
    essentials: int
    """The largest ledger where what must not be lost needs more."""
    overhead: bool
    """The fixed part alone exceeds every trigger: neither compacting nor clipping can help."""
    reason: str
    """Reason word of the token rule: ``threshold`` or ``unknown_window``."""
    char_overhead: bool = False
    """The instructions alone exceed what characters may cost: no compaction helps against that."""


def reserve(window: int, requested_output: int | None) -> int:
    """Return the tokens to keep free for the reply."""
    if requested_output is None:
        return min(RESERVE_TOKENS, window // 8)
    return min(requested_output, window // 4)


def budget(
    policy: CompactionPolicy,
    window: Window,
    transcript: Transcript,
    factor: float = 1.0,
    careful: float | None = None,
) -> Budget:
    """Work out the budget of one request.

    Args:
        policy: the knobs.
        window: the model's context window.
        transcript: the request.
        factor: what the model counts for each estimated token. Windows are in counted tokens,
            the budget is in estimated ones.
        careful: the same for what must fit; `factor` when that is None.
    """
    return _budget(
        policy,
        window.total,
        window.input,
        sum([item.tokens for item in transcript.instructions]),
        sum([item.chars for item in transcript.instructions]),
        transcript.catalogue.tokens,
        transcript.requested_output,
        factor,
        factor if careful is None else careful,
    )


def worst_budget(policy: CompactionPolicy, window: Window) -> Budget:
    """Work out the tightest budget, in counted tokens, that any request may have in a window."""
    return _budget(policy, window.total, window.input, 0, 0, 0, window.total, 1.0, 1.0)


@lru_cache(maxsize=1024)
def _budget(
    policy: CompactionPolicy,
    total: int | None,
    limit: int | None,
    instructions: int,
    instruction_chars: int,
    catalogue: int,
    requested_output: int | None,
    factor: float,
    careful: float,
) -> Budget:
    # The same for every request of a conversation, so it is worked out once for all of them.
    char_trigger = math.floor(policy.threshold * policy.max_context_chars)
    # As for tokens: rather at the last moment than after every turn, and never in vain.
    if _fixed_chars(instruction_chars, char_trigger) > char_trigger:
        char_trigger = policy.max_context_chars + 1
    char_overhead = _fixed_chars(instruction_chars, char_trigger) > char_trigger
    base = instructions + catalogue
    known = _tighter(total, limit)
    room_for_prompt = limit
    if total is not None:
        # What limits the prompt alone has the reply's room beside it.
        room_for_prompt = _tighter(limit, total - reserve(total, requested_output))
    if room_for_prompt is not None:
        room_for_prompt = int(room_for_prompt / careful)
    trigger, fit, overhead = _token_limits(policy, known, room_for_prompt, base, factor)
    room = max(0, trigger - base)
    if not char_overhead:
        # That rule may fire long before a huge window does; the aim follows the lower one.
        room = min(room, int((char_trigger - instruction_chars) / CHARS_PER_TOKEN))
    # A checkpoint may cost all that is estimated, even where the conversation costs less.
    written = room * min(1.0, factor)
    checkpoint = int(CHECKPOINT_SHARE * policy.target * written)
    return Budget(
        trigger=trigger,
        char_trigger=char_trigger,
        fit=fit,
        hard_chars=(
            policy.max_context_chars if known is None or policy.hard_limit_explicit else None
        ),
        aim=base + int(policy.target * room),
        checkpoint=checkpoint,
        ledger=min(policy.ledger.max_tokens, int(LEDGER_SHARE * checkpoint)),
        essentials=min(policy.ledger.max_tokens, int(ESSENTIALS_SHARE * checkpoint)),
        overhead=overhead,
        char_overhead=char_overhead,
        reason="unknown_window" if known is None else "threshold",
    )


def _token_limits(
    policy: CompactionPolicy,
    window: int | None,
    fit: int | None,
    base: int,
    factor: float,
) -> tuple[int, int | None, bool]:
    if window is None or fit is None:
        trigger = math.ceil(policy.max_context_chars / CHARS_PER_TOKEN)
        return trigger, None, base + _floor_tokens(None) > trigger
    trigger = min(math.floor(policy.threshold * window / factor), fit + 1)
    fixed = base + _floor_tokens(window)
    if fixed > trigger:
        trigger = fit + 1
    return trigger, fit, fixed > fit


def _fixed_chars(instructions: int, limit: int) -> int:
    return instructions + min(MIN_TRANSCRIPT_CHARS, limit // 4)


def _floor_tokens(window: int | None) -> int:
    floor = math.ceil(MIN_TRANSCRIPT_CHARS / CHARS_PER_TOKEN)
    return floor if window is None else min(floor, window // 4)


def trigger_reason(limits: Budget, full: Size, conversation_chars: int) -> str | None:
    """Return why a request of this size is due for compaction, or None.

    Args:
        limits: the request's budget.
        full: instructions, transcript and catalogue together.
        conversation_chars: characters of instructions and transcript.
    """
    if full.tokens >= limits.trigger:
        return limits.reason
    if conversation_chars >= limits.char_trigger:
        return "characters"
    return None
