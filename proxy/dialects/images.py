"""Pixels of an image from its first bytes, and the parts of a data URL.

Headers follow the PNG, GIF, JPEG and WebP container formats; nothing is decoded beyond them.
"""

import binascii
import re
import struct

HEAD_BYTES = 48 * 1024
"""JPEG may put its frame header behind thumbnails; this much is looked at."""

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)?[^,]{0,200}?(;base64)?,", re.I)
_JPEG_FRAMES = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


def split_data_url(url: str) -> tuple[str, str] | None:
    """Return media type and base64 text of a ``data:`` URL, or None for any other URL."""
    match = _DATA_URL.match(url[:256])
    if match is None:
        return None
    return (match[1] or "").lower(), url[match.end() :]


def decode_base64(text: str, limit: int | None = None) -> bytes:
    """Decode leniently; what cannot be decoded gives fewer bytes, never an error.

    Args:
        text: base64, with or without padding or line breaks.
        limit: decode only about this many bytes.
    """
    if limit is not None:
        text = text[: limit * 4 // 3 // 4 * 4]
    try:
        return binascii.a2b_base64(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return b""


def dimensions(head: bytes) -> tuple[int, int]:
    """Return width and height in pixels, or (0, 0) when the header is unknown or cut."""
    try:
        if head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR":
            return _pair(struct.unpack_from(">II", head, 16))
        if head.startswith((b"GIF87a", b"GIF89a")):
            return _pair(struct.unpack_from("<HH", head, 6))
        if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
            return _webp(head)
        if head.startswith(b"\xff\xd8"):
            return _jpeg(head)
    except struct.error:
        pass
    return 0, 0


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    return values[0], values[1]


def _webp(head: bytes) -> tuple[int, int]:
    form = head[12:16]
    if form == b"VP8 ":
        width, height = struct.unpack_from("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    if form == b"VP8L":
        (bits,) = struct.unpack_from("<I", head, 21)
        return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
    if form == b"VP8X" and len(head) >= 30:
        width = int.from_bytes(head[24:27], "little") + 1
        return width, int.from_bytes(head[27:30], "little") + 1
    return 0, 0


def _jpeg(head: bytes) -> tuple[int, int]:
    at = 2
    while at + 9 <= len(head):
        if head[at] != 0xFF:
            return 0, 0
        marker = head[at + 1]
        if marker in _JPEG_FRAMES:
            height, width = struct.unpack_from(">HH", head, at + 5)
            return width, height
        if marker == 0xFF or 0xD0 <= marker <= 0xD9:
            at += 1 if marker == 0xFF else 2
            continue
        (length,) = struct.unpack_from(">H", head, at + 2)
        at += 2 + length
    return 0, 0
