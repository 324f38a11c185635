"""How many characters and tokens something is worth.

Characters are code points of decoded text, names and arguments; a binary part counts four
times its tokens. Prose has four characters a token. Other text costs about what it is cut into by
the tokenizers of current models, on the safe side where they differ: digits cost up to a token
each, base64, hex and dumps nearly one a character, other scripts what their code points cost, and
images cost by their pixels, never by the length of their base64. What a model really counts is
learned (`calibration`); this is where learning starts from. Long text is judged by samples.
"""

import math
import re

from proxy.transcript import Binary, Content, Size

CHARS_PER_TOKEN = 4.0
"""Of prose."""

MESSAGE_OVERHEAD_TOKENS = 4
"""What a chat template adds around each message (role markers, separators)."""

SAMPLED_CHARS = 768
"""Longer text is judged by pieces of it that are together at least that long."""

_WINDOW_CHARS = 64
_MIN_WINDOWS, _MAX_WINDOWS = 12, 96
_CHARS_PER_WINDOW = 512
_STRIDE = 61
_ROUNDING = 1e-6

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

# What prose and plain code are made of: no more than so much else, and enough spaces.
_PLAIN = b"abcdefghijklmnopqrstuvwxyz "
_DIGITS = b"0123456789"
_CASES = (b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"abcdefghijklmnopqrstuvwxyz")
_MAX_OTHER, _MAX_DIGITS, _MIN_SPACES = 0.22, 0.06, 0.1

# Roughly where tokenizers cut text. A single space goes with the word that follows it, but not
# with a number.
_PIECE = re.compile(
    r"[A-Z]?[a-z]{1,8}|[A-Z]{1,2}|[0-9]|[-=_*#~]{2,16}|[!-/:-@\[-`{-~]{1,2}|[\r\n]+| {2,}|\t+"
    r"| (?=[0-9])|[\x00-\x08\x0b-\x1f\x7f]"
)
# As many pieces as characters are as many tokens; up to this share of them it is prose.
_PROSE_PIECES = 0.31
_DENSE_TOKENS = (1 - 1 / CHARS_PER_TOKEN) / (1 - _PROSE_PIECES)
_NUMBER = re.compile("[0-9]+")
# Some tokenizers cut numbers in threes, others at each digit.
_DIGIT_PIECES, _NUMBER_PIECES = 0.8, 0.2

# Letters in no order, as of base64, come in smaller pieces than words do.
_RUN = re.compile("[A-Za-z0-9+/_-]{24,}")
_MIXED_SHARE, _MIXED_PIECES = 0.2, 0.22

_WIDE = re.compile("[^\x00-\x7f]+")
_SCRIPTS = tuple(
    (re.compile(f"[{ranges}]+"), tokens)
    for ranges, tokens in (
        ("\u2e80-\u303f\u3100-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef", 1.15),  # Han
        ("\u3040-\u30ff", 0.95),  # Kana
        ("\u1100-\u11ff\uac00-\ud7ff", 1.05),  # Hangul
        ("\u00c0-\u00ff", 0.9),  # Latin with accents
        ("\u0100-\u024f", 1.5),
        ("\u1e00-\u1eff", 0.6),
        ("\u0400-\u052f", 0.43),  # Cyrillic
        ("\u0370-\u03ff", 0.85),  # Greek
        ("\u0590-\u05ff", 0.9),  # Hebrew
        ("\u0600-\u06ff\u0750-\u077f\ufb50-\ufdff", 0.66),  # Arabic
        ("\u0900-\u0dff", 0.9),  # Indic scripts
        ("\u0e00-\u0eff", 0.75),  # Thai, Lao
        ("\u2010-\u2027", 1.0),  # dashes, quotation marks, bullets
        ("\u2500-\u257f", 0.65),  # lines of tables and trees
        ("\u200d\ufe0f", 1.4),  # what joins and varies emoji
        ("\U00010000-\U0001ffff", 2.6),  # emoji, flags
        ("\U00020000-\U0003ffff", 3.0),  # rare Han
    )
)
"""Code points by script, and the tokens that one costs."""

_OTHER_TOKENS = 1.5


def text_tokens(text: str) -> int:
    """Estimate the tokens of `text`, rounded up; 0 for an empty string.

    Never less than a quarter of its characters; of ASCII text never more than its characters.

    >>> text_tokens("word " * 8)
    10
    >>> text_tokens("0000: 48 65 6c 6c 6f 0a")
    22
    """
    sample = _sample(text)
    return math.ceil(_tokens(sample) * len(text) / (len(sample) or 1) - _ROUNDING)


def exact_tokens(text: str) -> int:
    """Estimate the tokens of a text that we write: as `text_tokens` does, but of all of it.

    Samples of so short a text may be a tenth off, which is much of a small budget.

    >>> exact_tokens("word " * 800)
    1000
    """
    return math.ceil(_tokens(text) - _ROUNDING)


def _tokens(sample: str) -> float:
    encoded = sample.encode("ascii", "ignore")
    tokens = len(encoded) / CHARS_PER_TOKEN
    if not _is_plain(encoded):
        dense = _ascii_pieces(sample, encoded) - _PROSE_PIECES * len(encoded)
        tokens += max(0.0, _DENSE_TOKENS * dense)
    if len(encoded) < len(sample):
        tokens += _wide_tokens(sample)
    return tokens


def _sample(text: str) -> str:
    """Return text to judge a longer one by: windows at even distances."""
    if len(text) <= SAMPLED_CHARS:
        return text
    windows = min(_MAX_WINDOWS, max(_MIN_WINDOWS, len(text) // _CHARS_PER_WINDOW))
    step = len(text) // windows
    # Not all at the same place of what repeats itself.
    slack = step - _WINDOW_CHARS + 1
    starts = [n * step + n * _STRIDE % slack for n in range(windows)]
    return "".join([text[start : start + _WINDOW_CHARS] for start in starts])


def _is_plain(encoded: bytes) -> bool:
    size = len(encoded)
    if len(encoded.translate(None, _PLAIN)) > _MAX_OTHER * size:
        return False
    if encoded.count(b" ") < _MIN_SPACES * size:
        return False
    return size - len(encoded.translate(None, _DIGITS)) <= _MAX_DIGITS * size


def _ascii_pieces(text: str, encoded: bytes) -> float:
    """Return how many pieces the ASCII part of a text has; `encoded` is that part alone."""
    size = len(encoded)
    numbers = _NUMBER.findall(text)
    digits = sum(map(len, numbers))
    pieces = float(len(_PIECE.findall(text)) - digits)
    if size - len(encoded.translate(None, _CASES[0])) > size // 16:
        pieces += _MIXED_PIECES * sum(map(len, filter(_is_mixed, _RUN.findall(text))))
    pieces += _DIGIT_PIECES * digits + _NUMBER_PIECES * len(numbers)
    return min(pieces, size)


def _is_mixed(run: str) -> bool:
    least, encoded = _MIXED_SHARE * len(run), run.encode()
    return all(len(run) - len(encoded.translate(None, case)) > least for case in _CASES)


def _wide_tokens(text: str) -> float:
    """Estimate what the other part costs."""
    text = "".join(_WIDE.findall(text))
    left, tokens = len(text), 0.0
    for script, each in _SCRIPTS:
        if not left:
            break
        found = sum(map(len, script.findall(text)))
        tokens += each * found
        left -= found
    return tokens + _OTHER_TOKENS * left


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
