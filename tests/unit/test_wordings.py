"""The word lists agree with the patterns that they stand in front of."""

import re

import pytest

from proxy.compaction.ledger import liftings, wordings


@pytest.mark.parametrize(
    "sentence",
    [
        *("Always run it.", "Never.", "You must not.", "Only use tabs.", "We prefer tabs."),
        *("Don't do it.", "Avoid it.", "No tabs.", "until I say so", "from now on"),
        *("Immer testen.", "Bitte nicht pushen.", "Toujours tester.", "Siempre prueba."),
        *("Sempre testare.", "Apenas tabs.", "Altijd testen.", "Zawsze testuj."),
    ],
)
def test_every_wording_has_a_trigger_word(sentence: str) -> None:
    """A sentence without one is never looked at."""
    sentence = sentence.lower()
    words = re.findall("[a-z]+", sentence)
    english = (wordings.ENGLISH, wordings.ENGLISH_COMMAND, wordings.MANNER, wordings.HABIT)
    if any(form.search(sentence) for form in english):
        assert not wordings.TRIGGERS.isdisjoint(words)
    else:
        assert wordings.EUROPEAN.search(sentence)
        assert not wordings.FOREIGN_TRIGGERS.isdisjoint(words)


@pytest.mark.parametrize("text", ["it\u2019s \u201cfine\u201d \u2014 \u2713", "plain", ""])
def test_quotes_and_dashes_are_plain(text: str) -> None:
    assert wordings.is_plain(text)


@pytest.mark.parametrize("text", ["für", "не", "不", "لا"])
def test_other_letters_are_not(text: str) -> None:
    assert not wordings.is_plain(text)


PATTERNS = [
    pytest.param(value, id=f"{module.__name__.rpartition('.')[2]}.{name}")
    for module in (wordings, liftings)
    for name, value in vars(module).items()
    if isinstance(value, re.Pattern)
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_for_small_letters(pattern: re.Pattern[str]) -> None:
    """They are matched against sentences in small letters; a capital would never be found."""
    assert not pattern.flags & re.IGNORECASE
    without_escapes = re.sub(r"\\.", "", pattern.pattern)
    assert without_escapes == without_escapes.lower()
