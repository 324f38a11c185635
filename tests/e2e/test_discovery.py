"""Finding a model server on this machine: what is taken, what is not, and what is said of it."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, web

from proxy.codec import Json, JsonObject, dumps
from proxy.upstream import discovery
from proxy.upstream.discovery import UNKNOWN, USUAL, LocalServer, find_local_servers
from tests.e2e.raw import RawUpstream
from tests.e2e.running import Running, Served, command
from tests.upstream import ScriptedUpstream

LLAMA, OLLAMA, STUDIO, VLLM = (server.name for server in USUAL)


def answer(document: Json | bytes, status: int = 200, server: str = "") -> bytes:
    body = document if isinstance(document, bytes) else dumps(document)
    signature = f"Server: {server}\r\n" if server else ""
    head = f"HTTP/1.1 {status} X\r\n{signature}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def listing(owner: str, **more: Json) -> Json:
    card: JsonObject = {
        "id": "some-model",
        "object": "model",
        "created": 1795000000,
        "owned_by": owner,
    }
    return {"object": "list", "data": [{**card, **more}]}


def error(message: str, code: int) -> Json:
    return {"error": {"message": message, "type": "unavailable_error", "code": code}}


SERVERS = {
    "llama.cpp": (LLAMA, answer(listing("llamacpp", meta={"n_ctx": 2048})), LLAMA),
    "llama.cpp with a key": (LLAMA, answer(error("Invalid API Key", 401), 401, LLAMA), LLAMA),
    "llama.cpp that loads": (LLAMA, answer(error("Loading model", 503), 503, LLAMA), LLAMA),
    "llama.cpp on another's port": (VLLM, answer(listing("llamacpp")), LLAMA),
    "Ollama": (OLLAMA, answer(listing("library")), OLLAMA),
    "Ollama without models": (OLLAMA, answer({"object": "list", "data": None}), OLLAMA),
    "LM Studio": (STUDIO, answer(listing("organization_owner")), STUDIO),
    "LM Studio without models": (STUDIO, answer({"data": [], "object": "list"}), STUDIO),
    "vLLM": (VLLM, answer(listing("vllm", max_model_len=4096), server="uvicorn"), VLLM),
    "vLLM with a key": (VLLM, answer({"error": "Unauthorized"}, 401, "uvicorn"), UNKNOWN),
    "SGLang on vLLM's port": (VLLM, answer(listing("sglang")), "SGLang"),
    "another one": (LLAMA, answer(listing("me")), UNKNOWN),
    "one without the word list": (VLLM, answer({"data": [{"id": "a-model"}]}), UNKNOWN),
}


@pytest.mark.parametrize("kind", SERVERS)
async def test_model_servers_are_found(kind: str) -> None:
    port_of, reply, name = SERVERS[kind]
    assert await found(port_of, reply) == [name]


OTHERS = {
    "not found": answer({"detail": "Not Found"}, 404, "uvicorn"),
    "a page": answer(b"<!doctype html><title>Jenkins</title>"),
    "a page to log in": answer(b"<!doctype html><title>Log in</title>", 403),
    "elsewhere": b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n",
    "a list of something": answer([{"id": 1, "name": "a shoe"}]),
    "an empty list of something": answer([]),
    "data of something": answer({"data": [], "total": 0}),
    "data with numbers as ids": answer({"object": "list", "data": [{"id": 7}]}),
    "data that is an object": answer({"object": "list", "data": {"id": "x"}}),
    "a list without data": answer({"object": "list"}),
    "a text": answer("ok"),
    "a number": answer(7),
    "an error of Spring": answer(
        {"timestamp": "2026-11-30", "status": 401, "error": "Unauthorized", "path": "/v1/models"},
        401,
    ),
    "an error of FastAPI": answer({"detail": "Not authenticated"}, 401, "uvicorn"),
    "a server that is down": answer(b"upstream connect error", 503),
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "a database": b"J\x00\x00\x00\x0a8.0.36\x00\x08\x00\x00\x00\xff\xff",
    "half of a reply": answer(listing("vllm"))[:-5],
    "bytes that are not gzip": (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope"
    ),
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"X-Filler: " + b"x" * 100_000,
    "not UTF-8": answer(b'{"object":"list","data":[{"id":"\xff\xfe"}'),
    "depth": answer(b"[" * 100_000),
}


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("port_of", [LLAMA, OLLAMA])
async def test_other_servers_are_left_alone(kind: str, port_of: str) -> None:
    assert await found(port_of, OTHERS[kind]) == []


async def found(port_of: str, reply: bytes) -> list[str]:
    """What is found when this is the reply at some server's usual port."""
    async with RawUpstream() as up:
        up.hang_up = True
        up.replies.append(reply)
        servers = await find_local_servers([LocalServer(port_of, up.base_url)])
        assert {server.url for server in servers} <= {up.base_url}
        asked = [(request.method, request.target) for request in up.requests]
    # A connection that broke at once is tried once more.
    assert {*asked} <= {("GET", "/v1/models"), ("GET", "/_foldgate/live")}
    return [server.name for server in servers]


async def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    assert await find_local_servers([LocalServer(LLAMA, url)]) == []
    assert await find_local_servers([]) == []


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"])
async def test_a_server_that_never_ends_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    """The first is silent, the second sends without end; neither keeps the others from us."""
    monkeypatch.setattr(discovery, "ASK_SECONDS", 0.5)

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        with contextlib.suppress(ConnectionError):
            while head:
                writer.write(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
                await writer.drain()
            await reader.read()
            await reader.read()
        writer.close()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    async with server, RawUpstream() as up:
        up.replies.append(answer(listing("vllm")))
        candidates = [LocalServer(LLAMA, url), LocalServer(VLLM, up.base_url)]
        assert await find_local_servers(candidates) == [candidates[1]]


@pytest.mark.parametrize("health", [True, False])
async def test_a_foldgate_is_left_alone(up: ScriptedUpstream, tmp_path: Path, health: bool) -> None:
    candidate = LocalServer(VLLM, up.base_url)
    assert await find_local_servers([candidate]) == [LocalServer(UNKNOWN, up.base_url)]
    async with Running(up.base_url, tmp_path, **{"admin.health": health}) as fold:
        assert await find_local_servers([LocalServer(VLLM, f"{fold.url}/v1")]) == []


async def test_they_come_in_the_order_of_preference() -> None:
    async with RawUpstream() as one, RawUpstream() as two:
        one.replies.append(answer(listing("library")))
        two.replies.append(answer(listing("llamacpp")))
        candidates = [LocalServer(LLAMA, two.base_url), LocalServer(OLLAMA, one.base_url)]
        assert await find_local_servers(candidates) == candidates


# The command line, on the ports themselves


@asynccontextmanager
async def machine(documents: Mapping[str, Json]) -> AsyncIterator[None]:
    """Some of the usual servers with these lists of models; skips where a usual port is taken."""
    ports = {
        server.name: int(server.url.removesuffix("/v1").rpartition(":")[2]) for server in USUAL
    }
    for port in ports.values():
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError as error:
            pytest.skip(f"port {port}: {error.strerror}")
    async with contextlib.AsyncExitStack() as stack:
        for name, document in documents.items():
            runner = web.AppRunner(server_of(name, document), access_log=None)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", ports[name]).start()
        yield


def server_of(name: str, document: Json) -> web.Application:
    async def models(_: web.Request) -> web.Response:
        return web.json_response(document, headers={"Server": name})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    return app


TWO: Mapping[str, Json] = {
    OLLAMA: {"object": "list", "data": None},
    LLAMA: listing("llamacpp", meta={"n_ctx": 4096}),
}
FOUND = (
    "foldgate: found llama.cpp on http://127.0.0.1:8080/v1; also there: Ollama on "
    "http://127.0.0.1:11434/v1, choose with --upstream\n"
)


async def test_serve_takes_what_is_there_and_keeps_it(tmp_path: Path) -> None:
    config = tmp_path / "foldgate.toml"
    config.write_text("[compaction]\nthreshold = 0.5\n")
    args = ["--workers", "2", "--config", str(config)]
    async with machine(TWO), Served(None, tmp_path, args=args) as fold:
        assert fold.log == FOUND
        assert fold.ready["upstream"] == "http://127.0.0.1:8080/v1"
        assert fold.ready["window"] == 4096
        config.write_text("[compaction]\nthreshold = 0.6\n")
        fold.signal(signal.SIGHUP)
        await fold.wait_log("reloaded", 2)
        assert "refused" not in fold.log
        for _ in range(8):
            async with ClientSession() as session, session.get(fold.url + "/v1/models") as reply:
                assert reply.status == 200
        assert await fold.terminate() == 0


@pytest.mark.slow
async def test_run_takes_what_is_there(tmp_path: Path) -> None:
    async with machine({STUDIO: listing("organization_owner", max_context_length=8192)}):
        finished = await command("run", "sh", "-c", "exit 7", folder=tmp_path)
    assert (finished.code, finished.stdout) == (7, "")
    assert finished.stderr == (
        "foldgate: found LM Studio on http://127.0.0.1:1234/v1\n"
        "foldgate: 0 requests, 0 compactions, 0 tokens kept out\n"
    )


@pytest.mark.parametrize("args", [("serve", "--port", "0"), ("run", "--", "echo", "started")])
async def test_nothing_there_is_an_error(tmp_path: Path, args: tuple[str, ...]) -> None:
    async with machine({VLLM: [{"name": "no model"}]}):
        finished = await command(*args, folder=tmp_path)
    assert (finished.code, finished.stdout) == (1, "")
    assert finished.stderr == (
        "foldgate: upstream.base_url: not set, and no model server answers on this machine; looked "
        "for llama.cpp (8080), Ollama (11434), LM Studio (1234), vLLM (8000). Start one, or name "
        "the upstream: --upstream URL\n"
    )


@pytest.mark.parametrize("args", [("serve", "--port", "0"), ("run", "--", "echo", "started")])
@pytest.mark.slow
async def test_it_can_be_turned_off(tmp_path: Path, args: tuple[str, ...]) -> None:
    env = {"FOLDGATE_UPSTREAM__DISCOVER": "false"}
    async with machine(TWO):
        finished = await command(*args, folder=tmp_path, env=env)
    assert (finished.code, finished.stdout) == (1, "")
    assert finished.stderr.startswith("foldgate: upstream.base_url: name the upstream")
