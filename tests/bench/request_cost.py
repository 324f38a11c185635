"""What looking at a request costs, step by step; nothing is asserted here.

Run with ``uv run python -m tests.bench.request_cost``. Figures are CPU microseconds of this
process, the best of several rounds; compare ratios, not machines.
"""

import sys
import time
from collections.abc import Callable

import orjson

from proxy.compaction import fingerprint, measure
from proxy.compaction.plan import Question, State, plan
from proxy.compaction.policy import CompactionPolicy, Window
from proxy.dialects.bodies import Annotators
from proxy.dialects.chat_completions import ChatCompletions
from proxy.dialects.memo import PrefixMemo
from tests import builders

ROUNDS = 5
SIZES = {"2 KB": 0, "100 KB": 45, "1 MB": 480}
ORIGIN = fingerprint.origin("bench", "chat")
ANNOTATORS = Annotators(measure.size_of, fingerprint.extend, measure.text_size)


def body(steps: int, turn: int) -> bytes:
    """One request of a session; `turn` changes its last message only."""
    messages = builders.tool_session(steps, result_chars=2000)
    messages.append(builders.assistant("Done with that."))
    messages.append(builders.user(f"Next question, number {turn}."))
    return builders.chat_body(messages, tools=builders.catalogue(10, 400) if steps else None)


def cost(work: Callable[[int], object], times: int) -> float:
    """Microseconds of CPU per call."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.process_time()
        for number in range(times):
            work(number)
        best = min(best, (time.process_time() - start) / times)
    return best * 1e6


def rows(steps: int) -> list[tuple[str, float]]:
    """Measure one size."""
    bodies = [body(steps, turn) for turn in range(20)]
    times = 20 if steps > 100 else 200
    pick = [bodies[n % 20] for n in range(times)]
    warm = ChatCompletions(ANNOTATORS, PrefixMemo(64 << 20))
    for known in bodies:
        warm.parse(known, ORIGIN)
    parsed = warm.parse(bodies[0], ORIGIN)
    if parsed is None:
        raise SystemExit("the bench body is not a request")
    question = Question(parsed.transcript, CompactionPolicy(), Window(10_000_000), warm.read)
    return [
        ("orjson.loads", cost(lambda n: orjson.loads(pick[n]), times)),
        ("parse, seen before", cost(lambda n: warm.parse(pick[n], ORIGIN), times)),
        (
            "parse, never seen",
            cost(
                lambda n: ChatCompletions(ANNOTATORS, PrefixMemo(64 << 20)).parse(pick[n], ORIGIN),
                times,
            ),
        ),
        ("plan", cost(lambda n: plan(question, State()), times)),
    ]


def main() -> None:
    for name, steps in SIZES.items():
        sys.stdout.write(f"{name} ({len(body(steps, 0)):,} bytes)\n")
        for what, micros in rows(steps):
            sys.stdout.write(f"  {what:<20} {micros:10,.1f} µs\n")


if __name__ == "__main__":
    main()
