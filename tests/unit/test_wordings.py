"""The word lists agree with the patterns that they stand in front of."""

import re

import pytest

from proxy.compaction import wordings


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


@pytest.mark.parametrize(
    "sentence",
    ["Forget it.", "It no longer applies.", "You may push again.", "Vergiss das.", "Ya no aplica."],
)
def test_every_withdrawal_has_a_trigger_word(sentence: str) -> None:
    sentence = sentence.lower()
    forms = (wordings.LIFTED, wordings.LIFTS, wordings.PERMITTED)
    assert any(form.search(sentence) for form in forms)
    assert not wordings.LIFTING.isdisjoint(re.findall("[a-z]+", sentence.lower()))
