"""A few compactions in a small window: what summarisers that are no good, and real ones, leave."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("compaction_kit")

from proxy.codec import JsonObject
from proxy.commands.model_server import model_name, model_server
from tests.e2e.running import ROOT
from tests.quality import plants, survival
from tests.quality.__main__ import read_options
from tests.quality.plants import STRICT, Corpus, Plant
from tests.quality.summarisers import SUMMARISERS, Summariser
from tests.quality.survival import AGENT_TOOLS, Left, RealModel
from tests.upstream_rules import prompt_tokens

WINDOW = 4096
ROUNDS = 3
MAX_LOST = 2
SHORT = 256
"""Output limit of a real summariser, tokens, so that it is soon done."""

SESSIONS = [plants.spread(), *(plants.spread_of(plants.random_values(seed)) for seed in (1, 2, 3))]
CATALOGUES = pytest.mark.parametrize("tools", [(), AGENT_TOOLS], ids=["no tools", "tools"])


async def after_each(
    corpus: Corpus,
    summariser: Summariser | RealModel,
    folder: Path,
    tools: Sequence[JsonObject],
    rounds: int = ROUNDS,
) -> list[Left]:
    played = survival.survive(
        corpus, summariser, folder, window=WINDOW, rounds=rounds, seed=1, tools=tools
    )
    return [left async for left in played]


def assert_kept(left: Left) -> None:
    # Else there was nothing to lose.
    assert sum(left.planted.values()) == 20
    assert [plant.text for plant in left.lost if plant.kind in STRICT] == []
    assert len(left.lost) <= MAX_LOST, [plant.text for plant in left.lost]
    assert left.tokens <= left.budget
    # What the model is believed to count is an estimate.
    assert left.counted <= 1.02 * left.budget


def test_the_catalogue_is_as_large_as_an_agents() -> None:
    assert 400 <= prompt_tokens({"tools": [*AGENT_TOOLS]}) <= 500


def test_a_replaced_fact_comes_from_where_its_successor_comes_from() -> None:
    corpus = plants.spread_of(plants.random_values(1))
    (fact,) = [plant for plant in corpus.plants if plant.kind == "fact" and plant.stale]
    (old,) = [text for text in corpus.said if fact.stale[0] in text and text != fact.text]
    assert {old, fact.text} < corpus.by_tools
    (cap,) = [plant for plant in corpus.plants if plant.kind == "hard_constraint" and plant.stale]
    assert not any(cap.stale[0] in text for text in corpus.by_tools | corpus.by_assistant)


async def test_what_is_not_in_the_record_counts_as_lost(tmp_path: Path) -> None:
    """The probe can fail: a statement of which a word was never said."""
    corpus = plants.spread()
    absent = Plant("fact", corpus.said[0], ("lantern", "never said"))
    unsaid = Plant("fact", "FACT: It was never said.", ("never said",))
    changed = replace(corpus, plants=(*corpus.plants, absent, unsaid))
    (left,) = await after_each(changed, SUMMARISERS["silent"], tmp_path, (), rounds=1)
    assert absent in left.lost
    assert unsaid not in left.lost
    assert left.planted["fact"] == 5


@pytest.mark.parametrize("summariser", SUMMARISERS)
async def test_three_compactions_in_a_small_window(summariser: str, tmp_path: Path) -> None:
    found = await after_each(plants.spread(), SUMMARISERS[summariser], tmp_path, AGENT_TOOLS)
    assert [left.number for left in found] == [1, 2, 3]
    for left in found:
        assert_kept(left)


@pytest.mark.slow
@CATALOGUES
@pytest.mark.parametrize("summariser", SUMMARISERS)
@pytest.mark.parametrize("corpus", SESSIONS[1:], ids=lambda corpus: corpus.name)
async def test_three_compactions_of_random_sessions(
    corpus: Corpus, summariser: str, tools: Sequence[JsonObject], tmp_path: Path
) -> None:
    for left in await after_each(corpus, SUMMARISERS[summariser], tmp_path, tools):
        assert_kept(left)


@pytest.mark.slow
async def test_three_compactions_with_a_real_model(tmp_path: Path) -> None:
    """SmolLM2 is nearly useless as a summariser, which is what this needs."""
    pytest.importorskip("xllamacpp")
    async with model_server(WINDOW) as server:
        real = RealModel(model_name(), f"{server}/v1", {"compaction.max_output_tokens": SHORT})
        found = await after_each(plants.spread(), real, tmp_path, AGENT_TOOLS)
    assert [left.number for left in found] == [1, 2, 3]
    for left in found:
        assert_kept(left)
        # It wrote them itself.
        assert left.written != "extract"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["3", "--rounds", "1"], "a few take --seed N"),
        (["--rounds", "0"], "argument --rounds"),
        (["--window", "-1"], "argument --window"),
    ],
)
def test_options_that_cannot_be(
    arguments: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        read_options(arguments)
    assert said in capsys.readouterr().err


def test_seeds_alone_are_those_of_ten_compactions() -> None:
    assert not read_options([]).few
    both = read_options(["3", "4"])
    assert (both.few, both.seeds) == (False, [3, 4])
    few = read_options(["--model", "--seed", "3"])
    assert (few.few, few.model, few.window, few.rounds, few.seed) == (True, "", 4096, 3, [3])


def test_a_model_that_is_not_there_is_told_in_one_line() -> None:
    done = _program("--model", "absent.gguf")
    assert done.returncode == 1
    assert done.stderr == "there is no model file absent.gguf\n"


@pytest.mark.slow
def test_the_program_prints_a_row_for_each_compaction() -> None:
    done = _program("--window", "4096", "--rounds", "2", "--seed", "5", "--record")
    assert done.returncode == 0, done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.count(" | ") > 10]
    # Two sessions, two catalogues, three summarisers, two compactions.
    assert len(rows) == 1 + 2 * 2 * 3 * 2
    assert {row[0] for row in rows[1:]} == {"spread 1", "random, spread 5"}
    assert done.stdout.count("<foldgate-record ") == 2 * 2 * 3


def _program(*options: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "tests.quality", *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
