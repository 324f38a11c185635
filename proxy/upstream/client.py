"""The HTTP client side: one connection pool for everything that goes upstream.

Replies are neither decompressed nor decoded. There is no total time-out, since a stream may
run for hours; connecting and silence are bounded. A failed connect is tried once more, because
nothing was sent; nothing else is ever sent twice.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from proxy.errors import UpstreamConnectError, UpstreamProtocolError, UpstreamTimeout

_KEEPALIVE_SECONDS = 4.0
# Servers close idle connections after 5 s (llama.cpp, uvicorn, Node); staying below that keeps
# a request from being written into a connection that is just being closed.

_READ_BUFFER_BYTES = 256 * 1024
_HEADER_BYTES = 64 * 1024
_MAX_HEADERS = 512
_NO_AUTO_HEADERS = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")
_parse_url = lru_cache(maxsize=512)(lambda url: URL(url, encoded=True))


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """How connections are made."""

    connect_seconds: float = 10.0
    idle_seconds: float = 600.0
    ca_file: Path | None = None
    http_proxy: str | None = None


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
            connector=aiohttp.TCPConnector(
                limit=0, ssl=context, keepalive_timeout=_KEEPALIVE_SECONDS
            ),
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

    @asynccontextmanager
    async def send(
        self,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        body: bytes | AsyncIterator[bytes] | None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request and yield its reply; leaving the block early cancels the call.

        Raises:
            UpstreamConnectError: no connection could be made.
            UpstreamTimeout: the upstream fell silent before its reply began.
            UpstreamProtocolError: it broke off before its reply began.
        """
        response = await self._begin(method, url, headers, body)
        finished = False
        try:
            yield response
            finished = True
        finally:
            if finished:
                response.release()
            else:
                response.close()

    async def _begin(
        self,
        method: str,
        url: str,
        headers: CIMultiDict[str],
        body: bytes | AsyncIterator[bytes] | None,
    ) -> aiohttp.ClientResponse:
        for last_try in (False, True):
            try:
                return await self._session.request(
                    method,
                    _parse_url(url),
                    headers=headers,
                    data=body,
                    allow_redirects=False,
                    proxy=self._proxy,
                )
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                if last_try or isinstance(error, aiohttp.ConnectionTimeoutError):
                    raise UpstreamConnectError(_reason(error)) from None
                await asyncio.sleep(0.05)
            except TimeoutError:
                raise UpstreamTimeout("the upstream gave no reply in time") from None
            except (aiohttp.ClientError, ConnectionError) as error:
                raise UpstreamProtocolError(
                    f"the upstream broke off before it replied ({type(error).__name__})"
                ) from None
        raise AssertionError("unreachable")


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
