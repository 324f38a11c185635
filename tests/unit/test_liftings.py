"""How people word that a rule no longer holds: each pattern finds what it is for."""

import pytest

from proxy.compaction.ledger import liftings


@pytest.mark.parametrize(
    "sentence",
    [
        *(
            "tests may use the network again",
            "from now on, you can push",
            "it is no longer forbidden",
        ),
        *(
            "las migraciones vuelven a estar permitidas",
            "les migrations sont de nouveau autorisées",
        ),
        *("as migrações estão permitidas novamente", "миграции снова разрешены"),
        *("migrationen sind ab jetzt erlaubt", "le migrazioni sono di nuovo permesse"),
    ],
)
def test_what_allows_a_thing(sentence: str) -> None:
    assert liftings.PERMITTED.search(sentence)
    assert not liftings.OPPOSITE.search(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        *("las migraciones no están permitidas", "migrationen sind nicht erlaubt"),
        *("as migrações não estão permitidas", "nobody may push to main again"),
    ],
)
def test_what_forbids_it_after_all(sentence: str) -> None:
    assert liftings.OPPOSITE.search(sentence)


@pytest.mark.parametrize(
    ("sentence", "rest"),
    [
        ("stop running the linter", "run the linter"),
        ("stop deploying", "deploy"),
        ("forget about not deploying", "forget about deploy"),
    ],
)
def test_what_is_stopped_is_said_as_a_rule_says_it(sentence: str, rest: str) -> None:
    assert liftings.STOPPED.sub(r"\1", sentence) == rest


def test_more_than_one_language_says_more() -> None:
    """In Portuguese it is no ``but``."""
    assert len(liftings.BUT.split("a regra não vale mais")) == 1
    assert len(liftings.BUT.split("oublie la règle mais demande")) == 2
