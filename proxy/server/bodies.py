"""Reading request bodies: whole where we look inside, streamed where we do not."""

import gzip
import zlib
from collections.abc import AsyncIterator

import zstandard
from aiohttp import web

from proxy.transcript import Record

IDENTITY = ("", "identity")


class Body(Record, frozen=True):
    """A request body as it was sent, and decoded when that could be done."""

    raw: bytes
    decoded: bytes | None
    """None when the encoding is unknown, broken or would exceed the limit."""


async def read_body(request: web.Request, limit: int) -> Body | AsyncIterator[bytes]:
    """Read a body of at most `limit` bytes; a larger one comes as a stream of all of it."""
    length = request.content_length
    if length is not None and length > limit:
        return stream_body(request)
    if length is not None:
        raw = await request.read()
    else:
        parts = []
        size = 0
        async for chunk in request.content.iter_any():
            parts.append(chunk)
            size += len(chunk)
            if size > limit:
                return stream_body(request, parts)
        raw = b"".join(parts)
    return Body(raw, _decode(raw, request.headers.get("Content-Encoding", "").lower(), limit))


async def stream_body(
    request: web.Request, already: list[bytes] | None = None
) -> AsyncIterator[bytes]:
    """Yield a body chunk by chunk as it arrives, after what was read before."""
    for chunk in already or ():
        yield chunk
    async for chunk in request.content.iter_any():
        yield chunk


def _decode(raw: bytes, encoding: str, limit: int) -> bytes | None:
    if encoding in IDENTITY:
        return raw
    try:
        if encoding in {"gzip", "x-gzip", "deflate"}:
            return _inflate(raw, encoding, limit)
        if encoding == "zstd":
            with zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as reader:
                decoded: bytes = reader.read(limit + 1)
            return decoded if len(decoded) <= limit else None
    except (OSError, EOFError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile):
        return None
    return None


def _inflate(raw: bytes, encoding: str, limit: int) -> bytes | None:
    # 32 + MAX_WBITS recognises gzip and zlib headers by themselves.
    bits = -zlib.MAX_WBITS if encoding == "deflate" and raw[:1] != b"\x78" else 32 + zlib.MAX_WBITS
    inflater = zlib.decompressobj(bits)
    decoded = inflater.decompress(raw, limit + 1)
    complete = inflater.eof and not inflater.unused_data
    return decoded if complete and len(decoded) <= limit else None
