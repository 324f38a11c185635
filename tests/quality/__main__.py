"""Print what survives compactions: ``python -m tests.quality --help``."""

import asyncio
import contextlib
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from proxy.codec import JsonObject
from proxy.commands.model_server import NoModelServer, model_name, model_server
from tests.quality import bare, plants, play, survival
from tests.quality.plants import Corpus
from tests.quality.play import Outcome
from tests.quality.summarisers import SUMMARISERS, Summariser
from tests.quality.survival import Left, RealModel
from tests.upstream_rules import prompt_tokens

ABOUT = """\
Print what survives compactions of sessions in which twenty statements are planted.

With seeds or nothing: ten compactions of long sessions, all kinds of sessions and bad summarisers.
With an option: what each of a few compactions in a small window leaves, row by row as it comes.
Facts are printed by tools and goals stated by the assistant; with and without a tool catalogue.
"""
HEAD = "corpus | summariser | survived | lost kinds | unmarked | false | compactions | share | out"
KINDS = ("safety_rule", "hard_constraint", "user_preference", "fact", "goal_state")
FEW_HEAD = (
    "corpus | tools | summariser | compaction | rules | constraints | preferences | facts | goals"
    " | survived | tokens | counted | budget | share | written | seconds"
)
WINDOW, ROUNDS = 4096, 3


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


def few_row(corpus: str, tools: int, summariser: str, left: Left, seconds: float) -> str:
    """Write one line of the table of a few compactions."""
    kinds = [f"{left.survived[kind]}/{left.planted[kind]}" for kind in KINDS]
    kept, planted = sum(left.survived.values()), sum(left.planted.values())
    cells = (
        *(corpus, str(tools), summariser, str(left.number), *kinds, f"{kept}/{planted}"),
        *(str(left.tokens), str(left.counted), str(left.budget)),
        *(f"{left.share:.1%}", left.written, f"{seconds:.0f}"),
    )
    return " | ".join(cells)


async def few(options: Namespace) -> None:
    """Play a few compactions of each session and print a line for each compaction."""
    corpora = [(1, plants.spread())]
    corpora += [(seed, plants.spread_of(plants.random_values(seed))) for seed in options.seed]
    sys.stdout.write(f"window {options.window}\n{FEW_HEAD}\n")
    async with summarisers(options.model, options.window) as chosen:
        for seed, corpus in corpora:
            for tools in ((), survival.AGENT_TOOLS):
                for name, summariser in chosen.items():
                    await _session(corpus, seed, tools, name, summariser, options)


async def _session(
    corpus: Corpus,
    seed: int,
    tools: Sequence[JsonObject],
    name: str,
    summariser: Summariser | RealModel,
    options: Namespace,
) -> None:
    write, begun, left = sys.stdout.write, time.monotonic(), None
    size = prompt_tokens({"tools": [*tools]})
    with tempfile.TemporaryDirectory() as folder:
        played = survival.survive(
            corpus,
            summariser,
            Path(folder),
            window=options.window,
            rounds=options.rounds,
            seed=seed,
            tools=tools,
        )
        async for left in played:
            seconds, begun = time.monotonic() - begun, time.monotonic()
            write(f"{few_row(f'{corpus.name} {seed}', size, name, left, seconds)}\n")
            for plant in left.lost:
                write(f"    lost: {plant.text}\n")
            sys.stdout.flush()
    if options.record and left is not None:
        write(f"{left.record}\n")


@contextlib.asynccontextmanager
async def summarisers(
    model: str | None, window: int
) -> AsyncIterator[Mapping[str, Summariser | RealModel]]:
    """Give the summarisers by name: a real one while its server runs, or the scripted ones."""
    if model is None:
        yield SUMMARISERS
        return
    file = Path(model) if model else None
    async with model_server(window, model=file) as url:
        name = model_name(file)
        yield {name: RealModel(name, f"{url}/v1")}


def read_options(arguments: Sequence[str] | None = None) -> Namespace:
    """Read the command line, or `arguments`; ends the program where they make no sense."""
    parser = ArgumentParser(
        "python -m tests.quality", description=ABOUT, formatter_class=RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("seeds", nargs="*", type=int, metavar="SEED", help="of ten compactions (default 1)")
    add(
        "--model",
        nargs="?",
        const="",
        metavar="PATH",
        help="have a real model write the summaries: this file (GGUF), or without PATH the small "
        "one of the dependency group llama",
    )
    add("--window", type=_positive, metavar="N", help=f"context window, tokens (default {WINDOW})")
    add("--rounds", type=_positive, metavar="N", help=f"compactions (default {ROUNDS})")
    add("--seed", type=int, action="append", metavar="N", help="of a random session; repeatable")
    add("--record", action="store_true", help="print each session's last checkpoint")
    options = parser.parse_args(arguments)
    given = (options.model, options.window, options.rounds, options.seed, options.record or None)
    options.few = any(value is not None for value in given)
    if options.few and options.seeds:
        parser.error("seeds of ten compactions go without options; a few take --seed N")
    options.window, options.rounds = options.window or WINDOW, options.rounds or ROUNDS
    options.seed = options.seed or [1]
    return options


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    options = read_options()
    try:
        asyncio.run(few(options) if options.few else main(options.seeds or [1]))
    except NoModelServer as error:
        sys.exit(str(error))
