"""Requests that need nothing: told without planning, since most are like that.

Only for requests of which nothing is stored. What the model counts is compared with what a budget
is in counted tokens, which is the same for all requests of a conversation. In doubt the plan is
asked.
"""

import math

from proxy.compaction.calibration import Calibration
from proxy.compaction.policy import CompactionPolicy, Window, budget, worst_budget
from proxy.transcript import Transcript

_MAX_FIXED_SHARE = 0.5
"""Where fixed parts take more of the trigger, it may lie elsewhere when they are counted."""


def quiet_size(
    transcript: Transcript,
    policy: CompactionPolicy,
    window: Window,
    calibration: Calibration,
) -> int | None:
    """Return the estimated tokens of a request for which `plan` would surely say `Forward`.

    None when it has to be asked. Only for requests of which nothing is stored.
    """
    limits = budget(policy, window, transcript)
    fixed = transcript.catalogue.tokens + sum([i.tokens for i in transcript.instructions])
    tokens = fixed + sum([i.tokens for i in transcript.items])
    chars = sum([i.chars for i in transcript.instructions]) + sum(
        [i.chars for i in transcript.items]
    )
    if chars >= limits.char_trigger:
        return None
    if limits.hard_chars is not None and chars > limits.hard_chars:
        return None
    if limits.fit is None:
        return tokens if tokens < limits.trigger else None
    factor, careful = calibration.factor(tokens), calibration.careful(tokens)
    if factor != 1.0 and fixed * factor > _MAX_FIXED_SHARE * limits.trigger:
        return None
    if math.ceil(tokens * careful) > limits.fit or math.ceil(tokens * factor) >= limits.trigger:
        return None
    return tokens


def surely_quiet(
    policy: CompactionPolicy, window: Window, tokens: int, chars: int, factor: float
) -> bool:
    """Tell whether a request needs nothing whatever is in it, as long as it is no larger.

    Only for requests of which nothing is stored. Everything else that a budget depends on is
    taken at its worst: no instructions, and the largest output that can be asked for.

    Args:
        policy: the knobs.
        window: the model's context window.
        tokens: the most estimated tokens that it may have.
        chars: the most characters.
        factor: the most that the model counts for an estimated token.
    """
    limits = worst_budget(policy, window)
    counted = tokens if limits.fit is None else math.ceil(tokens * factor)
    return (
        counted < limits.trigger
        and chars < limits.char_trigger
        and (limits.fit is None or counted <= limits.fit)
        and (limits.hard_chars is None or chars <= limits.hard_chars)
    )
