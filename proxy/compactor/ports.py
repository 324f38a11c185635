"""What the compactor needs from outside, as protocols the application fills."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from proxy.compaction.calibration import Calibration
from proxy.compaction.policy import CompactionPolicy, Window
from proxy.transcript import Transcript
from proxy.upstream.reports import Measured
from proxy.upstream.routes import Route
from proxy.upstream.summarizer import SummaryJob
from proxy.upstream.summary_reply import SummaryText


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


class Calibrations(Protocol):
    """Knows what models count for what was estimated."""

    def of(
        self, base: str, model: str, tenant: bytes, transcript: Transcript, form: str = ""
    ) -> Calibration:
        """Return how to read the estimates of a request that goes with a checkpoint, or none."""
        ...

    def nearest(self, base: str, model: str, tenant: bytes, session: bytes) -> Calibration:
        """Return how to read the estimates of a request that was not read, and goes as it came."""
        ...

    def counted(self, base: str, model: str, sent: Measured, tokens: int) -> None:
        """Take the exact size of a request that is about to be sent."""
        ...


class Counters(Protocol):
    """Knows upstreams that count a request without running it."""

    def may_count(self, route: Route) -> bool:
        """Tell whether asking may bring something, as far as is known."""
        ...

    async def count(self, route: Route, body: bytes) -> int | None:
        """Return the tokens of a request; None when the upstream does not tell, in time."""
        ...


class Upstreams(Protocol):
    """Knows which upstreams keep responses for later requests."""

    def refuses(self, base: str, model: str) -> bool:
        """Whether an upstream must get requests written out."""
        ...


class Templates(Protocol):
    """Knows which models' chat templates are strict."""

    def joins(self, base: str, model: str) -> bool:
        """Whether nothing may stand beside a checkpoint in requests to a model."""
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
    background: bool = True
    """Whether what a request could not wait for is finished after its reply."""
