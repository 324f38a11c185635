"""What a request may say about how it is to be handled, in headers that end here."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeVar

from multidict import MultiMapping

WINDOW_HEADER = "x-foldgate-context-window"
THRESHOLD_HEADER = "x-foldgate-threshold"
MIN_WINDOW, MAX_WINDOW = 256, 2_000_000
MIN_THRESHOLD, MAX_THRESHOLD = 0.1, 0.99

_Number = TypeVar("_Number", int, float)


class BadHint(ValueError):
    """A header that cannot be used; says which, and what it must be."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What a request names."""

    window: int | None = None
    """Context window, tokens."""
    threshold: float | None = None
    """Share of the window that triggers."""


NO_HINTS = Hints()


def read_hints(headers: MultiMapping[str], allowed: Collection[str]) -> Hints:
    """Read the hints of a request.

    Args:
        headers: of the request.
        allowed: which headers clients may use, as the setting ``server.request_headers`` names
            them; others are passed over.

    Raises:
        BadHint: when a header is there that is no number, or one out of bounds.
    """
    window = headers.get(WINDOW_HEADER) if "context-window" in allowed else None
    threshold = headers.get(THRESHOLD_HEADER) if "threshold" in allowed else None
    if window is None and threshold is None:
        return NO_HINTS
    return Hints(
        _number(WINDOW_HEADER, window, int, MIN_WINDOW, MAX_WINDOW),
        _number(THRESHOLD_HEADER, threshold, float, MIN_THRESHOLD, MAX_THRESHOLD),
    )


def _number(
    name: str, text: str | None, read: Callable[[str], _Number], least: _Number, most: _Number
) -> _Number | None:
    if text is None:
        return None
    try:
        value = read(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= most:
        kind = "a whole number" if read is int else "a number"
        raise BadHint(f"The header {name} must be {kind} from {least:,} to {most:,}.")
    return value
