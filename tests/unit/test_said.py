"""What a message states, wherever it stands."""

import pytest

from proxy.compaction.ledger import sentences
from proxy.compaction.ledger.said import MAX_EXACT_CHARS, MAX_STATEMENTS, statements

FILLER = "Plain words that state nothing at all and fill the room.\n" * 3


def test_statements_have_their_place_their_message_and_their_pattern() -> None:
    text = f"{FILLER}The port is 80.\nNever push to main."
    found, is_mixed = statements(text, 7)
    assert [s.text for s in found] == ["The port is 80.", "Never push to main."]
    assert all(text[s.start : s.end] == s.text and s.message == 7 for s in found)
    assert [s.is_rule for s in found] == [False, True]
    assert found[0].pattern
    assert found[0].words
    assert not is_mixed


def test_a_message_with_a_paste_is_mixed() -> None:
    assert statements(f"{FILLER}> Never push to main.", 1) == ([], True)


def test_the_same_text_in_another_message_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{FILLER}Never push to the branch that this test alone speaks of."
    first, _ = statements(text, 1)

    def fail(_: str) -> None:
        raise AssertionError

    monkeypatch.setattr(sentences, "read", fail)
    again, _ = statements(text, 2)
    assert [s.message for s in first + again] == [1, 2]
    assert [(s.text, s.words, s.start) for s in first] == [
        (s.text, s.words, s.start) for s in again
    ]


def test_it_is_alone_when_the_message_says_nothing_else() -> None:
    assert statements("\n Never push to main.\n", 1)[0][0].is_alone
    assert not statements("Hello. Never push to main.", 1)[0][0].is_alone


def test_of_many_statements_the_first_and_the_last_count() -> None:
    rules = [f"Never touch part {number}." for number in range(MAX_STATEMENTS + 10)]
    found = [s.text for s in statements("\n".join(rules), 1)[0]]
    half = MAX_STATEMENTS // 2
    assert found == rules[:half] + rules[-half:]


def test_values_of_a_long_message_are_not_what_it_states() -> None:
    long = FILLER * (MAX_EXACT_CHARS // len(FILLER) + 1)
    assert not statements(f"{long}The port is 80.", 1)[0]
    assert statements(f"{FILLER}The port is 80.", 1)[0]
