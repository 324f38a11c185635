"""Where a request goes: base URL, path and credential."""

import re
from dataclasses import dataclass, field

from multidict import CIMultiDict

from proxy.transcript import Record

_VERSION_SEGMENT = re.compile(r"^(?P<root>.*?)(?P<versioned>/v\d[^/]*(?:/.*)?)$")
CHAT_TARGET = "/v1/chat/completions"
RESPONSES_TARGET = "/v1/responses"
_RESPONSES_PATH = "/responses"
_API_NAMES = frozenset(
    {
        "chat",
        "responses",
        "models",
        "embeddings",
        "completions",
        "images",
        "audio",
        "files",
        "batches",
        "moderations",
        "conversations",
    }
)


@dataclass(frozen=True, slots=True)
class Base:
    """An upstream's base URL, given with or without its version segment."""

    origin: str
    """Scheme, host and port."""
    root: str
    """Path in front of the version segment; for endpoints outside the versioned API."""
    versioned: str
    """Path of the versioned API; empty when the URL named none."""
    url: str = field(init=False)
    """The base URL as people write it; without a version segment ``/v1`` is assumed."""

    def __post_init__(self) -> None:
        """Work the URL out once; it is a key on every request's way."""
        object.__setattr__(self, "url", self.origin + (self.versioned or f"{self.root}/v1"))

    @classmethod
    def of(cls, url: str) -> "Base":
        """Read a base URL such as ``http://127.0.0.1:8080/v1`` or ``https://host/openai``."""
        scheme, _, rest = url.rstrip("/").partition("://")
        host, slash, path = rest.partition("/")
        path = slash + path
        found = _VERSION_SEGMENT.match(path)
        if found is None:
            return cls(f"{scheme}://{host}", path, "")
        return cls(f"{scheme}://{host}", found["root"], found["root"] + found["versioned"])

    def resolve(self, path_qs: str) -> str:
        """Return the upstream URL of a client's path and query.

        A client's ``/v1/…`` goes to the upstream's versioned API, whatever its path there; so
        do the API's own names without ``/v1``. All else goes to the same path of the host.
        """
        path = path_qs.partition("?")[0]
        if not self.versioned:
            return self.origin + self.root + path_qs
        if path == "/v1" or path.startswith("/v1/"):
            return self.origin + self.versioned + path_qs[3:]
        if path.lstrip("/").partition("/")[0] in _API_NAMES:
            return self.origin + self.versioned + path_qs
        return self.origin + self.root + path_qs


class Route(Record, frozen=True):
    """An upstream, the model asked of it, and the headers that authorise the call."""

    base: Base
    model: str
    headers: CIMultiDict[str]
    """Outbound headers of the request; they hold the credential."""
    window: int | None = None
    """Context window set for this model or profile, tokens."""
    output_field: str = "max_tokens"
    """The field the client used for its output limit."""
    target: str = CHAT_TARGET
    """Path and query of the endpoint, as the client wrote them."""
    tenant: bytes = b""
    """Whose request it is, whatever its dialect: what errors teach binds that tenant alone."""
    hint: int | None = None
    """Context window that the request itself names, tokens."""

    @property
    def speaks_responses(self) -> bool:
        """Whether the endpoint is that of the Responses API."""
        return self.target.partition("?")[0].endswith(_RESPONSES_PATH)
