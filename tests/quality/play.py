"""Playing a corpus as a long agent session through the proxy, over HTTP."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from proxy.codec import JsonObject
from tests import builders as b
from tests.e2e import checks
from tests.e2e.checks import Agent
from tests.e2e.running import Running
from tests.quality.plants import Corpus, Plant
from tests.quality.summarisers import SUMMARISERS
from tests.upstream import ScriptedUpstream

WINDOW = 12_288
MIN_BYTES = 360_000
TAIL_TURNS = 8
"""So many turns without a plant come last, so that every plant is in a replaced item."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was left after the last compaction."""

    corpus: str
    summariser: str
    survived: Counter[str]
    planted: Counter[str]
    lost: tuple[Plant, ...]
    unmarked: tuple[str, ...]
    """Lines with a replaced value that do not say so."""
    false: tuple[str, ...]
    """What the summariser made up that stands among the instructions."""
    compactions: int
    share: float
    """The last checkpoint as a share of all that it stands for."""
    omitted: int


class Script:
    """Writes an agent session, one turn after the other."""

    def __init__(self, corpus: Corpus, seed: int, sizes: Sequence[int] = (900, 2000, 3500)) -> None:
        """Take who says what, and how long a tool result may be, characters."""
        self.messages = [b.system(b.SYSTEM)]
        self._corpus, self._seed, self._sizes = corpus, seed, sizes
        self._rng = random.Random(seed)
        self._turns = self._calls = 0

    def turn(self, text: str, chars: int) -> None:
        """Add a turn in which `text` is said and tools print so many characters."""
        corpus, messages, turn = self._corpus, self.messages, self._turns
        is_users = text not in corpus.by_tools | corpus.by_assistant
        messages.append(b.user(text if is_users else f"Go on with step {turn}."))
        left, printed = chars, text if text in corpus.by_tools else ""
        while left > 0:
            size = min(left, self._rng.choice(self._sizes))
            self._call(size, printed)
            left, printed = left - size, ""
        stated = text if text in corpus.by_assistant else "Done."
        messages.append(b.assistant(f"That was request {turn}.\n{stated}"))
        self._turns += 1

    def _call(self, size: int, printed: str) -> None:
        number = self._calls
        id = b.call_id(self._seed, number)
        path = f"src/part_{self._rng.randrange(40):02}/module_{number:03}.py"
        self.messages.append(b.assistant(None, [b.call(id, "read_file", {"path": path})]))
        prose = b.prose(size, self._seed, f"r{number}")
        text = f"{prose[: size // 2]}\n{printed}\n{prose[size // 2 :]}"
        self.messages.append(b.result(id, text))
        self._calls += 1


def session(corpus: Corpus, seed: int, min_chars: int = MIN_BYTES) -> list[JsonObject]:
    """Return an agent session in which the user says what the corpus holds, in order."""
    said = [*corpus.said, *(f"Go on, please, with step {n}." for n in range(TAIL_TURNS))]
    per_turn = min_chars // len(said) + 1
    script = Script(corpus, seed)
    for text in said:
        script.turn(text, per_turn)
    return script.messages[:-1]


async def play(
    corpus: Corpus, summariser: str, folder: Path, seed: int, *, min_chars: int = MIN_BYTES
) -> Outcome:
    """Play the session from its first to its last request; return what survived."""
    messages = session(corpus, seed, min_chars)
    async with ScriptedUpstream() as up, aiohttp.ClientSession(auto_decompress=False) as http:
        checks.make_strict(up, WINDOW)
        up.summary_text = SUMMARISERS[summariser]
        async with Running(up.base_url, folder, **{"compaction.background": False}) as proxy:
            exchanges = await Agent(http, proxy.url, up).play(messages)
            completed = proxy.events.of_type("compaction_completed")
    checks.assert_fine(exchanges, up)
    record = checks.record_of(exchanges[-1])
    lost = tuple(p for p in corpus.plants if not p.survives(record))
    last = completed[-1]
    return Outcome(
        corpus.name,
        summariser,
        Counter(p.kind for p in corpus.plants if p not in lost),
        Counter(p.kind for p in corpus.plants),
        lost,
        tuple(line for p in corpus.plants for line in p.unmarked(record)),
        tuple(_claimed(record)),
        len(completed),
        _number(last, "checkpoint_tokens") / _number(last, "span_tokens"),
        _number(last, "omitted"),
    )


def _claimed(record: str) -> Sequence[str]:
    """Return the entries under the title of instructions."""
    _, _, rest = record.partition("## User instructions and constraints\n")
    return [line for line in rest.partition("\n## ")[0].splitlines() if line]


def _number(event: JsonObject, name: str) -> int:
    value = event[name]
    assert isinstance(value, int)
    return value
