"""Print what survives ten compactions of long sessions: ``python -m tests.quality [SEED ...]``."""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.quality import bare, plants, play
from tests.quality.play import Outcome
from tests.quality.summarisers import SUMMARISERS

HEAD = "corpus | summariser | survived | lost kinds | unmarked | false | compactions | share | out"


def row(outcome: Outcome) -> str:
    """Write one line of the table."""
    kept, planted = sum(outcome.survived.values()), sum(outcome.planted.values())
    lost = ", ".join(sorted({plant.kind for plant in outcome.lost})) or "none"
    cells = (
        *(outcome.corpus, outcome.summariser, f"{kept}/{planted}", lost),
        *(str(len(outcome.unmarked)), str(len(outcome.false)), str(outcome.compactions)),
        *(f"{outcome.share:.1%}", str(outcome.omitted)),
    )
    return " | ".join(cells)


async def main(seeds: Sequence[int]) -> None:
    """Play every corpus with every summariser and print a line for each."""
    write = sys.stdout.write
    found = bare.measure()
    sizes = ", ".join(f"{size:.0%}" for size in found.sizes)
    write(f"bare session, {bare.ROUNDS} rounds: {found.survived} of {found.planted}; {sizes}\n\n")
    write(f"{HEAD}\n")
    for seed in seeds:
        corpora = (
            plants.seeded(),
            plants.spread(),
            plants.random_values(seed),
            plants.generated(seed),
            plants.side_constraints(seed),
        )
        for corpus in corpora:
            for summariser in SUMMARISERS:
                with tempfile.TemporaryDirectory() as folder:
                    outcome = await play.play(corpus, summariser, Path(folder), seed)
                write(f"{row(outcome)}\n")
                for plant in outcome.lost:
                    write(f"    lost: {plant.text}\n")
                for line in (*outcome.unmarked, *outcome.false):
                    write(f"    see: {line}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main([int(seed) for seed in sys.argv[1:]] or [1]))
