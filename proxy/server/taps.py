"""Looking at a reply while it is relayed: after each chunk was sent, never before."""

import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

import zstandard

from proxy.codec import MalformedJson
from proxy.dialects.answers import Answer, AnswerReader, answer_of
from proxy.upstream.reports import reported_tokens

TAIL_BYTES = 4096
"""How much of a reply's end is looked at for its usage report."""

TAIL_CHUNKS = 8
"""Of so many chunks at most: small ones may follow the report."""

UNREADABLE = (zlib.error, zstandard.ZstdError)
"""What comes up when data is not in the encoding that it is said to be in."""

Report = Callable[[int | None], None]
"""Takes the prompt tokens that a reply reports, or None."""


class Tap(Protocol):
    """Sees the bytes of a reply."""

    def take(self, chunk: bytes) -> None:
        """See a chunk that was just sent."""
        ...

    def end(self) -> None:
        """Learn that the reply is complete."""
        ...


class TailTap:
    """Reads the usage report at the end of a reply, and nothing else of it."""

    __slots__ = ("_decode", "_report", "_tail")

    def __init__(self, encoding: str, report: Report) -> None:
        """Take the reply's content encoding, and who wants the report."""
        self._decode = decoder(encoding)
        self._report = report
        self._tail: deque[bytes] = deque(maxlen=TAIL_CHUNKS)

    def take(self, chunk: bytes) -> None:
        """See a chunk."""
        if self._decode is None:
            return
        try:
            self._tail.append(self._decode(chunk)[-TAIL_BYTES:])
        except UNREADABLE:
            self._decode = None
            self._tail.clear()

    def end(self) -> None:
        """Read the report."""
        self._report(_reported(self._tail))


class AnswerTap:
    """Reads a response of the Responses API as it passes, to record it."""

    def __init__(
        self,
        encoding: str,
        *,
        streamed: bool,
        limit: int,
        record: Callable[[Answer], None],
        report: Callable[[int | None, Answer | None], None],
    ) -> None:
        """Begin with a reply.

        Args:
            encoding: its content encoding; one we cannot undo leaves it unread.
            streamed: whether it is a stream of events.
            limit: bytes of the largest response that is read.
            record: takes the answer as soon as it is complete.
            report: takes the prompt tokens that the reply reports, and the answer.
        """
        self._decode = decoder(encoding)
        self._reader = AnswerReader(limit) if streamed else None
        self._limit = limit
        self._record = record
        self._report = report
        self._parts: list[bytes] = []
        self._held = 0
        self._tail: deque[bytes] = deque(maxlen=TAIL_CHUNKS)
        self._answer: Answer | None = None

    def take(self, chunk: bytes) -> None:
        """See a chunk."""
        if self._decode is None:
            return
        try:
            plain = self._decode(chunk)
        except UNREADABLE:
            self._decode = None
            self._parts.clear()
            return
        self._tail.append(plain[-TAIL_BYTES:])
        if self._reader is not None:
            answer = self._reader.feed(plain)
            if answer is not None:
                self._take_answer(answer)
        elif self._held <= self._limit:
            self._held += len(plain)
            self._parts.append(plain)

    def end(self) -> None:
        """Read what could not be read before."""
        if self._reader is not None and self._answer is None:
            answer = self._reader.end()
            if answer is not None:
                self._take_answer(answer)
        if self._reader is None and self._decode is not None and self._held <= self._limit:
            try:
                answer = answer_of(b"".join(self._parts))
            except MalformedJson:
                answer = None
            if answer is not None:
                self._take_answer(answer)
        self._report(_reported(self._tail), self._answer)

    def _take_answer(self, answer: Answer) -> None:
        self._answer = answer
        self._record(answer)


def _reported(tail: Iterable[bytes]) -> int | None:
    return reported_tokens(b"".join(tail)[-TAIL_BYTES:])


def decoded(body: bytes, encoding: str) -> bytes | None:
    """Return a body, or its beginning, without its content encoding; None when unreadable."""
    decode = decoder(encoding)
    try:
        return decode(body) if decode is not None else None
    except UNREADABLE:
        return None


def decoder(encoding: str) -> Callable[[bytes], bytes] | None:
    """Return what undoes a content encoding, chunk by chunk; None for one that we cannot undo.

    What it returns may raise one of `UNREADABLE`.
    """
    encoding = encoding.lower()
    if encoding in {"", "identity"}:
        return bytes
    if encoding in {"gzip", "x-gzip", "deflate"}:
        return _Inflater()
    if encoding == "zstd":
        return zstandard.ZstdDecompressor().decompressobj(read_across_frames=True).decompress
    return None


class _Inflater:
    """Undoes gzip and deflate; a stream may be several one after the other."""

    def __init__(self) -> None:
        self._inflate = self._begin()

    def __call__(self, data: bytes) -> bytes:
        plain = self._inflate.decompress(data)
        while self._inflate.eof and (rest := self._inflate.unused_data):
            self._inflate = self._begin()
            plain += self._inflate.decompress(rest)
        return plain

    @staticmethod
    def _begin() -> "zlib._Decompress":
        # 32 + MAX_WBITS recognises gzip and zlib headers by themselves.
        return zlib.decompressobj(32 + zlib.MAX_WBITS)
