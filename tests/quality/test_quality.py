"""What the user said and what was found out survives bad summarisers, many times over."""

from pathlib import Path

import pytest

pytest.importorskip("compaction_kit")

from tests.quality import bare, plants, play
from tests.quality.plants import STRICT, Corpus
from tests.quality.play import Outcome
from tests.quality.summarisers import SUMMARISERS

MAX_SHARE = 0.08


def assert_survives(outcome: Outcome) -> None:
    assert [p.text for p in outcome.lost if p.kind in STRICT or p.kind in _OWN_KINDS] == []
    softer = [p for p in outcome.lost if p.kind not in STRICT]
    assert len(softer) <= 0.05 * sum(outcome.planted.values())
    assert outcome.false == ()


_OWN_KINDS = frozenset(kind for kind, _ in plants.SIDE_CONSTRAINTS)


def test_the_bare_session_of_the_kit() -> None:
    found = bare.measure()
    assert found.survived == (found.planted,) * bare.ROUNDS
    assert max(found.sizes) <= 0.9


async def test_a_session_with_side_constraints(tmp_path: Path) -> None:
    outcome = await play.play(
        plants.side_constraints(1), "contradicting", tmp_path, 1, min_chars=80_000
    )
    assert_survives(outcome)
    assert outcome.compactions >= 2


@pytest.mark.slow
@pytest.mark.parametrize("summariser", SUMMARISERS)
@pytest.mark.parametrize(
    "corpus",
    [
        plants.seeded(),
        plants.spread(),
        plants.random_values(1),
        plants.random_values(2),
        plants.generated(1),
        plants.side_constraints(2),
    ],
    ids=lambda corpus: corpus.name,
)
async def test_ten_compactions(corpus: Corpus, summariser: str, tmp_path: Path) -> None:
    outcome = await play.play(corpus, summariser, tmp_path, 7)
    assert_survives(outcome)
    assert outcome.compactions >= 10
    assert outcome.share <= MAX_SHARE
    if corpus.name == "random":
        assert outcome.unmarked == ()
