"""Which headers cross the proxy, in either direction.

Hop-by-hop headers (RFC 9110 section 7.6.1) and those that `Connection` names end here, and so
do our own request headers. Everything else passes.
"""

from collections.abc import Mapping
from functools import lru_cache

from multidict import CIMultiDict, MultiMapping

OWN_PREFIX = "x-foldgate-"

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_REQUEST_ONLY = frozenset({"host", "expect"})
CREDENTIALS = ("authorization", "api-key", "x-api-key", "x-goog-api-key", "cookie")
"""Headers that say who the caller is, the first that is there counts."""

_OF_THE_BODY = (
    "Content-Encoding",
    "Content-MD5",
    "Content-Digest",
    "Repr-Digest",
    "Digest",
    "Idempotency-Key",
)
"""What holds of the bytes that the client sent and of no others (RFC 9530)."""

_CODINGS = frozenset({"identity", "gzip", "x-gzip", "deflate", "zstd"})
_NOT_FOR_SUMMARY = (
    "content-",
    "accept",
    "x-stainless-",
    "idempotency-key",
    "x-request-id",
    "x-client-request-id",
    "if-",
    "range",
)


def request_headers(inbound: MultiMapping[str]) -> CIMultiDict[str]:
    """Return the headers of an outbound request, `Content-Length` included."""
    headers = CIMultiDict(pair for pair in inbound.items() if _passes_on(pair[0]))
    _drop_named(headers, inbound)
    return headers


def reply_headers(upstream: MultiMapping[str]) -> CIMultiDict[str]:
    """Return the headers of a relayed reply."""
    headers = CIMultiDict(pair for pair in upstream.items() if _passes_back(pair[0]))
    _drop_named(headers, upstream)
    return headers


# Header names are few, so what becomes of each is worked out once.
@lru_cache(maxsize=1024)
def _passes_on(name: str) -> bool:
    low = name.lower()
    return not (low in HOP_BY_HOP or low in _REQUEST_ONLY or low.startswith(OWN_PREFIX))


@lru_cache(maxsize=1024)
def _passes_back(name: str) -> bool:
    return name.lower() not in HOP_BY_HOP


def _drop_named(headers: CIMultiDict[str], received: MultiMapping[str]) -> None:
    """Drop what the `Connection` header names."""
    for value in received.getall("Connection", ()):
        for token in value.split(","):
            headers.popall(token.strip(), None)


def credential_of(headers: MultiMapping[str]) -> str:
    """Return the caller's credential, or an empty string."""
    return next((value for name in CREDENTIALS if (value := headers.get(name))), "")


def with_credential(headers: CIMultiDict[str], key: str) -> CIMultiDict[str]:
    """Replace whatever credential the client sent by an upstream's own key; empty sends none."""
    for name in CREDENTIALS:
        headers.popall(name, None)
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return headers


def of_changed_body(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    """Return the headers of a request whose body is not the client's any more."""
    headers = headers.copy()
    for name in _OF_THE_BODY:
        headers.popall(name, None)
    return headers


def readable(headers: CIMultiDict[str]) -> CIMultiDict[str]:
    """Return the headers of a request whose reply we want to read on its way.

    Content codings that we cannot undo are not offered; a proxy may narrow the offer (RFC 9110
    section 12.5.3).
    """
    offered = headers.get("Accept-Encoding")
    if offered is None:
        return headers
    kept = [c for c in offered.split(",") if c.partition(";")[0].strip().lower() in _CODINGS]
    if len(kept) == offered.count(",") + 1:
        return headers
    headers = headers.copy()
    headers["Accept-Encoding"] = ",".join(kept).strip() or "identity"
    return headers


def summary_headers(outbound: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers of a summariser call made on behalf of a request."""
    kept = CIMultiDict(
        (name, value)
        for name, value in outbound.items()
        if not name.lower().startswith(_NOT_FOR_SUMMARY)
    )
    kept["Content-Type"] = "application/json"
    kept["x-foldgate-purpose"] = "compaction"
    return kept
