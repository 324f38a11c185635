"""What building and writing a ledger costs; nothing is asserted here.

Run with ``uv run python -m tests.bench.ledger_cost``. Figures are CPU milliseconds of this process
for about 1 MB of history, the best of three rounds.
"""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from proxy.codec import JsonObject
from proxy.compaction import ledger
from proxy.transcript import Content
from tests import builders as b
from tests.strategies import contents_of, to_transcript

ROUNDS = 3
TOKENS = 3000
SOURCES = Path(__file__).parents[2] / "proxy"


def sessions() -> Mapping[str, Sequence[JsonObject]]:
    """Histories of 1 MB of several kinds."""
    source = "".join(path.read_text() for path in sorted(SOURCES.rglob("*.py")))[:1_000_000]
    chunks = [source[i : i + 8000] for i in range(0, len(source), 8000)]
    reads: list[JsonObject] = [b.user("Read it all.")]
    pastes: list[JsonObject] = []
    for number, chunk in enumerate(chunks):
        call = b.call(f"c{number}", "read_file", {"path": f"src/{number}.py"})
        reads += [b.assistant(None, [call]), b.result(f"c{number}", chunk)]
        pastes += [b.user(chunk), b.assistant("I see.")]
    talk = [
        m
        for n in range(500)
        for m in (b.user(f"Never touch part {n}. {b.prose(1900, n)}"), b.assistant("Noted."))
    ]
    return {
        "one long task": b.tool_session(480, result_chars=2000),
        "many turns": b.turn_session(160, 3, result_chars=2000),
        "files read": reads,
        "files pasted": pastes,
        "much said": talk,
    }


def cost(contents: Sequence[Content]) -> tuple[float, float]:
    """Return the milliseconds of building and of writing."""
    best = [float("inf"), float("inf")]
    for _ in range(ROUNDS):
        start = time.process_time()
        book = ledger.build(contents, range(len(contents)))
        built = time.process_time()
        ledger.render(book, TOKENS)
        written = time.process_time()
        best = [min(best[0], built - start), min(best[1], written - built)]
    return best[0] * 1000, best[1] * 1000


def main() -> None:
    """Print a line for each kind of history."""
    for name, messages in sessions().items():
        built, written = cost(contents_of(to_transcript(messages).items))
        sys.stdout.write(f"{name:16} build {built:6.1f} ms  write {written:6.1f} ms\n")


if __name__ == "__main__":
    main()
