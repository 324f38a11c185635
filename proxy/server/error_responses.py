"""Errors of our own, in the OpenAI envelope."""

from aiohttp import web
from multidict import CIMultiDict

from proxy import codec
from proxy.codec import JsonObject
from proxy.errors import ProxyError

NO_RETRY = {"x-should-retry": "false"}
"""Tells the official SDKs not to send the same request again (facts: openai-python, -node)."""


def envelope(message: str, type_: str, code: str | None) -> JsonObject:
    """Return the error object; all four members are always there."""
    return {"error": {"message": message, "type": type_, "param": None, "code": code}}


def error_response(
    status: int,
    message: str,
    type_: str,
    code: str | None,
    headers: dict[str, str] | None = None,
) -> web.Response:
    """Return an error reply."""
    return web.Response(
        status=status,
        body=codec.dumps(envelope(message, type_, code)),
        content_type="application/json",
        headers=CIMultiDict(headers or {}),
    )


def of_error(error: ProxyError, headers: dict[str, str] | None = None) -> web.Response:
    """Return the reply for an error of ours."""
    return error_response(error.status, str(error), error.type, error.code, headers)


def stream_error(error: JsonObject) -> bytes:
    """Return the event that ends a Chat Completions stream whose head was sent already."""
    return b"data: " + codec.dumps(error) + b"\n\n"
