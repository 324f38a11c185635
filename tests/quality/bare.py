"""The kit's bare session, in process: plan and ledger alone, a summary that says nothing."""

from dataclasses import dataclass
from functools import partial

from compaction_kit.runner import CompactedContext, run_conformance
from compaction_kit.session import SeededSession, Turn, build_seeded_session

from proxy.codec import JsonObject
from proxy.compaction.checkpoint import Sections
from proxy.compaction.plan import State
from proxy.compaction.policy import CompactionPolicy, Window
from tests.strategies import ask, make_checkpoint, run, to_request

ROUNDS = 5
WINDOW = 8192


class LedgerCompactor:
    """Compacts as the proxy does: from the originals, which the client sends every time."""

    name = "ledger"

    def __init__(self, session: SeededSession) -> None:
        self._turns = session.turns
        self._state = State()

    def compact(
        self, turns: list[Turn], round_num: int = 1, budget_chars: int | None = None
    ) -> CompactedContext:
        """Compact what was said so far; the session grows by two more turns each round."""
        more = [
            Turn(role, f"{text} {number}.")
            for number in range(2 * round_num)
            for role, text in (("user", "Go on with step"), ("assistant", "Done with step"))
        ]
        messages: list[JsonObject] = [
            {"role": turn.role, "content": turn.text}
            for turn in (*self._turns, *more, Turn("user", "And now?"))
        ]
        request = to_request(messages)
        compact = partial(make_checkpoint, id=f"r{round_num}", body=Sections(goal="work"))
        question = ask(request, CompactionPolicy(), Window(WINDOW, "test"), force=True)
        done = run(request, question, self._state, compact_with=compact)
        self._state = done.state
        assert self._state.checkpoint is not None
        return CompactedContext(self._state.checkpoint.rendered, self.name, round_num)


@dataclass(frozen=True, slots=True)
class Bare:
    """How the kit's runner judges it."""

    survived: tuple[int, ...]
    """Canaries that survived each round."""
    planted: int
    sizes: tuple[float, ...]
    """Rendered checkpoints as shares of the whole session."""


def measure() -> Bare:
    """Run the kit over its own session."""
    session = build_seeded_session()
    rounds = run_conformance(session, LedgerCompactor(session), rounds=ROUNDS).rounds
    whole = len(session.full_text())
    return Bare(
        tuple(sum(r.survived.values()) for r in rounds),
        len(rounds[0].survived),
        tuple(r.output_chars / whole for r in rounds),
    )
