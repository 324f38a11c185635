"""The word lists of withdrawals agree with the patterns that they stand in front of."""

import re

import pytest

from proxy.compaction.ledger import lifting_words, liftings

FORMS = (
    liftings.LIFTS,
    liftings.LIFTED,
    liftings.ENDED,
    liftings.DELETES,
    liftings.POINTS,
    liftings.PERMITTED,
    liftings.RELIEVED,
    liftings.NOT_NEEDED,
)


@pytest.mark.parametrize(
    "sentence",
    [
        *("Forget it.", "It no longer applies.", "You may push again.", "Drop my rule."),
        *("Pushing is fine again.", "It's ok to push.", "The ban is over.", "Never mind that."),
        *("You don't have to ask.", "No need to ask anymore.", "I take back the rule."),
        *("You can do it just this once.", "The rule is off.", "It is not needed any more."),
        *("Vergiss die Regel.", "Du darfst wieder.", "Oublie la consigne.", "Ya no aplica."),
        *("Dimentica la regola.", "Esquece a regra.", "Je mag weer pushen.", "Anuluj zakaz."),
    ],
)
def test_every_withdrawal_has_a_trigger_word(sentence: str) -> None:
    """A sentence without one is never looked at."""
    sentence = sentence.lower()
    assert any(form.search(sentence) for form in FORMS)
    assert lifting_words.may_lift(re.findall("[a-z]+", sentence))


@pytest.mark.parametrize(
    "sentence",
    [
        *("Możesz znowu pushować.", "Забудь правило.", "Теперь можно.", "Art\u0131k gerek yok."),
        *("取消这条规则。", "现在可以了。", "してもいいです。", "해도 됩니다.", "이 규칙은 취소."),
    ],
)
def test_other_letters_have_roots(sentence: str) -> None:
    assert lifting_words.ROOTS.search(sentence.lower())


def test_ordinary_words_are_let_go() -> None:
    assert not lifting_words.may_lift(
        ["please", "add", "a", "button", "and", "run", "the", "tests"]
    )


@pytest.mark.parametrize("word", ["server", "maintenance", "requests", "permissions", "constants"])
def test_what_a_rule_is_about_is_no_empty_word(word: str) -> None:
    """Though it begins as one does."""
    assert word not in lifting_words.WORDS
