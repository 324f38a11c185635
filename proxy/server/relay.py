"""Passing a reply on: chunk by chunk, byte for byte.

A reply that breaks off upstream must not look complete to the client, since SDKs take a clean
end of a stream for the end of the answer: its connection is broken off too.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import aiohttp
from aiohttp import web

from proxy import codec
from proxy.codec import JsonObject
from proxy.server.error_responses import envelope
from proxy.server.taps import UNREADABLE, Tap, decoded, decoder
from proxy.upstream.headers import reply_headers

WHOLE_REPLY_BYTES = 1024 * 1024
"""A reply of known length up to this is read and written in one piece."""

MAX_ERROR_BYTES = 64 * 1024
"""How much of an error is read to see what it is about."""

GRACE_SECONDS = 0.5
"""Work that begins when the silence is long enough already has so long to end without a comment."""

_ADDED_BY_AIOHTTP = ("Server", "Content-Type")
_T = TypeVar("_T")


class Relayed:
    """A relayed response: `added` lists headers that aiohttp adds and the upstream did not send."""

    added: Sequence[str] = ()


class _Whole(Relayed, web.Response):
    pass


class _Streamed(Relayed, web.StreamResponse):
    pass


async def relay(
    request: web.Request,
    reply: aiohttp.ClientResponse,
    extra: Mapping[str, str],
    tap: Tap | None = None,
    already: bytes = b"",
) -> web.StreamResponse:
    """Send an upstream's reply to the client; `tap` sees its bytes once they are sent.

    `already` is what was read of the body before.
    """
    headers = reply_headers(reply.headers)
    headers.update(extra)
    added = [name for name in _ADDED_BY_AIOHTTP if name not in headers]
    length = reply.headers.get("Content-Length", "")
    if length.isdecimal() and int(length) <= WHOLE_REPLY_BYTES and request.method != "HEAD":
        try:
            body = await reply.read()
        except (aiohttp.ClientError, TimeoutError):
            return broken_off(request)
        body = already + body
        if tap is not None:
            # The response is written before the loop gets to this.
            asyncio.get_running_loop().call_soon(_tap_whole, tap, body)
        whole = _Whole(status=reply.status, reason=reply.reason, headers=headers, body=body or None)
        whole.added = added
        return whole
    response = _Streamed(status=reply.status, reason=reply.reason, headers=headers)
    response.added = added
    await response.prepare(request)
    return await copy_body(request, reply, response, tap, already)


def _tap_whole(tap: Tap, body: bytes) -> None:
    tap.take(body)
    tap.end()


async def copy_body(
    request: web.Request,
    reply: aiohttp.ClientResponse,
    response: web.StreamResponse,
    tap: Tap | None = None,
    already: bytes = b"",
    decode: Callable[[bytes], bytes] = bytes,
) -> web.StreamResponse:
    """Copy a reply into a response that was begun; `already` is what was read of it before.

    `decode` undoes the reply's content encoding, where the response was begun without one.
    """
    try:
        if already:
            await response.write(decode(already))
            if tap is not None:
                tap.take(already)
        async for chunk in reply.content.iter_any():
            await response.write(decode(chunk))
            if tap is not None:
                tap.take(chunk)
    except (aiohttp.ClientError, TimeoutError, *UNREADABLE):
        break_off(request)
        return response
    await end(response)
    if tap is not None:
        tap.end()
    return response


async def end(response: web.StreamResponse) -> None:
    """End a streamed response; a client that has all it wanted may be gone already."""
    with suppress(ConnectionError):
        await response.write_eof()


def break_off(request: web.Request) -> None:
    """Cut the client's connection without ending the reply properly."""
    if request.transport is not None:
        request.transport.abort()


def broken_off(request: web.Request) -> web.Response:
    """Cut the connection; the response returned goes nowhere."""
    break_off(request)
    return web.Response(status=502)


class EarlyStream:
    """Keeps a streaming client company while a compaction runs.

    Nothing is sent for the first `seconds` of a request, so that errors still get a real status.
    Then the stream begins with comments, which every SDK passes over. What is done for the
    request besides counts, too: the client hears nothing meanwhile.
    """

    def __init__(
        self, request: web.Request, seconds: float, failure: Callable[[JsonObject, str], bytes]
    ) -> None:
        """Prepare for one request.

        Args:
            request: the request.
            seconds: the silence that its client is left in.
            failure: makes an error object and the model's name into the events that end a stream
                of its API.
        """
        self._request = request
        self._seconds = seconds
        self._failure = failure
        self._heard = asyncio.get_running_loop().time()
        self.response: web.StreamResponse | None = None
        self.model = ""

    async def __call__(self, work: Coroutine[None, None, _T], /) -> _T:
        """Await `work`, sending a comment each time the silence gets too long."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        pause = max(self._heard + self._seconds - loop.time(), min(GRACE_SECONDS, self._seconds))
        try:
            while True:
                done, _ = await asyncio.wait({task}, timeout=pause)
                if done:
                    return task.result()
                await self._comment()
                self._heard, pause = loop.time(), self._seconds
        finally:
            task.cancel()

    async def _comment(self) -> None:
        # A client that has gone is noticed by the server, which cancels the handler.
        try:
            if self.response is None:
                response = web.StreamResponse(
                    headers={
                        "Content-Type": "text/event-stream",
                        "Cache-Control": "no-cache",
                        "x-foldgate-compaction": "running",
                    }
                )
                await response.prepare(self._request)
                self.response = response
            await self.response.write(b": compacting\n\n")
        except ConnectionError:
            return

    async def finish(
        self, reply: aiohttp.ClientResponse, tap: Tap | None = None, already: bytes = b""
    ) -> web.StreamResponse:
        """Continue the stream with the upstream's reply, whatever that turned out to be.

        `already` is what was read of the body before.
        """
        response = self._begun()
        coding = reply.headers.get("Content-Encoding", "")
        if reply.status == 200 and reply.content_type == "text/event-stream":
            # Some encode whatever they were asked for.
            decode = decoder(coding)
            if decode is None:
                message = "The upstream's stream has a content encoding that it was not asked for."
                return await self.fail(envelope(message, "upstream_error", "no_stream"))
            return await copy_body(self._request, reply, response, tap, already, decode)
        try:
            body = already + await reply.content.read(MAX_ERROR_BYTES)
        except (aiohttp.ClientError, TimeoutError):
            body = b""
        plain = decoded(body, coding)
        return await self.fail(_error_of(reply.status, plain or b""))

    async def fail(self, error: JsonObject) -> web.StreamResponse:
        """End the stream with an error event."""
        response = self._begun()
        with suppress(ConnectionError):
            await response.write(self._failure(error, self.model))
        await end(response)
        return response

    def _begun(self) -> web.StreamResponse:
        if self.response is None:
            raise RuntimeError("the stream was not begun")
        return self.response


def _error_of(status: int, body: bytes) -> JsonObject:
    try:
        document = codec.loads(body)
    except codec.MalformedJson:
        document = None
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, str) and error:
        # SDKs look for a message inside it.
        return envelope(error, "upstream_error", None)
    if error:
        return {"error": error}
    if status == 200:
        message = "The upstream answered a streaming request without a stream."
        return envelope(message, "upstream_error", "no_stream")
    return envelope(f"The upstream answered with HTTP {status}.", "upstream_error", None)
