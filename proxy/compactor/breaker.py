"""A circuit breaker: what has just failed is not asked again by everybody."""

from collections.abc import Callable

RETRY_SECONDS = 1.0
"""How long a failing store is left alone; then one call tries again."""


class Breaker:
    """Says whether a call is worth making."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Take the clock, in seconds."""
        self._now = now
        self._retry_at = 0.0
        self._open = False

    @property
    def is_open(self) -> bool:
        """Whether the last call failed."""
        return self._open

    def allows(self) -> bool:
        """Tell whether to call; while open, one caller each `RETRY_SECONDS` is told so."""
        if not self._open:
            return True
        now = self._now()
        # The second test is for a clock that was set back.
        if now < self._retry_at and self._retry_at - now <= RETRY_SECONDS:
            return False
        self._retry_at = now + RETRY_SECONDS
        return True

    def failed(self) -> None:
        """Note a failure."""
        self._open = True
        self._retry_at = self._now() + RETRY_SECONDS

    def succeeded(self) -> None:
        """Note a success."""
        self._open = False
