"""Requests that need nothing: told without planning, since most are like that.

Only for requests of which nothing is stored.
"""

from proxy.compaction.policy import CompactionPolicy, Window, budget, worst_budget
from proxy.transcript import Transcript


def quiet_size(
    transcript: Transcript, policy: CompactionPolicy, window: Window, factor: float
) -> int | None:
    """Return the tokens of a request for which `plan` would say `Forward` without a second look.

    None when it has to be asked. Only for requests of which nothing is stored.
    """
    limits = budget(policy, window, transcript, factor)
    chars = sum([i.chars for i in transcript.instructions]) + sum(
        [i.chars for i in transcript.items]
    )
    tokens = transcript.catalogue.tokens + sum([i.tokens for i in transcript.instructions])
    tokens += sum([i.tokens for i in transcript.items])
    if tokens >= limits.trigger or chars >= limits.char_trigger:
        return None
    if (limits.fit is not None and tokens > limits.fit) or (
        limits.hard_chars is not None and chars > limits.hard_chars
    ):
        return None
    return tokens


def surely_quiet(
    policy: CompactionPolicy, window: Window, tokens: int, chars: int, factor: float
) -> bool:
    """Tell whether a request needs nothing whatever is in it, as long as it is no larger.

    Only for requests of which nothing is stored. Everything else that a budget depends on is
    taken at its worst: no instructions, and the largest output that can be asked for.
    """
    limits = worst_budget(policy, window, factor)
    return (
        tokens < limits.trigger
        and chars < limits.char_trigger
        and (limits.fit is None or tokens <= limits.fit)
        and (limits.hard_chars is None or chars <= limits.hard_chars)
    )
