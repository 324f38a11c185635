"""What the proxy tells about its work: versioned events, and the log.

Events and log lines hold ids, counts, sizes and fixed words; never message text, credentials or
anything else that a client or an upstream wrote.
"""

import logging
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol, TextIO

import structlog

from proxy import codec
from proxy.codec import JsonObject

EVENT_SCHEMA = 1

COMPACTION_STARTED = "compaction_started"
COMPACTION_COMPLETED = "compaction_completed"
COMPACTION_SKIPPED = "compaction_skipped"
COMPACTION_FAILED = "compaction_failed"
CONTEXT_REDUCED = "context_reduced"
STORE_FAILED = "store_failed"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a session."""

    type: str
    time: float
    """Seconds since the epoch."""
    session: str
    """Session id; empty before the first stored fact."""
    fields: JsonObject = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        """Return the event as it is written: schema, type, time and session first."""
        stamp = datetime.fromtimestamp(self.time, UTC).isoformat(timespec="milliseconds")
        return {
            "schema": EVENT_SCHEMA,
            "type": self.type,
            "time": stamp.replace("+00:00", "Z"),
            "session": self.session,
            **self.fields,
        }


class EventSink(Protocol):
    """Takes events; must not block and must not raise."""

    def emit(self, event: Event) -> None:
        """Take one event."""


class JsonLines:
    """Writes each event as one line of JSON."""

    def __init__(self, stream: TextIO) -> None:
        """Write to `stream`, one flush per line."""
        self._stream = stream

    def emit(self, event: Event) -> None:
        """Write one line."""
        self.write(event.to_json())

    def write(self, line: JsonObject) -> None:
        """Write any JSON object as a line; a closed stream is ignored."""
        try:
            self._stream.write(codec.dumps(line).decode() + "\n")
            self._stream.flush()
        except (OSError, ValueError):
            return


class EventLog:
    """Writes each event to the log, failures as warnings."""

    def emit(self, event: Event) -> None:
        """Write one log entry."""
        level = logging.INFO
        if event.type in {COMPACTION_FAILED, STORE_FAILED}:
            level = logging.WARNING
        log().log(level, event.type, session=event.session, **event.fields)


class Fanout:
    """Passes each event to several sinks."""

    def __init__(self, sinks: Iterable[EventSink]) -> None:
        """Take the sinks, in order."""
        self._sinks = tuple(sinks)

    def emit(self, event: Event) -> None:
        """Pass the event on."""
        for sink in self._sinks:
            sink.emit(event)


class _Log(Protocol):
    def log(self, level: int, event: str, **fields: object) -> None: ...
    def info(self, event: str, **fields: object) -> None: ...
    def warning(self, event: str, **fields: object) -> None: ...
    def error(self, event: str, **fields: object) -> None: ...


def log() -> _Log:
    """Return the log. Pass ids, counts and fixed words only."""
    logger: _Log = structlog.get_logger("foldgate")
    return logger


def configure_log(*, verbose: bool) -> None:
    """Write log lines to stderr: warnings and compactions, or everything when `verbose`."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.DEBUG if verbose else logging.INFO
        ),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
