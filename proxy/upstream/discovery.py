"""Finding a model server on this machine, when nobody named one.

Only the usual ports of four servers are asked, on the loopback, all at once; nothing is sent but
``GET /v1/models``. What answers otherwise than a model server would is left alone: port 8000
belongs to many programs.
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
    try:
        async with session.get(f"{candidate.url}/models", allow_redirects=False) as reply:
            body = await reply.content.read(_MAX_REPLY_BYTES)
            while len(body) < _MAX_REPLY_BYTES and not reply.content.at_eof():
                body += await reply.content.read(_MAX_REPLY_BYTES - len(body))
            signature = reply.headers.get("Server", "")
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    document = _parsed(body)
    if "llama.cpp" in signature:
        return LocalServer("llama.cpp", candidate.url)
    if reply.status in _NEEDS_KEY or reply.status == _LOADING:
        # It is there, it only does not tell its models to us or yet.
        return candidate if isinstance(document, dict) and "error" in document else None
    if reply.status != 200:
        return None
    models = document.get("data") if isinstance(document, dict) else document
    if not isinstance(models, list) and not _is_empty_listing(document):
        return None
    owners = [codec.as_text(model.get("owned_by")) for model in codec.as_objects(models)]
    named = next((_SIGNS[owner] for owner in owners if owner in _SIGNS), None)
    if named is not None:
        return LocalServer(named, candidate.url)
    # On its usual port, a server that does not say otherwise is what the port stands for;
    # 8080 and 8000 stand for too much.
    usual = candidate.name in {"Ollama", "LM Studio"}
    return candidate if usual else LocalServer(UNKNOWN, candidate.url)


def _is_empty_listing(document: codec.Json) -> bool:
    # Ollama without models says {"object": "list", "data": null}.
    return isinstance(document, dict) and document.get("object") == "list"


def _parsed(body: bytes) -> codec.Json:
    try:
        return codec.loads(body)
    except codec.MalformedJson:
        return None
