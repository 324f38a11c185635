"""The HTTP client side: one connection pool for everything that goes upstream.

Replies are neither decompressed nor decoded. There is no total time-out, since a stream may
run for hours; connecting and silence are bounded. A failed connect is tried once more, because
nothing was sent. So is a request on a kept-alive connection that the server closed without a byte
of a reply: it was closing it before it could see the request, as llama.cpp does after a stream.
That shows at once; a server that closes later has been at work. Nothing else is ever sent twice.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.connector import Connection
from multidict import CIMultiDict
from yarl import URL

from proxy.errors import UpstreamConnectError, UpstreamProtocolError, UpstreamTimeout

if TYPE_CHECKING:
    from aiohttp.tracing import Trace

_KEEPALIVE_SECONDS = 4.0
# Servers close idle connections after 5 s (llama.cpp, uvicorn, Node); staying below that keeps
# a request from being written into a connection that is just being closed.

_READ_BUFFER_BYTES = 256 * 1024
_HEADER_BYTES = 64 * 1024
_MAX_HEADERS = 512
_NO_AUTO_HEADERS = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
_RECONNECT_SECONDS = 0.05
_STALE_SECONDS = 1.0
"""A request that was with the server for longer was seen by it; it may cost twice to repeat it."""

_reused: ContextVar[bool] = ContextVar("reused", default=False)
"""Whether the last connection that this task took had carried a request before."""

_parse_url = lru_cache(maxsize=512)(lambda url: URL(url, encoded=True))


_CLOSED = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError)
"""What comes up when a connection is closed before a reply began."""


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """How connections are made."""

    connect_seconds: float = 10.0
    idle_seconds: float = 600.0
    ca_file: Path | None = None
    http_proxy: str | None = None


class _Pool(aiohttp.TCPConnector):
    """Connections; knows which of them were used before."""

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: "list[Trace]",
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  -- not ours
    ) -> Connection:
        connection = await super().connect(req, traces, timeout)
        known = vars(connection.protocol)
        _reused.set("foldgate_used" in known)
        known["foldgate_used"] = True
        return connection


class UpstreamClient:
    """Sends requests; owns the pool."""

    def __init__(self, options: TransportOptions) -> None:
        """Open the pool; must be called with a running loop.

        Raises:
            OSError: when the CA file cannot be read.
        """
        context: ssl.SSLContext | bool = True
        if options.ca_file is not None:
            context = ssl.create_default_context(cafile=str(options.ca_file))
        self._proxy = options.http_proxy
        self._session = aiohttp.ClientSession(
            connector=_Pool(limit=0, ssl=context, keepalive_timeout=_KEEPALIVE_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=_NO_AUTO_HEADERS,
            read_bufsize=_READ_BUFFER_BYTES,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
            max_headers=_MAX_HEADERS,
            timeout=aiohttp.ClientTimeout(
                total=None,
                sock_connect=options.connect_seconds,
                sock_read=options.idle_seconds,
            ),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    def send(
        self,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        body: bytes | AsyncIterator[bytes] | None,
    ) -> "Exchange":
        """Return the exchange of one request; enter it to send and to get the reply."""
        return Exchange(self._session, self._proxy, method, url, headers, body)


class Exchange:
    """A request and its reply, as an asynchronous context manager.

    Entering sends the request and gives the reply; leaving the block early, or by an exception,
    cancels the call. A class rather than a generator: one object per request instead of four.
    """

    __slots__ = ("_body", "_headers", "_method", "_proxy", "_response", "_session", "_url")

    def __init__(
        self,
        session: aiohttp.ClientSession,
        proxy: str | None,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        body: bytes | AsyncIterator[bytes] | None,
    ) -> None:
        """Take everything; nothing is sent yet."""
        self._session = session
        self._proxy = proxy
        self._method = method
        self._url = url
        self._headers = headers
        self._body = body
        self._response: aiohttp.ClientResponse | None = None

    async def __aenter__(self) -> aiohttp.ClientResponse:
        """Send the request.

        Raises:
            UpstreamConnectError: no connection could be made.
            UpstreamTimeout: the upstream fell silent before its reply began.
            UpstreamProtocolError: it broke off before its reply began.
        """
        begun = asyncio.get_running_loop().time()
        try:
            self._response = await self._request()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self._response = await self._connect_again(error)
        except _CLOSED as error:
            self._response = await self._send_again(error, begun)
        except TimeoutError:
            raise UpstreamTimeout("the upstream gave no reply in time") from None
        except (aiohttp.ClientError, ConnectionError) as error:
            raise _broken_off(error) from None
        return self._response

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the connection back, or close it when the reply was not wanted to its end."""
        if self._response is None:
            return
        if kind is None:
            self._response.release()
        else:
            self._response.close()

    def _request(self) -> Awaitable[aiohttp.ClientResponse]:
        return self._session.request(
            self._method,
            _parse_url(self._url),
            headers=self._headers,
            data=self._body,
            allow_redirects=False,
            proxy=self._proxy,
        )

    async def _send_again(self, error: Exception, begun: float) -> aiohttp.ClientResponse:
        """Send once more what went into a connection that was being closed."""
        took = asyncio.get_running_loop().time() - begun
        # A body that is streamed is gone by now.
        is_whole = isinstance(self._body, bytes | None)
        if not (_reused.get() and is_whole and took <= _STALE_SECONDS):
            raise _broken_off(error) from None
        return await self._last_try()

    async def _connect_again(self, error: aiohttp.ClientError) -> aiohttp.ClientResponse:
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            raise UpstreamConnectError(_reason(error)) from None
        await asyncio.sleep(_RECONNECT_SECONDS)
        return await self._last_try()

    async def _last_try(self) -> aiohttp.ClientResponse:
        try:
            return await self._request()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as again:
            raise UpstreamConnectError(_reason(again)) from None
        except TimeoutError:
            raise UpstreamTimeout("the upstream gave no reply in time") from None
        except (aiohttp.ClientError, ConnectionError) as again:
            raise _broken_off(again) from None


def _broken_off(error: BaseException) -> UpstreamProtocolError:
    return UpstreamProtocolError(
        f"the upstream broke off before it replied ({type(error).__name__})"
    )


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "the upstream's certificate was not accepted; see upstream.ca_file"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "the upstream's host name was not found"
    if isinstance(error, TimeoutError):
        return "connecting to the upstream timed out"
    if isinstance(error, OSError) and error.strerror:
        return f"the upstream cannot be reached ({error.strerror})"
    return f"the upstream cannot be reached ({type(error).__name__})"
