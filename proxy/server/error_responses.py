"""Errors of our own, in the OpenAI envelope."""

import secrets
import time

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


def chat_stream_error(error: JsonObject, model: str) -> bytes:
    """Return the event that ends a Chat Completions stream whose head was sent already."""
    return b"data: " + codec.dumps(error) + b"\n\n"


def responses_stream_error(error: JsonObject, model: str) -> bytes:
    """Return the events that end a Responses stream whose head was sent already.

    The official SDKs raise at the nested ``error`` event, Codex reads ``response.failed``; both
    want a response to have been created before.
    """
    inner = error.get("error")
    detail = dict(inner) if isinstance(inner, dict) else {"message": codec.as_text(inner)}
    response: JsonObject = {
        "id": f"resp_{secrets.token_hex(16)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None,
    }
    why: JsonObject = {
        # Some servers have a number there.
        "code": str(detail.get("code") or "server_error"),
        "message": detail.get("message") or "",
    }
    events: list[JsonObject] = [
        {"type": "response.created", "response": response},
        {"type": "response.in_progress", "response": response},
        {"type": "error", "error": {"type": None, "code": None, "param": None, **detail}},
        {"type": "response.failed", "response": {**response, "status": "failed", "error": why}},
    ]
    return b"".join(
        b"event: %b\ndata: %b\n\n"
        % (codec.as_text(event["type"]).encode(), codec.dumps({**event, "sequence_number": number}))
        for number, event in enumerate(events)
    )
