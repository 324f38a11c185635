"""What one session says, how its prompt changes, and the list of what must not have happened."""

import random
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from proxy.codec import JsonObject, dumps
from tests import builders as b
from tests.e2e import checks
from tests.e2e.checks import Exchange

MAX_TOLD = 40
"""Violations that are told in full; the others are counted."""

_MARK = re.compile(rb"mark(\d+)n\d{5}z|job(\d+)q")


def marks(data: bytes) -> set[int]:
    """Return the sessions whose marks occur in something."""
    return {int(one or other) for one, other in _MARK.findall(data)}


class Violations(list[str]):
    """What must not have happened; `total` counts those that are not listed, too."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.kinds.total()

    def add(self, kind: str, text: str) -> None:
        self.kinds[kind] += 1
        if len(self) < MAX_TOLD:
            self.append(f"({kind}) {time.strftime('%H:%M:%S')} {text}")


class Life:
    """One session from its task to its end: all of it follows from its number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._rng = random.Random(f"life {number}")
        self.steps = self._rng.randrange(18, 60)
        self.result_chars = self._rng.randrange(700, 1500)
        self.stream = number % 3 == 0
        self.task = f"{b.TASK} This is job{number}q."

    @cached_property
    def messages(self) -> list[JsonObject]:
        """The task and its tool calls; every other session has the user speak in between."""
        said = b.tool_session(
            self.steps, task=self.task, result_chars=self.result_chars, seed=self.number
        )
        if self.number % 2:
            for step in range(self.steps - 2, 4, -self._rng.randrange(6, 12)):
                # Two messages of instructions and task, then two for each step.
                turn = [b.assistant(f"Step {step} is done."), b.user(f"Go on with part {step}.")]
                said[2 + 2 * step : 2 + 2 * step] = turn
        return said

    @cached_property
    def items(self) -> list[bytes]:
        """Every message but the instructions, as it is sent."""
        return [dumps(message) for message in self.messages[1:]]

    def requests(self) -> Iterator[bytes]:
        for step in checks.steps(self.messages):
            yield b.chat_body(step, stream=True) if self.stream else b.chat_body(step)


@dataclass
class Prompts:
    """How the prompt of one session changed from request to request."""

    life: Life
    troubles: int
    """How many kills and returns there had been when it began."""
    last: Sequence[bytes] = ()
    record: str = ""
    records: set[str] = field(default_factory=set)
    changes: Counter[str] = field(default_factory=Counter)

    def take(self, exchange: Exchange) -> str:
        """Note a request; says how its prompt departs from the one before, if it does."""
        new = checks.raw_messages(exchange.arrived)
        record = checks.record_id(checks.record_of(exchange))
        kept = new[: len(self.last)] == [*self.last]
        change = "" if kept else "new"
        if not kept and record in self.records | {""}:
            change = "same" if record == self.record else "back"
        if change and "clipped" in exchange.marks:
            change = "clipped"
        if change:
            self.changes[change] += 1
        self.last, self.record = new, record
        self.records |= {record} if record else set()
        return change
