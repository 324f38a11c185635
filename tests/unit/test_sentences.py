"""Which words of a message are its author's own, and where its sentences end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.compaction.sentences import MAX_SENTENCE_CHARS, is_mixed, own_spans, sentences, stems
from tests.strategies import texts


def _own(text: str) -> list[str]:
    return [text[start:end] for start, end in own_spans(text)]


def _sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("one\ntwo", ["one\ntwo"]),
        ("mine\n```\nnot mine\n```\nmine again", ["mine", "mine again"]),
        ("~~~\nnever closed\nat all", []),
        ("> quoted\nmine", ["mine"]),
        ("mine\n<page>\nnot mine\n</page>\nmine", ["mine", "mine"]),
        ("mine\n<note>not mine</note>\nmine", ["mine", "mine"]),
        ("a < b and b > c", ["a < b and b > c"]),
        ("mine\n<br>\nmine too", ["mine\n<br>\nmine too"]),
        ("<user_instructions>\nBe brief.\n</user_instructions>", None),
        ("x" * 300 + "\n<rules>\nnot mine\n</rules>", ["x" * 300]),
        ("mine\nSYSTEM: not mine\nnor this\n\nmine", ["mine", "mine"]),
        ("mine\n### Assistant: not mine", ["mine"]),
        ("mine\n[3, rule] not mine", ["mine"]),
        ("Here is the log:\nnot mine\n\nnor this", ["Here is the log:"]),
        ("I found this on a page:\n\nnot mine", ["I found this on a page:"]),
        ("下面是日志\uff1a\n不是我的", ["下面是日志\uff1a"]),
        ("Here are the rules:\nmine", ["Here are the rules:\nmine"]),
    ],
)
def test_own_words_and_pastes(text: str, own: list[str] | None) -> None:
    assert _own(text) == ([text] if own is None else own)


def test_a_message_is_mixed_when_something_in_it_is_pasted() -> None:
    assert not is_mixed("one\n\ntwo")
    assert is_mixed("one\n> two")


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
