"""What there is to say about a store, whatever its kind."""

import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from proxy.codec import JsonObject
from proxy.sessions.state import Unreadable

Status = Literal["ok", "warn", "FAIL"]

TRIES = 20
TRY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a check."""

    name: str
    status: Status
    text: str
    fix: str = ""
    """What to do about it; empty when it is ok."""
    facts: JsonObject = field(default_factory=dict)
    """The same for programs."""

    def to_json(self) -> JsonObject:
        """Return it as a JSON object."""
        found: JsonObject = {"name": self.name, "status": self.status, "text": self.text}
        if self.fix:
            found["fix"] = self.fix
        # Facts may have a name in common, but never the last word.
        return {**found, **self.facts, **found}


@dataclass(slots=True)
class Contents:
    """What a store holds, counted."""

    sessions: int = 0
    checkpoints: int = 0
    clip_sets: int = 0
    responses: int = 0
    """Recorded responses, whose items are not read."""
    unreadable: Counter[Unreadable] = field(default_factory=Counter)

    def note(self, value: Unreadable) -> None:
        """Count a value that cannot be read."""
        self.unreadable[value] += 1

    def findings(self) -> list[Finding]:
        """Return what to say of it."""
        counts: JsonObject = {
            "sessions": self.sessions,
            "checkpoints": self.checkpoints,
            "clip_sets": self.clip_sets,
            "responses": self.responses,
        }
        text = (
            f"{counted(self.sessions, 'session')}, {counted(self.checkpoints, 'checkpoint')}, "
            f"{counted(self.clip_sets, 'clip set')}, "
            f"{counted(self.responses, 'recorded response')}"
        )
        return [Finding("contents", "ok", text, facts=counts), *self._values()]

    def _values(self) -> list[Finding]:
        facts = unreadable_facts(self.unreadable)
        if not self.unreadable:
            return [Finding("values", "ok", "all can be read", facts=facts)]
        found = []
        for value, number in sorted(self.unreadable.items(), key=str):
            status: Status = "FAIL" if value.why == "locked" else "warn"
            text, fix = unreadable_text(value, number)
            found.append(Finding("values", status, text, fix, facts))
        return found


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "session"), counted(1200, "session")
    ('1 session', '1,200 sessions')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def unreadable_text(value: Unreadable, number: int) -> tuple[str, str]:
    """Return what is wrong with some values, and what to do about it."""
    count = counted(number, "value")
    if value.why == "locked":
        return (
            f"{count} encrypted with key '{value.key}', which is not there",
            f"add the key '{value.key}' to store.encryption_keys",
        )
    if value.why == "newer":
        return f"{count} of a newer version of Foldgate", "use that version"
    return (
        f"{count} damaged",
        "no need to: they count as absent, and sessions make new ones; but see what damaged them",
    )


def unreadable_facts(values: Counter[Unreadable]) -> JsonObject:
    """Return how many values cannot be read, by reason, and the keys that are not there."""
    why = Counter[str]()
    for value, number in values.items():
        why[value.why] += number
    return {
        "damaged": why["damaged"],
        "newer": why["newer"],
        "locked": why["locked"],
        "missing_keys": [*sorted({value.key for value in values if value.key})],
    }


async def round_trip(ask: Callable[[], Awaitable[object]]) -> float:
    """Return the typical time of an answer, in seconds."""
    times = list[float]()
    end = time.monotonic() + TRY_SECONDS
    while len(times) < TRIES and (not times or time.monotonic() < end):
        start = time.perf_counter()
        await ask()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def reachable(seconds: float, timeout_ms: int | None = None) -> Finding:
    """Say how fast a store answers, against how long a request waits for it."""
    took = seconds * 1000
    text = f"answers in {took:.1f} ms"
    facts: JsonObject = {"milliseconds": round(took, 3)}
    if timeout_ms is None or took <= timeout_ms / 2:
        return Finding("reachable", "ok", text, facts=facts)
    return Finding(
        "reachable",
        "warn",
        f"{text}, requests wait {timeout_ms} ms at most (store.timeout_ms)",
        f"set store.timeout_ms to {max(round(took * 4), 1)} or more, or bring the store nearer",
        facts,
    )
