"""The one place where an error of any kind is caught: a request goes on, whatever goes wrong.

Each use is counted, logged and shown in a reply header.
"""

from types import TracebackType

from proxy.compactor.reports import Reporter
from proxy.errors import InvariantBroken
from proxy.telemetry import COMPACTION_FAILED, log


class FailingOpen:
    """Lets nothing that goes wrong stop a request: the one fail-open point.

    A class rather than a generator, and one object for all requests, since each enters it.
    """

    __slots__ = ("_reporter",)

    def __init__(self, reporter: Reporter) -> None:
        """Take who reports what went wrong."""
        self._reporter = reporter

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> bool:
        """Count, log and swallow what came up; a cancellation goes on."""
        if not isinstance(error, Exception):
            return False
        if isinstance(error, InvariantBroken):
            self._reporter.report(COMPACTION_FAILED, "", reason="invariant", detail=str(error))
            return True
        # Only the type: an exception's text may quote what it failed on.
        name = type(error).__name__
        log().error("compactor_failed", error=name)
        self._reporter.report(COMPACTION_FAILED, "", reason="internal", detail=name)
        return True
