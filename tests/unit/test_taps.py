"""What is read of a reply on its way: the report at its end."""

import gzip
import zlib
from collections.abc import Callable, Iterable

import pytest
import zstandard

from proxy.dialects.answers import Answer
from proxy.server.taps import TAIL_BYTES, AnswerTap, TailTap, Tap

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":731,"completion_tokens":2}}\n\n'
DELTA = b'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def _same(data: bytes) -> bytes:
    return data


CODINGS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("", _same),
    ("gzip", gzip.compress),
    ("deflate", zlib.compress),
    ("zstd", zstandard.ZstdCompressor().compress),
]


def _tap(kind: str, encoding: str, reports: list[int | None]) -> Tap:
    if kind == "tail":
        return TailTap(encoding, reports.append)

    def report(tokens: int | None, _answer: Answer | None) -> None:
        reports.append(tokens)

    def record(_answer: Answer) -> None:
        raise AssertionError("there is no answer in it")

    return AnswerTap(encoding, streamed=True, limit=1 << 20, record=record, report=report)


def _read(kind: str, encoding: str, chunks: Iterable[bytes]) -> int | None:
    reports: list[int | None] = []
    tap = _tap(kind, encoding, reports)
    for chunk in chunks:
        tap.take(chunk)
    tap.end()
    (tokens,) = reports
    return tokens


@pytest.mark.parametrize("kind", ["tail", "answer"])
@pytest.mark.parametrize(("encoding", "encode"), CODINGS)
@pytest.mark.parametrize("size", [100, 1000, 1 << 20])
def test_the_report_is_read_whatever_the_reply_is_coded_in(
    kind: str, encoding: str, encode: Callable[[bytes], bytes], size: int
) -> None:
    body = encode(DELTA * 500 + USAGE + DONE)
    chunks = [body[start : start + size] for start in range(0, len(body), size)]
    assert _read(kind, encoding, chunks) == 731


@pytest.mark.parametrize("kind", ["tail", "answer"])
def test_small_chunks_may_follow_the_report(kind: str) -> None:
    chunks = [DELTA, USAGE[:40], USAGE[40:], b": cost\n\n", b'data: {"choices":[]}\n\n', DONE]
    assert _read(kind, "", chunks) == 731


@pytest.mark.parametrize("kind", ["tail", "answer"])
@pytest.mark.parametrize(("encoding", "body"), [("br", USAGE), ("gzip", USAGE), ("", b"")])
def test_what_cannot_be_read_reports_nothing(kind: str, encoding: str, body: bytes) -> None:
    assert _read(kind, encoding, [body, body]) is None


@pytest.mark.parametrize("kind", ["tail", "answer"])
def test_only_the_end_is_looked_at(kind: str) -> None:
    assert _read(kind, "", [USAGE, b" " * TAIL_BYTES]) is None
