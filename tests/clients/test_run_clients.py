"""Real clients under `foldgate run`, told nothing but what it tells them."""

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from proxy.codec import JsonObject, dumps, loads
from tests.clients import installed
from tests.clients.installed import MissingTool, NodePackages, Packages
from tests.e2e.running import Finished
from tests.upstream import Reply, ScriptedUpstream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="process groups of POSIX"),
]

MODEL = "test-model"
SECONDS = 180
AIDER_OPTIONS = ["--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings"]

CHAT_CLIENTS: dict[str, tuple[Packages, list[str]]] = {
    "opencode": (installed.OPENCODE, ["opencode", "run", "Say it."]),
    "opencode, model by name": (
        installed.OPENCODE,
        ["opencode", "run", "--model", f"foldgate/{MODEL}", "Say it."],
    ),
    "qwen": (installed.QWEN, ["qwen", "-p", "Say it."]),
    "aider": (installed.AIDER, ["aider", *AIDER_OPTIONS, "--message", "Say it."]),
}


@pytest.mark.parametrize("name", CHAT_CLIENTS)
async def test_a_chat_client_finds_the_proxy(name: str, tmp_path: Path) -> None:
    packages, client = CHAT_CLIENTS[name]
    word = secrets.token_hex(8)
    async with ScriptedUpstream(model=MODEL, window=64_000) as up:
        up.reply = lambda _: Reply(text=word)
        finished = await run(packages, client, up.url, tmp_path)
    assert finished.code == 0, finished.stderr
    assert word in finished.stdout
    assert {request.json["model"] for request in up.main} == {MODEL}
    assert {request.headers["Authorization"] for request in up.main} == {"Bearer foldgate"}
    assert closing(finished)["requests"] == len(up.main)


async def test_codex_finds_the_proxy(tmp_path: Path) -> None:
    word = secrets.token_hex(8)
    client = ["codex", "exec", "--skip-git-repo-check", "Say it."]
    async with responses(word) as up:
        finished = await run(installed.CODEX, client, up.url, tmp_path)
    assert finished.code == 0, finished.stderr
    assert word in finished.stdout
    assert [body["model"] for body in up.bodies] == [MODEL]
    assert closing(finished)["requests"] == 1


async def run(packages: Packages, client: list[str], upstream: str, home: Path) -> Finished:
    """Run a client under `foldgate run --json` in an empty folder."""
    try:
        folder = await asyncio.to_thread(packages.install)
    except MissingTool as missing:
        pytest.skip(str(missing))
    programs = folder / "node_modules" / ".bin" if isinstance(packages, NodePackages) else None
    work = home / "work"
    work.mkdir()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "proxy", "run", "--json", "--upstream", upstream, "--"),
        *client,
        cwd=work,
        env={
            "PATH": f"{programs or folder / 'bin'}{os.pathsep}{os.environ['PATH']}",  # noqa: TID251
            "HOME": str(home),
            "LANG": "C.UTF-8",
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(SECONDS):
            stdout, stderr = await process.communicate()
    finally:
        # Its watcher ends the client.
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    assert process.returncode is not None
    return Finished(process.returncode, stdout.decode(), stderr.decode())


def closing(finished: Finished) -> JsonObject:
    """The counts of a run."""
    line = loads(finished.stderr.splitlines()[-1])
    assert isinstance(line, dict)
    return line


@dataclass(slots=True)
class Responses:
    """A server with one model that says one word through the Responses API."""

    word: str
    url: str = ""
    bodies: list[JsonObject] = field(default_factory=list)

    async def models(self, _: web.Request) -> web.Response:
        card = {"id": MODEL, "object": "model", "max_model_len": 64_000}
        return web.json_response({"object": "list", "data": [card]})

    async def answer(self, request: web.Request) -> web.Response:
        body = loads(await request.read())
        assert isinstance(body, dict)
        self.bodies.append(body)
        part: JsonObject = {"type": "output_text", "text": self.word, "annotations": []}
        item: JsonObject = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "content": [part],
        }
        usage: JsonObject = {"input_tokens": 9, "output_tokens": 1, "total_tokens": 10}
        events: list[JsonObject] = [
            {"type": "response.created", "response": {"id": "resp_1"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {"id": "resp_1", "usage": usage}},
        ]
        stream = b"".join(b"data: %s\n\n" % dumps(event) for event in events)
        return web.Response(body=stream, content_type="text/event-stream")


@asynccontextmanager
async def responses(word: str) -> AsyncIterator[Responses]:
    server = Responses(word)
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/responses", server.answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()
