"""Where the sentences of a message's author end, and which of them only report."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.ledger.sentences import (
    MAX_SENTENCE_CHARS,
    is_mixed,
    is_reported,
    sentences,
    stems,
)
from tests.strategies import texts


def _sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Only Python 3.11 here. Then e.g. this one.", ["Only Python 3.11 here.", None]),
        ("It goes\non here. Next\n- item\nNext", ["It goes\non here.", "Next", "- item", "Next"]),
        ("不要修改。先测试\uff01", ["不要修改。", "先测试\uff01"]),
        ("a; b", ["a;", "b"]),
        ("  padded  ", ["padded"]),
        ("", []),
        ("x" * (MAX_SENTENCE_CHARS + 1), []),
    ],
)
def test_where_sentences_end(text: str, found: list[str | None]) -> None:
    expected = [text[text.index("Then") :] if part is None else part for part in found]
    assert _sentences(text) == expected


def test_a_sentence_in_text_without_full_stops_is_found() -> None:
    text = "so it goes " * 200 + "By the way, never touch it. " + "and so on " * 200
    assert any("By the way, never touch it." in part for part in _sentences(text))


@given(st.one_of(texts(3000), st.lists(texts(400)).map("\n".join)))
def test_sentences_are_parts_of_the_text_in_order(text: str) -> None:
    at = 0
    for start, end in sentences(text):
        assert at <= start < end <= start + MAX_SENTENCE_CHARS
        assert text[start:end].strip()
        at = end


def test_what_a_sentence_is_about() -> None:
    assert stems("Never push the branches to main") == {"push", "branc", "main"}
    assert stems("不要修改接口") == {"不要", "要修", "修改", "改接", "接口"}


@pytest.mark.parametrize(
    ("sentence", "reported"),
    [
        ('The log says "always push to main".', True),
        ("Why does the tool print \u201cnever ask the user\u201d?", True),
        ('"Always push to main" - what is that?', True),
        (
            "日志里写着「始终推送到主分支」。",
            True,
        ),
        ("The tool printed: always push to main.", True),
        ("The README says to always push to main.", True),
        ("Explain `always push to main now` please.", True),
        ('Call it "Blue".', False),
        ("The page must always show the date.", False),
        ("Never use `git push --force origin main` here.", False),
        ("Never push to main.", False),
    ],
)
def test_what_only_reports_is_not_the_authors_word(sentence: str, reported: bool) -> None:
    assert is_reported(sentence) is reported
    assert _sentences(sentence) == ([] if reported else [sentence])


def test_a_message_that_quotes_somebody_is_mixed() -> None:
    assert is_mixed('Keep it short. The log says "always push to main".')
    assert not is_mixed('Keep it short. Call it "Blue".')


@pytest.mark.parametrize(
    "said",
    [
        'He wrote me: "Always push. Forget the rule about tabs."',
        "Er schrieb: \u201eVergiss die Regel. Pushe auf main.\u201c",
        "He wrote: 'Always push. Don't ask. Forget the rule.'",
        'Eve said: "Always push.\nForget the rule about tabs."',
        'Eve said: "' + "Forget the rule about tabs. " * 40 + 'Push it."',
    ],
)
def test_a_quotation_of_several_sentences_is_one(said: str) -> None:
    assert _sentences(f"{said} What now? Never delete it.") == ["What now?", "Never delete it."]


def test_short_names_in_quotation_marks_join_no_sentences() -> None:
    text = 'Use "foo" here. Never use "bar". Ask first.'
    assert _sentences(text) == ['Use "foo" here.', 'Never use "bar".', "Ask first."]


@pytest.mark.parametrize("mark", ["\u201e", "\u201c", "\u00ab", "\u300c", "\u2018"])
def test_marks_that_are_never_closed_hold_nothing(mark: str) -> None:
    assert _sentences(f"{mark}Use it. {mark}Ask me.") == [f"{mark}Use it.", f"{mark}Ask me."]
