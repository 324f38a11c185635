"""Every error the proxy raises itself, and what a client sees of it.

* ProxyError
  x UpstreamError     : UpstreamConnectError (502, nothing was sent) - UpstreamTimeout (504)
                        - UpstreamProtocolError (502)
  x StoreError        : StoreUnavailable - StateCorrupt (StateLocked) - StoreTooNew - LeaseLost
  x CompactionError   : SummaryFailed - ContextBudgetExceeded (400)
                        - InvariantBroken (the original request goes)

An upstream's own 4xx or 5xx is not an exception: it is a response and is relayed as it is.
No message text, credential or URL with credentials is ever put into an exception.
"""


class ProxyError(Exception):
    """Base of all. `status`, `type` and `code` fill the OpenAI error envelope."""

    status = 500
    type = "proxy_error"
    code: str | None = None


class UpstreamError(ProxyError):
    """The upstream could not be used; it gave no reply that could be relayed."""

    status = 502
    type = "upstream_error"


class UpstreamConnectError(UpstreamError):
    """No connection: nothing was sent, a retry is safe."""

    code = "upstream_unreachable"


class UpstreamTimeout(UpstreamError):
    """The upstream accepted the request and fell silent."""

    status = 504
    code = "upstream_timeout"


class UpstreamProtocolError(UpstreamError):
    """The upstream broke the connection or HTTP itself before a reply began."""

    code = "upstream_protocol_error"


class StoreError(ProxyError):
    """The session store failed; requests go on without it."""

    type = "store_error"


class StoreUnavailable(StoreError):
    """The store cannot be reached, is locked, full or read-only.

    `reason` is a short fixed word for events.
    """

    def __init__(self, message: str, reason: str = "unavailable") -> None:
        """Take a text that names the cause without any stored value, and the fixed word."""
        super().__init__(message)
        self.reason = reason


class LeaseLost(StoreError):
    """Somebody else took the compaction over, or deleted the session: nothing was written."""


class StateCorrupt(StoreError):
    """A stored value cannot be read; it is treated as absent."""


class StateLocked(StateCorrupt):
    """A stored value is encrypted with a key that is not there. `key` is that key's id."""

    def __init__(self, key: str) -> None:
        """Take the id of the key."""
        super().__init__(f"a stored value needs encryption key '{key}'")
        self.key = key


class StoreTooNew(StoreError):
    """The store was written by a newer version; it is not touched."""


class CompactionError(ProxyError):
    """A compaction could not be done."""

    type = "compaction_error"


class SummaryFailed(CompactionError):
    """The summariser gave nothing usable. `reason` is a short fixed word for events.

    When its prompt was too long, `overflowed` is set; `limit` and `prompt` then are the window
    and the size of the prompt as its server told them, tokens, where it did. `calls` is how often
    it was asked, forms that its server does not take included.
    """

    calls = 1

    def __init__(
        self,
        reason: str,
        detail: str = "",
        *,
        overflowed: bool = False,
        limit: int | None = None,
        prompt: int | None = None,
    ) -> None:
        """Take the fixed word and a hint that holds no message text."""
        super().__init__(detail or reason)
        self.reason = reason
        self.detail = detail
        self.overflowed = overflowed
        self.limit = limit
        self.prompt = prompt


class InvariantBroken(CompactionError):
    """A rewritten request broke a rule; the original goes instead."""


class ContextBudgetExceeded(CompactionError):
    """The conversation cannot be brought under the hard limit."""

    status = 400
    type = "invalid_request_error"
    code = "context_length_exceeded"
