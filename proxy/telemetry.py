"""What the proxy tells about its work: versioned events, and the log.

Events and log lines hold ids, counts, sizes and fixed words; never message text, credentials or
anything else that a client or an upstream wrote.
"""

import logging
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol, TextIO, cast

import structlog

from proxy import codec
from proxy.codec import Json, JsonObject

if sys.platform != "win32":
    import fcntl

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
    anchor: bytes = b""
    """Which conversation it belongs to, for a store that keeps a conversation's data together."""

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

    @classmethod
    def from_json(cls, line: Json) -> "Event | None":
        """Read an event as `to_json` wrote it; None when it is something else."""
        if not isinstance(line, dict):
            return None
        type_, stamp, session = line.get("type"), line.get("time"), line.get("session")
        if not (isinstance(type_, str) and isinstance(stamp, str) and isinstance(session, str)):
            return None
        try:
            time = datetime.fromisoformat(stamp).timestamp()
        except ValueError:
            return None
        known = {"schema", "type", "time", "session"}
        return cls(type_, time, session, {k: v for k, v in line.items() if k not in known})


class EventSink(Protocol):
    """Takes events; must not block and must not raise."""

    def emit(self, event: Event) -> None:
        """Take one event."""


class JsonLines:
    """Writes each event as one line of JSON.

    A line is given to the system whole, so lines of several processes on one output never mix: on
    a file, a terminal, and on a pipe up to its atomic size (4096 bytes on Linux). With `shared` a
    lock on the pipe keeps longer lines whole too; a process that dies gives it up.
    """

    def __init__(self, stream: TextIO, *, shared: bool = False) -> None:
        """Write to `stream`; `shared` when other processes write events there, too."""
        self._stream = stream
        try:
            self._descriptor: int | None = stream.fileno()
        except (OSError, ValueError):
            # Not a file of the system, so nobody else's either.
            self._descriptor = None
        self._locks = shared and self._descriptor is not None and _may_tear(self._descriptor)

    def emit(self, event: Event) -> None:
        """Write one line."""
        self.write(event.to_json())

    def write(self, line: JsonObject) -> None:
        """Write any JSON object as a line; a closed stream is ignored."""
        data = codec.dumps(line) + b"\n"
        try:
            if self._descriptor is None:
                self._stream.write(data.decode())
                self._stream.flush()
            elif self._locks:
                with _locked(self._descriptor):
                    _write_all(self._descriptor, data)
            else:
                _write_all(self._descriptor, data)
        except (OSError, ValueError):
            return


def _may_tear(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


@contextmanager
def _locked(descriptor: int) -> Iterator[None]:
    if sys.platform != "win32":
        # Not every system locks pipes; lines of the atomic size are whole all the same.
        with suppress(OSError):
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if sys.platform != "win32":
            with suppress(OSError):
                fcntl.lockf(descriptor, fcntl.LOCK_UN)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


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


class _Forgiving:
    """A stream that cannot fail: a full disk or a closed terminal must not stop a request."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def configure_log(
    *, verbose: bool = False, quiet: bool = False, stream: TextIO | None = None
) -> None:
    """Write log lines: warnings and compactions, all when `verbose`, only errors when `quiet`.

    They go to stderr, or to `stream` where stderr belongs to somebody else.
    """
    level = logging.ERROR if quiet else logging.DEBUG if verbose else logging.INFO
    stream = sys.stderr if stream is None else stream
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(colors=stream.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: structlog.PrintLogger(cast("TextIO", _Forgiving(stream))),
        cache_logger_on_first_use=True,
    )
