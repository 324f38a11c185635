"""Whatever an upstream sends: the classifier never raises, and its work is bounded."""

from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as sre  # type: ignore[attr-defined]

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.upstream import overflow, overflow_words
from proxy.upstream.overflow import Overflow, classify, classify_event
from proxy.upstream.overflow_table import ECHO, ROWS, VETO, VETOED_STATUSES
from tests.unit.test_overflow import RULE, error, found, into, text_of

WORDS = st.sampled_from(
    [
        "error", "message", "code", "type", "detail", "metadata", "raw", "n_ctx", "input",
        "prompt is too long", "context_length_exceeded", '{"error":', "}", "[", "\ud800", "429",
        "maximum context length is 8,192 tokens. However, you requested 9 tokens (", "'input':",
    ]
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | WORDS
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)
STATUSES = st.sampled_from([200, 400, 404, 413, 422, 429, 500, 502, 503]) | st.integers(100, 600)


@given(STATUSES, st.binary(max_size=200) | WORDS.map(lambda word: word.encode("utf-8", "replace")))
def test_any_bytes(status: int, body: bytes) -> None:
    check(status, classify(status, body, [RULE]))
    check(None, classify_event(b'"error"' + body))
    check(None, classify_event(b'{"error":' + body + b"}", [RULE]))


@given(STATUSES, JSON)
def test_any_json(status: int, body: Json) -> None:
    raw = codec.dumps(body)
    check(status, classify(status, raw, [RULE]))
    check(None, classify_event(b'{"type":"error","error":' + raw + b"}"))
    check(None, classify_event(b'{"type":"response.failed","response":' + raw + b',"n":"error"}'))


def check(status: int | None, overflow: Overflow | None) -> None:
    assert overflow is None or status is None or status >= 400
    assert overflow is None or status not in VETOED_STATUSES
    if overflow is not None:
        assert all(n is None or n > 0 for n in (overflow.prompt, overflow.limit, overflow.excess))
        if overflow.kind == "total" and overflow.prompt and overflow.limit:
            assert overflow.prompt < overflow.limit


@given(JSON)
def test_echoes_of_any_shape_are_not_read(echo: Json) -> None:
    """What stands under a key where no server writes its own words cannot matter."""
    body: Json = {"detail": [{"msg": "Field required", "loc": ["body"], "input": echo}]}
    assert found(422, body) is None
    assert found(400, error("bad request", param=echo, body=echo, choices=echo)) is None


def test_numbers_without_end() -> None:
    for number in (b"9" * 20, b"9" * 9000, b"1e999", b"-" + b"9" * 9000):
        body = b'{"message":"prompt is too long","n_ctx":' + number + b',"code":' + number + b"}"
        assert classify(400, body) in {into(), None}


def test_nesting_without_end() -> None:
    for body in (b"[" * 30_000, b'{"error":' * 6000, b"[" * 30_000 + b"]" * 30_000):
        assert classify(400, body) is None
        assert classify_event(b'{"error":' + body + b"}") is None


def test_members_without_end() -> None:
    """Outer words are read first, so what is cut off is what stands deepest."""
    body: Json = [[[{"message": "x"}] * 20] * 20] * 3
    assert found(400, body) is None
    assert found(400, {"error": body, "message": "prompt is too long"}) == into()


@pytest.mark.parametrize("text", [b"prompt is too long. ", b"\xff", b'"'])
def test_only_the_begin_of_a_text_is_looked_at(text: bytes) -> None:
    padding = text * (overflow.MAX_BYTES // len(text) + 1)
    assert classify(400, padding + b"429") == classify(400, padding)
    assert classify(400, padding + b"prompt is too long") == classify(400, padding)


@pytest.mark.parametrize("size", [1, 1000, 100_000])
@pytest.mark.parametrize(
    "shape", ["texts", "one text", "text", "lists", "nested strings", "members", "spaces"]
)
def test_what_patterns_see_does_not_grow_with_the_body(size: int, shape: str) -> None:
    word = "maximum context length is 1 tokens. However, you requested 9 tokens ("
    shapes: JsonObject = {
        "texts": [{"message": word}] * size,
        "one text": error(word * size),
        "text": word * size,
        "lists": [[word] * size] * 32,
        "nested strings": error(text_of(error(text_of(error(word * size))))),
        "members": {**{str(n): word for n in range(size)}, "message": word},
        "spaces": error(" " * size + word),
    }
    # Not through `classify`, which passes over what is larger than 64 KB.
    said = overflow._read({"error": shapes[shape]})
    assert sum(map(len, said.texts)) <= overflow.MAX_CHARS
    assert len(said.texts) + len(said.codes) <= 256 * 6
    assert all(len(code) <= 100 for code in said.codes)


def paths(pattern: sre.SubPattern) -> tuple[int, int]:
    """Return the most ways to match from one place, and the longest repetition.

    The ways bound the steps that a search takes at one place of the text: they must not depend on
    the text, which a repetition without an end, or one within another, would make them do.
    """
    ways, longest = 1, 0
    for code, argument in pattern:
        if code in {op.MAX_REPEAT, op.MIN_REPEAT}:
            least, most, inner = argument
            inner_ways, inner_longest = paths(inner)
            ways *= max(1, int(most) - int(least)) * inner_ways ** min(int(most), 9)
            longest = max(longest, int(most), inner_longest)
        elif code is op.BRANCH:
            found = [paths(branch) for branch in argument[1]]
            ways *= sum(each for each, _ in found)
            longest = max(longest, *(length for _, length in found))
        elif code is op.SUBPATTERN:
            inner_ways, inner_longest = paths(argument[-1])
            ways, longest = ways * inner_ways, max(longest, inner_longest)
        elif code is op.POSSESSIVE_REPEAT:
            longest = max(longest, int(argument[1]))
    return ways, longest


@pytest.mark.parametrize("pattern", [row.pattern for row in ROWS], ids=str)
def test_no_row_backtracks_without_bound(pattern: "sre.Pattern") -> None:
    ways, longest = paths(sre.parse(pattern.pattern))
    assert longest <= 120
    assert ways <= 2 * 120**2


def test_vetoes_and_echoes_do_not_backtrack_without_bound() -> None:
    for pattern in (VETO, ECHO):
        ways, longest = paths(sre.parse(pattern.pattern))
        assert longest <= 120
        assert ways <= 2 * 120**2


def test_words_do_not_backtrack_without_bound() -> None:
    for pattern in (overflow_words._WHAT, overflow_words._TOO_MUCH, overflow_words._OTHER):
        ways, longest = paths(sre.parse(pattern.pattern))
        assert longest <= 120
        assert ways <= 2 * 120**2
