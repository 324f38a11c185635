"""What was found in a text is found again without looking."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from proxy.compaction.ledger.findings import ENTRY_OVERHEAD_BYTES, MIN_CHARS, Findings

LONG = "word " * MIN_CHARS


class _Counting:
    """Finds the words of a text, and counts how often it looked."""

    def __init__(self, limit_bytes: int) -> None:
        self.looked: list[str] = []
        self.findings = Findings(self._find, len, limit_bytes)

    def _find(self, texts: Sequence[str]) -> str:
        (text,) = texts
        self.looked.append(text)
        return text.upper()


def test_a_text_is_looked_at_once() -> None:
    counting = _Counting(100_000)
    assert counting.findings.of(LONG) == counting.findings.of(LONG) == LONG.upper()
    assert counting.looked == [LONG]


def test_texts_that_differ_in_one_character_are_two() -> None:
    counting = _Counting(100_000)
    assert counting.findings.of(LONG) != counting.findings.of(LONG + ".")


def test_a_text_that_no_encoding_holds_is_looked_at_too() -> None:
    assert _Counting(100_000).findings.of(LONG + "\ud800") == LONG.upper() + "\ud800"


@pytest.mark.parametrize(("text", "limit"), [("short", 100_000), (LONG, 8)])
def test_short_texts_and_large_results_are_not_remembered(text: str, limit: int) -> None:
    counting = _Counting(limit)
    counting.findings.of(text)
    counting.findings.of(text)
    assert counting.looked == [text, text]
    assert counting.findings.used_bytes == 0


def test_what_was_used_longest_ago_goes_first_and_the_limit_holds() -> None:
    size = len(LONG) + 1 + ENTRY_OVERHEAD_BYTES
    counting = _Counting(9 * size)
    texts = [f"{LONG}{letter}" for letter in "abcdefghi"]
    for text in texts:
        counting.findings.of(text)
    counting.findings.of(texts[0])
    counting.findings.of(LONG + "j")
    assert counting.findings.used_bytes <= 9 * size
    counting.looked.clear()
    counting.findings.of(texts[0])
    counting.findings.of(texts[1])
    assert counting.looked == [texts[1]]


def test_threads_share_what_is_remembered_within_the_limit() -> None:
    counting = _Counting(20_000)
    texts = [f"{LONG}{number}" for number in range(60)] * 20
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(counting.findings.of, texts)) == [text.upper() for text in texts]
    assert 0 < counting.findings.used_bytes <= 20_000


def test_several_texts_are_told_apart_by_where_each_ends() -> None:
    findings = Findings(tuple, len, 100_000)
    assert findings.of(LONG, "ab", "c") == (LONG, "ab", "c")
    assert findings.of(LONG, "a", "bc") == (LONG, "a", "bc")
