"""What the doctor's checks share: how they ask the upstream, and what they know of it by now."""

import asyncio
import re
import ssl
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from urllib.parse import urlsplit

import aiohttp
from multidict import CIMultiDict, CIMultiDictProxy
from pydantic import SecretStr

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.sessions.store_check import Finding
from proxy.settings import Settings
from proxy.settings.model import UpstreamSettings
from proxy.upstream.headers import with_credential
from proxy.upstream.routes import Base

Findings = AsyncGenerator[Finding, None]
BUSY = frozenset({502, 503, 504})
REFUSED = frozenset({401, 403})
_MAX_BYTES = 8 * 1024 * 1024
_SHOWN_BYTES = 64 * 1024
_QUICK_SECONDS = 5.0
_WORD = re.compile(r"[A-Za-z][A-Za-z_ ]{2,40}")
_SIGN = re.compile(r"[A-Za-z0-9 ._/()-]{1,40}")


class NoAnswer(Exception):
    """No reply came; `cause` is what the attempt ended in."""

    def __init__(self, cause: BaseException) -> None:
        """Take the error of the HTTP client."""
        super().__init__(type(cause).__name__)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply of the upstream, read to its end."""

    status: int
    headers: CIMultiDictProxy[str] = field(repr=False)
    body: bytes = field(repr=False)
    seconds: float
    """From sending until it was read."""
    is_whole: bool = True
    """Whether it ended as HTTP says that it must."""

    @property
    def kind(self) -> str:
        """The content type without parameters."""
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    @property
    def is_page(self) -> bool:
        """Whether it is for people to look at."""
        return self.kind == "text/html" or self.body[:256].lstrip()[:9].lower() in {
            b"<!doctype",
            b"<html>",
        }

    @property
    def document(self) -> Json:
        """The body as JSON; None when it is not."""
        try:
            return codec.loads(self.body)
        except codec.MalformedJson:
            return None

    @property
    def members(self) -> JsonObject:
        """The members of the JSON object that it is; none when it is something else."""
        document = self.document
        return document if isinstance(document, dict) else {}

    @property
    def text(self) -> str:
        """Its beginning in lower case, for looking at; it may quote keys, so it is never shown."""
        return self.body[:_SHOWN_BYTES].decode("utf-8", "replace").lower()

    def says(self, *words: str) -> bool:
        """Tell whether one of the words is in it."""
        text = self.text
        return any(word in text for word in words)

    @property
    def reason(self) -> str:
        """The status with the error's code or type: the only words of it that are safe to show."""
        error = self.members.get("error")
        named = error if isinstance(error, dict) else self.members
        words = (codec.as_text(named.get(name)) for name in ("code", "type"))
        word = next((word for word in words if _WORD.fullmatch(word)), "")
        return f"{self.status} {word}".strip()

    @property
    def signature(self) -> str:
        """What the server calls itself, when that is fit to be shown."""
        found = _SIGN.fullmatch(self.headers.get("Server", ""))
        return found[0] if found else ""


def patience(timeout: float) -> float:
    """Return what a question may take for which no model has to think, seconds.

    >>> patience(2), patience(30)
    (2, 10.0)
    """
    return min(timeout, max(_QUICK_SECONDS, timeout / 3))


class Wire:
    """Sends requests the way the proxy would, but keeps what went wrong."""

    def __init__(self, upstream: UpstreamSettings, seconds: float) -> None:
        """Take the settings and the longest time of one request.

        Raises:
            OSError: when the CA file cannot be read.
        """
        context: ssl.SSLContext | bool = True
        if upstream.ca_file is not None:
            context = ssl.create_default_context(cafile=str(upstream.ca_file))
        self.proxy = upstream.http_proxy
        self._seconds = seconds
        self.credential: Mapping[str, str] = {}
        self.clock_offsets: list[float] = []
        """By how much our clock was ahead of each reply's `Date`, seconds."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=context, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": f"foldgate/{version('foldgate')}", "Accept": "*/*"},
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=min(upstream.connect_seconds, patience(seconds) * 0.8)
            ),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def get(self, url: str, seconds: float | None = None) -> Answer:
        """Get a URL.

        Raises:
            NoAnswer: when no HTTP reply came.
        """
        return await self._send("GET", url, None, seconds)

    async def post(self, url: str, body: JsonObject, seconds: float | None = None) -> Answer:
        """Post JSON to a URL.

        Raises:
            NoAnswer: when no HTTP reply came.
        """
        return await self._send("POST", url, codec.dumps(body), seconds)

    async def _send(
        self, method: str, url: str, body: bytes | None, seconds: float | None
    ) -> Answer:
        headers = {**self.credential}
        if body is not None:
            headers["Content-Type"] = "application/json"
        start = time.monotonic()
        try:
            async with (
                asyncio.timeout(min(seconds or self._seconds, self._seconds)),
                self._session.request(
                    method,
                    url,
                    headers=headers,
                    data=body,
                    allow_redirects=False,
                    proxy=self.proxy,
                ) as reply,
            ):
                self._note_clock(reply.headers)
                read, is_whole = await _read(reply)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            # A time-out is an OSError; a URL that cannot be one is a ValueError.
            raise NoAnswer(error) from None
        return Answer(reply.status, reply.headers, read, time.monotonic() - start, is_whole)

    def _note_clock(self, headers: CIMultiDictProxy[str]) -> None:
        # What a cache kept has the time at which it was kept.
        if "Date" not in headers or "Age" in headers:
            return
        try:
            sent = parsedate_to_datetime(headers["Date"]).timestamp()
        except (ValueError, TypeError, OverflowError):
            return
        self.clock_offsets.append(time.time() - sent)


async def _read(reply: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    read = bytearray()
    try:
        async for chunk in reply.content.iter_any():
            read += chunk
            if len(read) > _MAX_BYTES:
                reply.close()
                break
    except (aiohttp.ClientPayloadError, ConnectionError):
        return bytes(read), False
    return bytes(read), True


@dataclass(frozen=True, slots=True)
class Key:
    """A key to try, and the variable that holds it."""

    variable: str
    value: SecretStr


@dataclass(slots=True)
class Case:
    """One upstream under examination; each check adds what it found out."""

    settings: Settings
    base: Base
    wire: Wire
    timeout: float
    key: Key | None = None
    """The key that is sent."""
    spare: Key | None = None
    """One that nobody named: only sent when the upstream asks for a key."""
    free: bool = False
    asked_model: str | None = None
    model: str = ""
    models: tuple[JsonObject, ...] = ()
    listing: Answer | None = None
    """The reply to ``GET …/models``."""
    chat: Answer | None = None
    """The reply to an empty request to ``…/chat/completions``."""
    server: str = ""
    """llama.cpp, Ollama, LM Studio or vLLM; empty when it is none of them or does not say."""
    props: JsonObject = field(default_factory=dict)
    """llama.cpp's own description of itself."""
    output_field: str = "max_tokens"
    least_tokens: int = 1
    """The smallest output limit that the upstream takes."""
    completes: bool = False
    """Whether a completion was seen to work."""

    @property
    def host(self) -> str:
        """The host name or address of the upstream."""
        return urlsplit(self.base.origin).hostname or ""

    @property
    def port(self) -> int:
        """The port of the upstream."""
        parts = urlsplit(self.base.origin)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def place(self) -> str:
        """Host and port as people write them."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def root(self) -> str:
        """Where the upstream's endpoints outside the versioned API are."""
        return self.base.origin + self.base.root

    @property
    def patience(self) -> float:
        """What a question may take for which no model has to think, seconds."""
        return patience(self.timeout)

    def headers(self) -> CIMultiDict[str]:
        """Return the headers that a client with the key would send."""
        value = self.key.value.get_secret_value() if self.key else ""
        return with_credential(CIMultiDict(), value)

    def use(self, key: Key | None) -> None:
        """Send this key from now on."""
        self.key = key
        self.wire.credential = dict(self.headers())

    async def get(self, path: str, seconds: float | None = None) -> Answer:
        """Get a path of the versioned API.

        Raises:
            NoAnswer: when no HTTP reply came.
        """
        return await self.wire.get(self.base.url + path, seconds)

    async def ask(self, body: JsonObject, seconds: float | None = None) -> Answer:
        """Post a chat completion request.

        Raises:
            NoAnswer: when no HTTP reply came.
        """
        return await self.wire.post(f"{self.base.url}/chat/completions", body, seconds)


def seconds_text(seconds: float) -> str:
    """Return a time for people.

    >>> seconds_text(0.0123), seconds_text(2.5)
    ('12 ms', '2.5 s')
    """
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
