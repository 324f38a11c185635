"""How far the token estimate is off for a model, learned from what the upstream reports.

Only the careful direction is taken: a model that counts more tokens than estimated makes the
window smaller; one that reports fewer is not believed, since servers that silently drop old
messages report just that.
"""

import re
from collections import OrderedDict

MIN_ESTIMATE = 256
"""Smaller requests say more about the chat template than about the text."""

MAX_FACTOR = 2.5
MARGIN = 1.03
"""New text may be denser than the average so far."""

MAX_MODELS = 1024
_WEIGHT = 0.4

_PROMPT_TOKENS = re.compile(rb'"(?:prompt|input)_tokens"\s*:\s*(\d{1,9})')
_TIMINGS = re.compile(rb'"cache_n"\s*:\s*(\d{1,9})\s*,\s*"prompt_n"\s*:\s*(\d{1,9})')


def reported_tokens(tail: bytes) -> int | None:
    """Return the prompt tokens that the end of a reply reports, or None.

    Understood are `usage.prompt_tokens`, `usage.input_tokens` (Responses) and, for streams without
    usage, llama.cpp's `timings`.
    """
    found = _PROMPT_TOKENS.findall(tail)
    if found:
        return int(found[-1])
    timings = _TIMINGS.findall(tail)
    return sum(map(int, timings[-1])) if timings else None


class Ratios:
    """Learned factors by upstream and model."""

    def __init__(self) -> None:
        """Begin with the plain estimate for every model."""
        self._factors: OrderedDict[tuple[str, str, bytes], float] = OrderedDict()

    def factor(self, base: str, model: str, tenant: bytes = b"") -> float:
        """Return by how much the estimate is to be raised, at least 1.

        Args:
            base: the upstream's base URL.
            model: the model that is asked.
            tenant: whose request it is; what errors told counts for one tenant only.
        """
        if not self._factors:
            return 1.0
        learned = self._factors.get((base, model, b""), 1.0)
        if tenant:
            learned = max(learned, self._factors.get((base, model, tenant), 1.0))
        return learned * MARGIN if learned > 1.0 else 1.0

    def learn(self, base: str, model: str, estimated: int, reported: int) -> None:
        """Take one report; an odd one moves little, an impossible one nothing."""
        self._take((base, model, b""), estimated, reported, _WEIGHT)

    def told(self, base: str, model: str, tenant: bytes, estimated: int, counted: int) -> None:
        """Take the count of an overflow error: had it been believed, there would be no error."""
        if counted > estimated:
            self._take((base, model, tenant), estimated, counted, 1.0)

    def _take(
        self, key: tuple[str, str, bytes], estimated: int, reported: int, weight: float
    ) -> None:
        if estimated < MIN_ESTIMATE or not 0 < reported <= MAX_FACTOR * estimated:
            return
        seen = max(1.0, reported / estimated)
        old = self._factors.get(key, 1.0)
        self._factors[key] = old + weight * (seen - old)
        self._factors.move_to_end(key)
        if len(self._factors) > MAX_MODELS:
            self._factors.popitem(last=False)
