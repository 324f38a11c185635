"""Finding a model server on this machine, when nobody named one.

Only the usual ports of four servers are asked, on the loopback, all at once; nothing is sent but
``GET /v1/models``, and ``GET /_foldgate/live`` to what answers it. What answers otherwise than a
model server would is left alone, ports 8000 and 8080 belong to many programs; so is a Foldgate,
which answers as the server behind it does.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from proxy import codec

ASK_SECONDS = 1.5
_MAX_REPLY_BYTES = 1024 * 1024
_NEEDS_KEY = frozenset({401, 403})
_LOADING = 503


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A kind of server and where it listens when nobody told it otherwise."""

    name: str
    url: str
    """Base URL of its OpenAI-compatible API."""


USUAL = (
    LocalServer("llama.cpp", "http://127.0.0.1:8080/v1"),
    LocalServer("Ollama", "http://127.0.0.1:11434/v1"),
    LocalServer("LM Studio", "http://127.0.0.1:1234/v1"),
    LocalServer("vLLM", "http://127.0.0.1:8000/v1"),
)
"""In the order in which they are preferred."""

_SIGNS = {"llamacpp": "llama.cpp", "vllm": "vLLM", "sglang": "SGLang", "library": "Ollama"}
"""`owned_by` of a model, where it tells the kind of server."""
UNKNOWN = "an OpenAI-compatible server"


async def find_local_servers(candidates: Sequence[LocalServer] = USUAL) -> list[LocalServer]:
    """Return the servers that answer, in the order of the candidates. Never raises.

    The name is the one that the server goes by itself, where it says so: anything may listen on
    port 8080.
    """
    timeout = aiohttp.ClientTimeout(total=ASK_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        found = await asyncio.gather(*(_ask(session, candidate) for candidate in candidates))
    return [server for server in found if server is not None]


async def _ask(session: aiohttp.ClientSession, candidate: LocalServer) -> LocalServer | None:
    answer = await _get(session, f"{candidate.url}/models")
    name = None if answer is None else _name(answer, candidate)
    if name is None or await _is_foldgate(session, candidate):
        return None
    return LocalServer(name, candidate.url)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    signature: str
    """The header that names the server."""
    document: codec.Json
    """The body; None when it is no JSON."""


async def _get(session: aiohttp.ClientSession, url: str) -> _Answer | None:
    try:
        async with session.get(url, allow_redirects=False) as reply:
            body = await reply.content.read(_MAX_REPLY_BYTES)
            while len(body) < _MAX_REPLY_BYTES and not reply.content.at_eof():
                body += await reply.content.read(_MAX_REPLY_BYTES - len(body))
            return _Answer(reply.status, reply.headers.get("Server", ""), _parsed(body))
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None


def _name(answer: _Answer, candidate: LocalServer) -> str | None:
    """Return what kind of server answered; None when it is none that serves models."""
    if "llama.cpp" in answer.signature:
        return "llama.cpp"
    # On its usual port, a server that does not say otherwise is what the port stands for;
    # 8080 and 8000 stand for too much.
    usual = candidate.name if candidate.name in {"Ollama", "LM Studio"} else UNKNOWN
    if answer.status in _NEEDS_KEY or answer.status == _LOADING:
        # It is there, it only does not tell its models to us or yet.
        return usual if _is_refusal(answer.document) else None
    if answer.status != 200 or not _is_listing(answer.document):
        return None
    owners = (codec.as_text(model.get("owned_by")) for model in _models(answer.document))
    return next((_SIGNS[owner] for owner in owners if owner in _SIGNS), usual)


def _is_refusal(document: codec.Json) -> bool:
    """Whether an error is OpenAI's, or vLLM's, which has a text in the place of the object.

    Web frameworks put more beside such a text.
    """
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict):
        return isinstance(error.get("message"), str)
    return isinstance(error, str) and document == {"error": error}


def _is_listing(document: codec.Json) -> bool:
    """Whether it lists models; a server that has none yet has null or an empty list there."""
    if not isinstance(document, dict) or "data" not in document:
        return False
    models, data = _models(document), document["data"]
    if document.get("object") != "list" and not models:
        return False
    named = [model for model in models if codec.as_text(model.get("id"))]
    return data is None or (isinstance(data, list) and len(named) == len(data))


def _models(document: codec.Json) -> Sequence[codec.JsonObject]:
    return codec.as_objects(document.get("data")) if isinstance(document, dict) else ()


async def _is_foldgate(session: aiohttp.ClientSession, candidate: LocalServer) -> bool:
    answer = await _get(session, f"{candidate.url.removesuffix('/v1')}/_foldgate/live")
    document = None if answer is None else answer.document
    if not isinstance(document, dict):
        return False
    error = document.get("error")
    # The second is what it says where its health pages are off.
    return document == {"status": "ok"} or (
        isinstance(error, dict) and error.get("message") == "There is no such page."
    )


def _parsed(body: bytes) -> codec.Json:
    try:
        return codec.loads(body)
    except codec.MalformedJson:
        return None
