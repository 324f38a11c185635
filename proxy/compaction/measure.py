"""How many characters and tokens something is worth.

Characters are code points of decoded text, names and arguments; a binary part counts four
times its tokens. Tokens are characters divided by a ratio, except where that is known to be
far off: CJK script, base64 and hex cost about a token per character, other text without white
space (minified, or encoded as JSON) costs by the pieces that tokenizers cut it into, and images
cost by their pixels, never by the length of their base64.
"""

import math
import re

from proxy.transcript import Binary, Content, Size

CHARS_PER_TOKEN = 4.0
"""The ratio until one has been learned."""

MESSAGE_OVERHEAD_TOKENS = 4
"""What a chat template adds around each message (role markers, separators)."""

DENSE_RUN_CHARS = 256
"""An unbroken run of this length is base64, hex, or minified or encoded text."""

_SAMPLES = 8
_SAMPLE_CHARS = 512
"""Of a longer run so many pieces of so many characters are looked at."""

UNKNOWN_IMAGE_TOKENS = 1500
"""Price of an image whose pixels cannot be read, for example one given by URL."""

FILE_TOKENS = 1500
MAX_IMAGE_TOKENS = 4096
MIN_IMAGE_TOKENS = 64
LOW_DETAIL_TOKENS = 256
_PATCH_PIXELS = 28
_MAX_IMAGE_SIDE = 2048
_AUDIO_TOKENS_PER_SECOND = 10
_AUDIO_BYTES_PER_SECOND = {"wav": 32_000}
_COMPRESSED_AUDIO_BYTES_PER_SECOND = 16_000

_BLOCK = DENSE_RUN_CHARS // 2
_DENSE_RUN = re.compile(rf"\S{{{DENSE_RUN_CHARS},}}")
# Base64 in lines of 64 or 76 that were encoded as JSON has no white space either.
_ALPHABET_RUN = re.compile(r"[A-Za-z0-9]{256,}|[A-Za-z0-9+/=_-]{64,}")
# Roughly where tokenizers cut text without white space: within 40 % of cl100k on minified and
# encoded JSON, CSV, code, style sheets, URLs and lists of paths, and never far below it.
_PIECE = re.compile(
    r"[A-Z]?[a-z]{1,6}|[A-Z]{1,2}|[0-9]{1,3}|[^\x00-\x7f]|[^A-Za-z0-9\x80-\U0010ffff]{1,3}"
)
_CJK = re.compile(
    "[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef"
    "\U0001f000-\U0001faff\U00020000-\U0003ffff]+"
)


def text_tokens(text: str, ratio: float = CHARS_PER_TOKEN) -> int:
    """Estimate the tokens of `text`, rounded up; 0 for an empty string.

    >>> text_tokens("word " * 8)
    10
    >>> text_tokens("\u8bed" * 10)
    10
    """
    dense = dense_chars(text)
    return dense + math.ceil((len(text) - dense) / ratio)


def dense_chars(text: str) -> int:
    """Count the characters of `text` that cost about one token each.

    Of text that lies between, as many are counted as come to the same price.
    """
    dense = 0
    if len(text) >= DENSE_RUN_CHARS and _may_have_dense_run(text):
        runs = _DENSE_RUN.findall(text)
        dense = sum(map(_dense_of_run, runs))
        if runs and not text.isascii():
            text = _DENSE_RUN.sub(" ", text)
    if not text.isascii():
        dense += sum(map(len, _CJK.findall(text)))
    return dense


def _dense_of_run(run: str) -> int:
    if run.isalnum():
        return len(run)
    dense = sum(len(part) for part in _ALPHABET_RUN.findall(run) if _is_dense(part))
    rest = _ALPHABET_RUN.sub(_unless_dense, run) if dense else run
    # As many at one token each, and the others at the usual ratio, make the price of the pieces.
    more = (CHARS_PER_TOKEN * _pieces(rest) - len(rest)) / (CHARS_PER_TOKEN - 1)
    return dense + max(0, math.ceil(more))


def _unless_dense(found: "re.Match[str]") -> str:
    return "" if _is_dense(found[0]) else found[0]


def _is_dense(part: str) -> bool:
    # Paths are of the alphabet of base64, too, but made of words.
    return part.isalnum() or _pieces(part) * 2 > len(part)


def _pieces(run: str) -> float:
    """Return about how many pieces a tokenizer makes of text without white space."""
    if len(run) <= _SAMPLES * _SAMPLE_CHARS:
        return len(_PIECE.findall(run))
    step = len(run) // _SAMPLES
    starts = range(0, step * _SAMPLES, step)
    sampled = sum(len(_PIECE.findall(run, start, start + _SAMPLE_CHARS)) for start in starts)
    return sampled * len(run) / (_SAMPLES * _SAMPLE_CHARS)


def _may_have_dense_run(text: str) -> bool:
    # A run of 256 covers at least one whole aligned block of 128, so most blocks are left at
    # their first space: linear, and a fraction of what a regular expression costs here.
    find = text.find
    for start in range(0, len(text) - _BLOCK + 1, _BLOCK):
        if find(" ", start, start + _BLOCK) < 0 and len(text[start : start + _BLOCK].split()) == 1:
            return True
    return False


def image_tokens(width: int, height: int, *, low_detail: bool = False) -> int:
    """Price an image by its pixels, on the safe side of the published formulas.

    One token per 28 x 28 patch after fitting into 2048 x 2048, between 64 and 4096.
    """
    if low_detail:
        return LOW_DETAIL_TOKENS
    if width <= 0 or height <= 0:
        return UNKNOWN_IMAGE_TOKENS
    scale = min(1.0, _MAX_IMAGE_SIDE / max(width, height))
    patches = math.ceil(width * scale / _PATCH_PIXELS) * math.ceil(height * scale / _PATCH_PIXELS)
    return min(MAX_IMAGE_TOKENS, max(MIN_IMAGE_TOKENS, patches))


def binary_tokens(binary: Binary) -> int:
    """Price one binary part."""
    if binary.kind == "image":
        return image_tokens(binary.width, binary.height, low_detail=binary.low_detail)
    if binary.kind == "audio" and binary.size_bytes:
        rate = _AUDIO_BYTES_PER_SECOND.get(binary.media_type, _COMPRESSED_AUDIO_BYTES_PER_SECOND)
        return max(1, math.ceil(binary.size_bytes / rate * _AUDIO_TOKENS_PER_SECOND))
    if binary.kind == "sealed":
        # Encrypted text: about as many tokens as the text has, which is a little shorter.
        return max(1, math.ceil(binary.size_bytes / CHARS_PER_TOKEN))
    return FILE_TOKENS


def size_of(content: Content) -> Size:
    """Measure one item."""
    chars, tokens = 0, MESSAGE_OVERHEAD_TOKENS
    for text in content.texts:
        chars += len(text)
        tokens += text_tokens(text)
    for text in (content.reasoning, content.extra, content.notes):
        if text:
            chars += len(text)
            tokens += text_tokens(text)
    for call in content.calls:
        chars += len(call.name) + len(call.arguments)
        tokens += text_tokens(call.name) + text_tokens(call.arguments)
    for binary in content.binaries:
        price = binary_tokens(binary)
        chars += 4 * price
        tokens += price
    return Size(chars, tokens)


def text_size(text: str) -> Size:
    """Measure plain text, for example a tool catalogue as it is serialised."""
    return Size(len(text), text_tokens(text))
