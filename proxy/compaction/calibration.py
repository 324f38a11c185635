"""From estimated tokens to what a model counts.

An upstream that told how large an earlier, shorter form of a request was makes all but what is new
since then exact: that is the anchor. What is new, or everything where there is no anchor, is
estimated, times how far estimates were off before: the ratio. Where both come from is not known
here; `plan` and `quiet` take them as they are.
"""

import math
from dataclasses import dataclass

MIN_FACTOR, MAX_FACTOR = 0.05, 6.0
"""A request counts so many times its estimate at least, and at most."""

MARGIN = 1.03
"""What is only estimated may be denser than what the ratio was learned from."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How to read the estimates of one request in one form.

    A form is the request as it came, or with one checkpoint in its stead.
    """

    ratio: float = 1.0
    """Counted tokens for each estimated one."""
    estimated: int = 0
    """The anchor's own estimate."""
    reported: int = 0
    """What the upstream counted for the anchor; 0 where there is none."""
    settled: float = 0.0
    """The careful factor, where the same request was answered before: it must come to the same."""

    def tokens(self, estimate: int) -> int:
        """Return what the model would count, rounded up.

        >>> Calibration(1.2, estimated=1000, reported=1500).tokens(1100)
        1620
        """
        return math.ceil(round(estimate * self.factor(estimate), 6))

    def factor(self, estimate: int) -> float:
        """Return counted tokens for each estimated one, for a request of this size.

        Between `MIN_FACTOR` and `MAX_FACTOR`.
        """
        if self.settled:
            return self.ratio
        return self._bounded(self._counted(estimate, self.ratio), estimate)

    def careful(self, estimate: int) -> float:
        """Return the factor to use where nothing may be more than was thought.

        At least `factor`, and the same where all is known. Estimates that nothing was learned
        about are taken as they are: they are on the safe side.
        """
        if self.settled:
            return self.settled
        if self.reported:
            # What is new may cost twice what the rest did, up to what was estimated.
            likely = max(self.ratio, min(1.0, 2 * self.ratio))
            ratio = likely if estimate > self.estimated else min(self.ratio, 1.0)
            return self._bounded(self._counted(estimate, ratio), estimate)
        return min(MAX_FACTOR, self.factor(estimate) * (MARGIN if self.ratio != 1.0 else 1.0))

    def settle(self, estimate: int) -> "Calibration":
        """Return what reads any part of a request as it reads this size: nothing is learned."""
        return Calibration(self.factor(estimate), settled=self.careful(estimate))

    def elsewhere(self, estimate: int) -> int:
        """Return what the model would count for the request in another form: without the anchor."""
        return Calibration(self.ratio).tokens(estimate)

    def new_share(self, estimate: int) -> float:
        """Return which part of a request is only estimated: 0 at the anchor, 1 without one.

        Also 0 for what is settled: it is not to be read otherwise.
        """
        if self.settled:
            return 0.0
        if not self.reported or not estimate:
            return 1.0
        return min(1.0, abs(estimate - self.estimated) / estimate)

    def _counted(self, estimate: int, ratio: float) -> float:
        if not self.reported:
            return estimate * ratio
        return self.reported + (estimate - self.estimated) * ratio

    def _bounded(self, counted: float, estimate: int) -> float:
        factor = counted / estimate if estimate > 0 else self.ratio
        return min(MAX_FACTOR, max(MIN_FACTOR, factor))


AS_ESTIMATED = Calibration()
"""Of what nothing was learned about."""
