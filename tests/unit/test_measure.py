"""Sizes: exact prices, and the laws that the estimates keep."""

import base64
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.codec import Json, dumps
from proxy.compaction import measure
from proxy.transcript import Binary, Call, Content, Kind, Size
from tests import builders, strategies

PROSE = (
    "When the committee met again in the autumn, it was clear that the plan for the new bridge "
    "would have to wait until the river had gone down, and nobody was in a mood to discuss taxes. "
)
_BYTES = random.Random(3).randbytes(1200)
_ROWS: list[Json] = [{"id": n, "name": f"user{n}", "score": n / 8} for n in range(60)]

_SHORT = st.lists(
    st.one_of(
        st.text(st.sampled_from("ab1 \n\t.修🙂é"), max_size=30),
        st.sampled_from([" ", "\n", "\u00a0", "0f 3a ", PROSE[:40]]),
    ),
    max_size=8,
).map("".join)


def _dumped(data: bytes) -> str:
    rows = [data[start : start + 16] for start in range(0, len(data), 16)]
    return "\n".join(f"{16 * n:04x}: {row.hex(' ')}" for n, row in enumerate(rows))


@given(_SHORT)
def test_short_text_is_measured_exactly(text: str) -> None:
    assert measure.exact_tokens(text) == measure.text_tokens(text)


def test_a_text_that_we_write_is_measured_whole() -> None:
    """Where samples happen to lie between what is dense, or on it, does not matter."""
    dense = "7f3a " * 12
    text = (PROSE * 3)[:600] + dense
    sizes = [measure.exact_tokens(text * n) for n in range(1, 8)]
    assert all(abs(size - n * sizes[0]) <= n for n, size in enumerate(sizes, 1))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("a", 1),
        ("abcd", 1),
        ("abcde", 2),
        ("word " * 8, 10),
        ("word " * 800, 1000),
        ("修" * 20, 23),
        ("🙂", 3),
        ("123", 3),
        ("a b c d ", 2),
    ],
)
def test_tokens_of_text(text: str, tokens: int) -> None:
    assert measure.text_tokens(text) == tokens


# What o200k, cl100k and the tokenizer of Qwen 2 make of it.
@pytest.mark.parametrize(
    ("text", "counted"),
    [
        (PROSE * 20, (801, 801, 801)),
        (base64.b64encode(_BYTES).decode(), (1094, 1160, 1189)),
        (base64.encodebytes(_BYTES).decode(), (1119, 1183, 1212)),
        (PROSE + base64.encodebytes(_BYTES).decode() + PROSE, (1201, 1265, 1294)),
        (_BYTES.hex(), (1376, 1372, 2118)),
        (_dumped(_BYTES), (2844, 2844, 3433)),
        (" ".join(f"0x{byte:02x}," for byte in _BYTES), (6119, 6119, 6583)),
        (dumps(_ROWS).decode(), (902, 902, 1077)),
        ("在去年的会议上,委员会决定把新桥的计划推迟到明年春天。" * 20, (401, 680, 340)),
        ("작년 회의에서 위원회는 새 다리 계획을 연기하기로 결정했습니다. " * 20, (421, 601, 421)),
        ("😀🚀🎉🔥" * 100, (600, 1100, 400)),
        ("1.25,-0.5,771.031,12.5\n" * 60, (960, 960, 1320)),
    ],
)
def test_estimates_lie_near_what_tokenizers_count(text: str, counted: tuple[int, ...]) -> None:
    """Never below 0.8 of any of them, and within twice the middle one."""
    tokens = measure.text_tokens(text)
    assert 0.8 * max(counted) <= tokens <= 2 * sorted(counted)[1]


@pytest.mark.parametrize("encode", [base64.b64encode, base64.encodebytes, bytes.hex])
@pytest.mark.parametrize("size", [300, 100_000])
def test_base64_and_hex_cost_nearly_a_token_a_character(
    encode: Callable[[bytes], bytes | str], size: int
) -> None:
    encoded = encode(random.Random(size).randbytes(size))
    text = encoded if isinstance(encoded, str) else encoded.decode()
    # As a tool result that is JSON holds it.
    text = dumps({"data": text}).decode()
    assert 0.65 * len(text) <= measure.text_tokens(text) <= len(text)


@pytest.mark.parametrize(
    "part", ['{"id":1234,"name":"somebody","active":true},', "0f 3a 77 b1 ", "修复 🙂 abc "]
)
def test_long_text_is_priced_by_samples(part: str) -> None:
    short, long = measure.text_tokens(part * 10), measure.text_tokens(part * 9000)
    assert long == pytest.approx(900 * short, rel=0.08)


@given(_SHORT, _SHORT)
def test_more_text_is_hardly_cheaper(text: str, more: str) -> None:
    """What is added may show that the whole is prose."""
    assert measure.text_tokens(text + more) >= 0.25 * measure.text_tokens(text)
    assert measure.text_tokens(text + more) >= math.ceil(len(text + more) / 4)


@given(st.text(st.characters(codec="ascii"), max_size=3000))
def test_ascii_costs_between_a_quarter_and_all_of_its_characters(text: str) -> None:
    assert math.ceil(len(text) / 4) <= measure.text_tokens(text) <= len(text)


@given(st.text(max_size=400))
def test_no_character_costs_more_than_its_bytes(text: str) -> None:
    assert measure.text_tokens(text) <= max(1, len(text.encode("utf-8", "surrogatepass")))


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
    assert measure.size_of(content) == Size(6 + 5 + 4 + 4 + 7 + 4 * 400, 1 + 1 + 2 + 1 + 6 + 404)


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
