"""Pixels from image headers, and data URLs."""

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.dialects import images
from tests import builders


def _gif(width: int, height: int, version: bytes = b"89a") -> bytes:
    return b"GIF" + version + struct.pack("<HH", width, height) + b"\xf7\x00\x00"


def _segment(marker: int, data: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def _frame(width: int, height: int, marker: int = 0xC0) -> bytes:
    return _segment(marker, struct.pack(">BHHB", 8, height, width, 3) + b"\x01\x22\x00" * 3)


def _jpeg(*segments: bytes) -> bytes:
    return b"\xff\xd8" + b"".join(segments) + b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"


def _webp(form: bytes, data: bytes) -> bytes:
    return (
        b"RIFF"
        + struct.pack("<I", len(data) + 12)
        + b"WEBP"
        + form
        + struct.pack("<I", len(data))
        + data
    )


def _vp8(width: int, height: int, scale: int = 0) -> bytes:
    sides = struct.pack("<HH", width | scale << 14, height | scale << 14)
    return _webp(b"VP8 ", b"\x30\x01\x00\x9d\x01\x2a" + sides)


def _vp8l(width: int, height: int) -> bytes:
    return _webp(b"VP8L", b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14 | 1 << 28))


def _vp8x(width: int, height: int) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return _webp(b"VP8X", b"\x10\x00\x00\x00" + sides)


# An APP1 segment with a thumbnail that has a frame of its own, as cameras write it.
_EXIF = _segment(0xE1, b"Exif\x00\x00" + _jpeg(_frame(160, 120)))
_TABLES = _segment(0xC4, bytes(20)) + _segment(0xDB, bytes(65))

HEADERS = {
    "png": (builders.png(640, 480), (640, 480)),
    "png, large": (builders.png(70_000, 3), (70_000, 3)),
    "gif89a": (_gif(320, 200), (320, 200)),
    "gif87a": (_gif(1, 65_535, b"87a"), (1, 65_535)),
    "jpeg": (_jpeg(_frame(800, 600)), (800, 600)),
    "jpeg, thumbnail first": (_jpeg(_EXIF, _frame(4032, 3024)), (4032, 3024)),
    "jpeg, progressive, tables first": (_jpeg(_TABLES, _frame(33, 44, 0xC2)), (33, 44)),
    "jpeg, fill bytes": (_jpeg(b"\xff\xff", _frame(12, 34)), (12, 34)),
    "jpeg, restart marker": (_jpeg(b"\xff\xd0", _frame(12, 34)), (12, 34)),
    "webp lossy": (_vp8(550, 368), (550, 368)),
    "webp lossy, scaled": (_vp8(550, 368, scale=2), (550, 368)),
    "webp lossless": (_vp8l(400, 16_384), (400, 16_384)),
    "webp extended": (_vp8x(70_000, 300), (70_000, 300)),
}
_ENDS = {  # first length at which the sides are known
    "png": 24,
    "gif89a": 10,
    "webp lossy": 30,
    "webp lossless": 25,
    "webp extended": 30,
}


@pytest.mark.parametrize("name", HEADERS)
def test_pixels_are_read_from_the_header(name: str) -> None:
    data, sides = HEADERS[name]
    assert images.dimensions(data) == sides


@pytest.mark.parametrize("name", HEADERS)
def test_a_cut_header_gives_all_or_nothing(name: str) -> None:
    data, sides = HEADERS[name]
    found = [images.dimensions(data[:length]) for length in range(len(data) + 1)]
    assert set(found) <= {(0, 0), sides}
    assert found[:10] == [(0, 0)] * 10
    if name in _ENDS:
        assert found.index(sides) == _ENDS[name]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"BM" + bytes(60),
        b"\x89PNG\r\n\x1a\n" + b"garbage" * 9,
        b"RIFF\x10\x00\x00\x00WAVEfmt " + bytes(60),
        _webp(b"ICCP", bytes(60)),
        b"\xff\xd8" + bytes(60),
        b"\xff\xd8" + b"\xff" * 60,
        b"\xff\xd8" + _segment(0xE0, bytes(30)),
        b"\xff\xd8" + b"\xff\xe0\x00\x00" * 20 + b"\x00" * 9,
        _jpeg(_segment(0xC4, bytes(16)), _segment(0xC8, bytes(16)), _segment(0xCC, bytes(16))),
        b"<svg xmlns='http://www.w3.org/2000/svg' width='10' height='10'/>",
    ],
)
def test_what_is_no_known_header_has_no_pixels(data: bytes) -> None:
    assert images.dimensions(data) == (0, 0)


_STARTS = [b"", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8", b"\xff\xd8\xff\xe1"]
_STARTS += [b"RIFF\x10\x00\x00\x00WEBP" + form for form in (b"VP8 ", b"VP8L", b"VP8X", b"ALPH")]


@given(st.sampled_from(_STARTS), st.binary(max_size=80))
def test_no_bytes_raise(start: bytes, rest: bytes) -> None:
    width, height = images.dimensions(start + rest)
    assert width >= 0
    assert height >= 0


@given(st.sampled_from(sorted(HEADERS)), st.integers(0, 10_000), st.integers(0, 255))
def test_no_damaged_header_raises(name: str, at: int, value: int) -> None:
    data = bytearray(HEADERS[name][0])
    data[at % len(data)] = value
    assert min(images.dimensions(bytes(data))) >= 0


@pytest.mark.parametrize(
    ("url", "split"),
    [
        ("data:image/png;base64,AAAA", ("image/png", "AAAA")),
        ("DATA:Image/PNG;BASE64,AAAA", ("image/png", "AAAA")),
        ("data:image/svg+xml;charset=utf-8;base64,QQ==", ("image/svg+xml", "QQ==")),
        ("data:;base64,AAAA", ("", "AAAA")),
        ("data:,a,b", ("", "a,b")),
        ("https://example.org/data:image/png;base64,AAAA", None),
        ("data:image/png;base64", None),
        ("data:" + "x" * 400 + ",AAAA", None),
        ("", None),
    ],
)
def test_a_data_url_is_split(url: str, split: tuple[str, str] | None) -> None:
    assert images.split_data_url(url) == split


@given(st.binary(max_size=200))
def test_base64_is_decoded_with_or_without_padding_and_line_breaks(data: bytes) -> None:
    text = base64.b64encode(data).decode()
    assert images.decode_base64(text) == data
    assert images.decode_base64(text.rstrip("=")) == data
    assert images.decode_base64("\r\n".join(text[i : i + 20] for i in range(0, 300, 20))) == data


@given(st.binary(min_size=30, max_size=200), st.integers(0, 300))
def test_only_the_head_is_decoded(data: bytes, limit: int) -> None:
    head = images.decode_base64(base64.b64encode(data).decode(), limit)
    assert data.startswith(head)
    assert min(len(data), limit - 2) <= len(head) <= limit + 2


@given(st.text(max_size=60))
def test_no_text_raises(text: str) -> None:
    assert len(images.decode_base64(text)) <= len(text)
    images.split_data_url(text)
    images.split_data_url("data:" + text)
