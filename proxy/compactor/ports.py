"""What the compactor needs from outside, as protocols the application fills."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from proxy.compaction.policy import CompactionPolicy, Window
from proxy.upstream.routes import Route
from proxy.upstream.summarizer import SummaryJob, SummaryText


class Summarizer(Protocol):
    """Writes summaries."""

    async def summarise(self, job: SummaryJob) -> SummaryText:
        """Return the text; raises `SummaryFailed`."""
        ...


class Windows(Protocol):
    """Knows context windows."""

    def remembered(self, route: Route) -> Window | None:
        """Return what is known without waiting; None when nobody was asked yet."""
        ...

    async def window(self, route: Route) -> Window:
        """Return the window, asking the upstream for a bounded time if need be."""
        ...

    def ask_soon(self, route: Route) -> None:
        """Ask without waiting."""
        ...


class Ratios(Protocol):
    """Knows by how much the token estimate is off."""

    def factor(self, base: str, model: str, tenant: bytes = b"") -> float:
        """Return by how much the estimate is to be raised, at least 1."""
        ...


class Upstreams(Protocol):
    """Knows which upstreams keep responses for later requests."""

    def refuses(self, base: str, model: str) -> bool:
        """Whether an upstream must get requests written out."""
        ...


@dataclass(frozen=True, slots=True)
class Environment:
    """Time and chance, so that tests can hold them still."""

    now: Callable[[], float]
    """Seconds since the epoch."""
    new_id: Callable[[], str]
    """A fresh random id."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The settings of one model or profile that a request is handled by."""

    policy: CompactionPolicy
    fallback: str = "extractive"
    """``extractive`` or ``none``."""
    deadline_seconds: float = 60.0
    instruction: str | None = None
    """The operator's own summariser prompt."""
