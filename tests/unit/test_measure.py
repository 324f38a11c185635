"""Sizes: exact prices, and the laws that the estimates keep."""

import base64
import math
import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.codec import dumps
from proxy.compaction import measure
from proxy.transcript import Binary, Call, Content, Kind, Size
from tests import builders, strategies

_RUNS = st.lists(
    st.one_of(
        st.text(st.sampled_from("ab\n \t修🙂"), max_size=30),
        st.integers(1, 700).map(lambda n: "x" * n),
        st.integers(1, 300).map(lambda n: "修" * n),
        st.sampled_from([" ", "\n", "\u00a0"]),
    ),
    max_size=8,
).map("".join)


def _wide(text: str) -> int:
    return sum(char in "修🙂" for char in text)


def _dense_at_most(text: str) -> int:
    runs = [run for run in re.findall(r"\S+", text) if len(run) >= 256]
    others = re.sub(r"\S{256,}", " ", text)
    return sum(map(len, runs)) + _wide(others)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("abcd", 1),
        ("abcde", 2),
        ("word " * 8, 10),
        ("x" * 255, 64),
        ("x" * 256, 256),
        ("x" * 255 + " " + "x" * 255, 128),
        ("修" * 10, 10),
        ("修复 abc", 3),
        ("🙂", 1),
        ("한국어", 3),
        ("カナ", 2),
    ],
)
def test_tokens_of_text(text: str, tokens: int) -> None:
    assert measure.text_tokens(text) == tokens


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        # Between what cl100k makes of it, rounded down, and twice that.
        (dumps([{"id": n, "name": f"user{n}", "active": True} for n in range(99)]).decode(), 1, 2),
        ("\\n".join(f"/srv/app/module{n}/file.py" for n in range(99)), 1, 2),
        ("\\n".join(str(n) for n in range(1000, 1400)), 1, 2),
        ("?" + "&".join(f"field{n}=some%20value" for n in range(99)), 1, 2),
    ],
)
def test_text_without_white_space_is_priced_by_its_pieces(
    text: str, least: float, most: float
) -> None:
    """JSON that a client puts into a tool result as it is, for example."""
    pieces = len(re.findall(r"[A-Za-z]+|[0-9]{1,3}|[^A-Za-z0-9]+", text))
    assert least * pieces <= measure.text_tokens(text) <= most * pieces
    assert measure.text_tokens(text) < 0.8 * len(text)


@pytest.mark.parametrize("encode", [base64.b64encode, base64.encodebytes, bytes.hex])
@pytest.mark.parametrize("size", [300, 100_000])
def test_base64_and_hex_cost_a_token_a_character(
    encode: Callable[[bytes], bytes | str], size: int
) -> None:
    encoded = encode(random.Random(size).randbytes(size))
    text = encoded if isinstance(encoded, str) else encoded.decode()
    # As a tool result that is JSON holds it.
    text = dumps({"data": text}).decode()
    # The last line may be too short to be told from a word.
    assert 0.97 * len(text) - 64 <= measure.text_tokens(text) <= len(text)


def test_a_long_run_is_priced_by_samples() -> None:
    row = '{"id":1234,"name":"somebody","active":true},'
    short, long = measure.text_tokens(row * 90), measure.text_tokens(row * 9000)
    assert long == pytest.approx(100 * short, rel=0.05)


def test_another_ratio_counts_only_for_ordinary_text() -> None:
    assert measure.text_tokens("abcdef" + "修" * 4, 3.0) == 6


@given(_RUNS)
def test_dense_characters_are_of_runs_of_256_or_of_wide_script(text: str) -> None:
    assert _wide(text) - 1 <= measure.dense_chars(text) <= _dense_at_most(text)


@given(_RUNS)
def test_letters_and_digits_without_a_break_are_dense(text: str) -> None:
    if all(run.isalnum() for run in re.findall(r"\S{256,}", text)):
        assert measure.dense_chars(text) == _dense_at_most(text)


@given(_RUNS, _RUNS)
def test_text_is_never_cheaper_for_being_longer(text: str, more: str) -> None:
    assert measure.text_tokens(text + more) >= measure.text_tokens(text)


@given(_RUNS, _RUNS)
def test_lines_cost_what_their_parts_cost(one: str, two: str) -> None:
    parts = measure.text_tokens(one) + measure.text_tokens(two)
    assert parts - 1 <= measure.text_tokens(f"{one}\n{two}") <= parts + 1


@given(_RUNS)
def test_tokens_are_between_a_quarter_and_all_of_the_characters(text: str) -> None:
    assert math.ceil(len(text) / 4) <= measure.text_tokens(text) <= len(text)


@pytest.mark.parametrize(
    ("width", "height", "low", "tokens"),
    [
        (280, 140, False, 64),
        (560, 560, False, 400),
        (561, 560, False, 420),
        (4096, 2048, False, 74 * 37),
        (2048, 2048, False, 4096),
        (0, 0, False, 1500),
        (2048, 2048, True, 256),
        (0, 0, True, 256),
    ],
)
def test_price_of_an_image(width: int, height: int, low: bool, tokens: int) -> None:
    assert measure.image_tokens(width, height, low_detail=low) == tokens


@given(st.integers(1, 20_000), st.integers(1, 20_000))
def test_price_of_an_image_is_bounded_and_symmetric(width: int, height: int) -> None:
    price = measure.image_tokens(width, height)
    assert 64 <= price <= 4096
    assert price == measure.image_tokens(height, width)


@pytest.mark.parametrize(
    ("binary", "tokens"),
    [
        (Binary("image", "image/png", 560, 560), 400),
        (Binary("image"), 1500),
        (Binary("audio", "wav", size_bytes=64_000), 20),
        (Binary("audio", "mp3", size_bytes=64_000), 40),
        (Binary("audio", "wav", size_bytes=1), 1),
        (Binary("audio", "wav"), 1500),
        (Binary("file", "application/pdf", size_bytes=9_000_000), 1500),
    ],
)
def test_price_of_a_binary_part(binary: Binary, tokens: int) -> None:
    assert measure.binary_tokens(binary) == tokens


def test_size_of_an_item_counts_every_decoded_text_and_each_binary_four_times() -> None:
    content = Content(
        "assistant",
        Kind.ASSISTANT,
        texts=("abcd", "ef"),
        reasoning="think",
        extra="name",
        calls=(Call("ignored-id", "tool", '{"a":1}'),),
        binaries=(Binary("image", "image/png", 560, 560),),
    )
    assert measure.size_of(content) == Size(6 + 5 + 4 + 4 + 7 + 4 * 400, 1 + 1 + 2 + 1 + 3 + 404)


def test_base64_of_an_image_costs_its_pixels() -> None:
    small, large = (
        strategies.to_transcript(
            [builders.user([builders.image_part(builders.data_url(builders.png(560, 560, size)))])]
        ).items[0]
        for size in (10, 50_000)
    )
    assert large.tokens == small.tokens == 404


def test_size_of_plain_text() -> None:
    assert measure.text_size("word " * 8) == Size(40, 10)


@pytest.mark.parametrize(("size", "tokens"), [(0, 1), (1, 1), (4, 1), (400, 100), (401, 101)])
def test_what_is_sealed_costs_about_what_the_text_in_it_does(size: int, tokens: int) -> None:
    assert measure.binary_tokens(Binary("sealed", size_bytes=size)) == tokens


def test_notes_are_measured_like_other_text() -> None:
    noted = Content("model", Kind.ASSISTANT, notes="x" * 40)
    assert measure.size_of(noted) == Size(40, 10 + measure.MESSAGE_OVERHEAD_TOKENS)
