"""Turning what the compactor does into events: ids, counts and fixed words only."""

from collections.abc import Callable

from proxy.codec import JsonObject
from proxy.compaction.checkpoint import Checkpoint
from proxy.compaction.plan import Compact
from proxy.compaction.policy import Window
from proxy.telemetry import COMPACTION_COMPLETED, COMPACTION_STARTED, Event, EventSink

Scalar = bool | int | float | str | None


class Reporter:
    """Emits the compactor's events."""

    def __init__(self, sink: EventSink, now: Callable[[], float], anchor: bytes = b"") -> None:
        """Take the sink, the clock (seconds since the epoch) and whose events they are."""
        self._sink = sink
        self._now = now
        self._anchor = anchor

    def of(self, anchor: bytes) -> "Reporter":
        """Return a reporter for one conversation."""
        return Reporter(self._sink, self._now, anchor)

    def started(
        self, compact: Compact, window: Window, session: str, *, shadow: bool = False
    ) -> None:
        self.report(
            COMPACTION_STARTED,
            session,
            reason=compact.reason,
            tokens=compact.counted(compact.outlook.after.tokens),
            trigger=compact.counted(compact.limits.trigger),
            window=window.tokens,
            window_source=window.source,
            **(
                {"shadow": True, "expected": compact.counted(compact.expected_tokens)}
                if shadow
                else {}
            ),
        )

    def completed(self, checkpoint: Checkpoint, compact: Compact, *, stored: bool) -> None:
        fields: dict[str, Scalar] = {
            "reason": compact.reason,
            "checkpoint": checkpoint.id,
            "tokens_before": compact.counted(checkpoint.tokens_before),
            "tokens_after": compact.counted(checkpoint.tokens_after),
            "span_items": checkpoint.span_items,
            "span_tokens": compact.counted(checkpoint.span_tokens),
            "checkpoint_tokens": compact.counted(checkpoint.tokens),
            "omitted": checkpoint.omitted,
            "model": checkpoint.model,
        }
        if checkpoint.partial:
            fields["partial"] = True
            fields["advice"] = "raise compaction.max_output_tokens"
        if checkpoint.covered is not None:
            # Its summary is true, but of so many items only; the background does the rest.
            fields["partial"] = True
            fields["covered"] = checkpoint.covered
        if checkpoint.extractive:
            fields["extractive"] = True
        if not stored:
            # It is used, and stored once the store is back.
            fields["stored"] = False
        self.report(COMPACTION_COMPLETED, checkpoint.session, **fields)

    def report(self, type_: str, session: str, **fields: Scalar) -> None:
        members: JsonObject = dict(fields)
        self._sink.emit(Event(type_, self._now(), session, members, self._anchor))
