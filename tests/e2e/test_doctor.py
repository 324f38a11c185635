"""`foldgate doctor`: the upstream is there or not, its key, its path, its models, its window."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from typer.testing import CliRunner

from proxy.__main__ import app
from proxy.codec import Json, JsonObject, MalformedJson, as_objects, dumps, loads
from proxy.upstream import discovery
from proxy.upstream.discovery import LocalServer
from tests.contract.test_redis_tls import certificate
from tests.e2e.running import Finished, Running, command
from tests.redis_servers import free_port
from tests.upstream import ScriptedUpstream

SECRET = "sk-verysecret-123456"
KEYED = {"OPENAI_API_KEY": SECRET}
HELLO = b'{"choices": [{"index": 0, "delta": {"content": "hello"}, "finish_reason": "stop"}]}'
PAGE = b"<!DOCTYPE html><html><body>Welcome</body></html>"


@pytest.fixture(autouse=True)
def nothing_nearby(monkeypatch: pytest.MonkeyPatch) -> list[LocalServer]:
    """The servers that are found on this machine: none, unless a test adds one."""
    found: list[LocalServer] = []

    async def find() -> list[LocalServer]:
        return found

    monkeypatch.setattr(discovery, "find_local_servers", find)
    return found


@dataclass(frozen=True)
class Diagnosis:
    """What the doctor said."""

    code: int
    document: JsonObject
    text: str = field(repr=False)

    @property
    def failures(self) -> list[str]:
        found = as_objects(self.document["findings"])
        return [str(f["name"]) for f in found if f["status"] == "FAIL"]

    def all_of(self, name: str) -> list[JsonObject]:
        return [f for f in as_objects(self.document["findings"]) if f["name"] == name]

    def of(self, name: str) -> JsonObject:
        """The last finding of a name; an empty one when there is none."""
        found = self.all_of(name)
        return found[-1] if found else {"status": "", "text": "", "fix": ""}

    def text_of(self, name: str) -> str:
        return str(self.of(name)["text"])

    def fix_of(self, name: str) -> str:
        return str(self.of(name).get("fix", ""))

    def status_of(self, name: str) -> str:
        return str(self.of(name)["status"])


async def doctor(
    upstream: str | None, folder: Path, *args: str, env: Mapping[str, str | None] | None = None
) -> Diagnosis:
    """Run `foldgate doctor --json` in this process, on a thread of its own, on a free port."""
    variables: dict[str, str | None] = {
        "HOME": str(folder),
        "XDG_DATA_HOME": None,
        "OPENAI_API_KEY": None,
        "FOLDGATE_SERVER__PORT": "0",
        **(env or {}),
    }
    named = [] if upstream is None else ["--upstream", upstream]
    line = ["doctor", "--json", "--timeout", "20", *named, *args]
    done = await asyncio.to_thread(CliRunner().invoke, app, line, env=variables)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert SECRET not in done.output
    assert "Traceback" not in done.output
    document = loads(done.stdout)
    assert isinstance(document, dict)
    assert document["ok"] == (done.exit_code == 0)
    diagnosis = Diagnosis(done.exit_code, document, done.stdout)
    for finding in as_objects(document["findings"]):
        assert finding["status"] == "ok" or finding["fix"], finding
    assert (done.exit_code == 1) == bool(diagnosis.failures)
    return diagnosis


Answering = Callable[[web.Request, JsonObject], Awaitable[web.StreamResponse]]


@dataclass
class Stub:
    """A server that answers the paths it knows, and all others by `otherwise`."""

    paths: dict[tuple[str, str], Answering] = field(default_factory=dict)
    otherwise: Answering | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    url: str = ""

    @asynccontextmanager
    async def running(
        self, tls: ssl.SSLContext | None = None, port: int = 0
    ) -> AsyncIterator["Stub"]:
        application = web.Application()
        application.router.add_route("*", "/{tail:.*}", self._handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls).start()
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        raw = await request.read()
        try:
            body = loads(raw)
        except MalformedJson:
            body = None
        chosen = self.paths.get((request.method, request.path), self.otherwise or nothing)
        response = await chosen(request, body if isinstance(body, dict) else {})
        if not response.prepared:
            response.headers.update(self.headers)
        return response


def reply(value: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=dumps(value), status=status, content_type="application/json", headers=headers
    )


def events(*data: bytes) -> web.Response:
    body = b"".join(b"data: " + event + b"\n\n" for event in data)
    return web.Response(body=body, content_type="text/event-stream")


async def nothing(_: web.Request, __: JsonObject) -> web.StreamResponse:
    return reply({"detail": "Not Found"}, 404)


async def page(_: web.Request, __: JsonObject) -> web.StreamResponse:
    return web.Response(body=PAGE, content_type="text/html")


async def models(_: web.Request, __: JsonObject) -> web.StreamResponse:
    return reply({"object": "list", "data": [{"id": "small", "object": "model"}]})


async def chat(_: web.Request, body: JsonObject) -> web.StreamResponse:
    if not body.get("messages"):
        return reply({"error": {"message": "messages: field required"}}, 422)
    if body.get("stream"):
        return events(HELLO, b"[DONE]")
    message: Json = {"role": "assistant", "content": "hello"}
    return reply({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})


def api(prefix: str = "/v1", **more: Answering) -> dict[tuple[str, str], Answering]:
    """The paths of a plain server; `models` and `chat` may be given anew."""
    return {
        ("GET", f"{prefix}/models"): more.get("models", models),
        ("POST", f"{prefix}/chat/completions"): more.get("chat", chat),
    }


def saying(value: Json, status: int = 200, headers: Mapping[str, str] | None = None) -> Answering:
    async def say(_: web.Request, __: JsonObject) -> web.StreamResponse:
        return reply(value, status, headers)

    return say


# --- all is well


async def test_a_good_server(tmp_path: Path) -> None:
    async with ScriptedUpstream(window=32_768, timings=True) as up:
        found = await doctor(up.base_url, tmp_path)
    assert found.code == 0
    assert found.failures == []
    names = [str(f["name"]) for f in as_objects(found.document["findings"])]
    assert names == [
        *("settings", "port", "store", "upstream", "key", "path", "models", "window"),
        *("completion", "template", "tools", "streaming", "structured", "cache"),
        *("clock", "tenancy"),
    ]
    assert "32,768 tokens, from models" in found.text_of("window")
    assert found.document["model"] == "test-model"


async def test_the_lines_for_people_come_from_the_real_command(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    env = {"FOLDGATE_SERVER__PORT": "0", "FOLDGATE_UPSTREAM__CONTEXT_WINDOW": "8192"}
    done = await command("doctor", "--upstream", up.base_url, folder=tmp_path, env=env)
    assert done == Finished(0, done.stdout, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("ok    settings     ")
    assert all(line.startswith(("ok    ", "warn  ", "      fix: ")) for line in lines)


async def test_free_asks_for_no_completion(up: ScriptedUpstream, tmp_path: Path) -> None:
    found = await doctor(up.base_url, tmp_path, "--free")
    assert found.code == 0
    assert [request.json for request in up.main] == [{}]
    assert found.status_of("completion") == ""


# --- is it there


async def test_nothing_listens(tmp_path: Path, nothing_nearby: list[LocalServer]) -> None:
    port = free_port()
    found = await doctor(f"http://127.0.0.1:{port}/v1", tmp_path)
    assert found.failures == ["upstream"]
    assert f"nothing listens on 127.0.0.1:{port}" in found.text_of("upstream")
    assert f"start the model server on port {port}" in found.fix_of("upstream")
    nothing_nearby.append(LocalServer("Ollama", "http://127.0.0.1:11434/v1"))
    found = await doctor(f"http://localhost:{port}/v1", tmp_path)
    assert "--upstream http://127.0.0.1:11434/v1: Ollama answers" in found.fix_of("upstream")


async def test_no_upstream_is_named(tmp_path: Path, nothing_nearby: list[LocalServer]) -> None:
    found = await doctor(None, tmp_path)
    assert found.failures == ["upstream"]
    assert "--upstream URL" in found.fix_of("upstream")
    async with Stub(api()).running() as stub:
        nothing_nearby.append(LocalServer("llama.cpp", f"{stub.url}/v1"))
        found = await doctor(None, tmp_path)
    assert found.code == 0
    assert "llama.cpp found at" in str(found.all_of("upstream")[0]["text"])
    assert found.document["upstream"] == f"{stub.url}/v1"


async def test_a_host_name_that_is_not_found(tmp_path: Path) -> None:
    found = await doctor("http://no-such-host.invalid/v1", tmp_path)
    assert found.failures == ["upstream"]
    assert "no-such-host.invalid was not found" in found.text_of("upstream")
    assert "correct the host name" in found.fix_of("upstream")


@pytest.mark.parametrize(
    ("given", "name"), [("http://127.0.0.1:99999/v1", "settings"), ("http:///h/v1", "upstream")]
)
async def test_a_url_that_cannot_be_one(tmp_path: Path, given: str, name: str) -> None:
    found = await doctor(given, tmp_path)
    assert found.failures == [name]
    assert "http://HOST:PORT/v1" in found.fix_of(name)


async def test_https_against_plain_http(up: ScriptedUpstream, tmp_path: Path) -> None:
    found = await doctor(up.base_url.replace("http:", "https:"), tmp_path)
    assert found.failures == ["upstream"]
    assert "plain HTTP" in found.text_of("upstream")
    assert found.fix_of("upstream") == f"--upstream {up.base_url}"


async def test_plain_http_against_https(tmp_path: Path) -> None:
    async with Stub(api()).running(tls(tmp_path)) as stub:
        found = await doctor(f"{stub.url.replace('https:', 'http:')}/v1", tmp_path)
    assert found.failures == ["upstream"]
    assert "speaks TLS" in found.text_of("upstream")
    assert found.fix_of("upstream") == f"--upstream {stub.url}/v1"


def tls(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(folder))
    return context


async def test_a_certificate_of_ones_own(tmp_path: Path) -> None:
    async with Stub(api()).running(tls(tmp_path)) as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
        assert found.failures == ["upstream"]
        assert "nobody that is trusted" in found.text_of("upstream")
        assert "FOLDGATE_UPSTREAM__CA_FILE=" in found.fix_of("upstream")
        trusted = {"FOLDGATE_UPSTREAM__CA_FILE": str(tmp_path / "cert.pem")}
        assert (await doctor(f"{stub.url}/v1", tmp_path, env=trusted)).code == 0
        # The certificate names the address only.
        url = f"{stub.url.replace('127.0.0.1', 'localhost')}/v1"
        found = await doctor(url, tmp_path, env=trusted)
        assert "another name than localhost" in found.text_of("upstream")
        (tmp_path / "empty.pem").write_text("nothing")
        found = await doctor(
            url, tmp_path, env={"FOLDGATE_UPSTREAM__CA_FILE": str(tmp_path / "empty.pem")}
        )
        assert "PEM" in found.fix_of("upstream")


async def test_a_redirect(tmp_path: Path) -> None:
    async def on(request: web.Request, _: JsonObject) -> web.StreamResponse:
        return web.Response(status=308, headers={"Location": f"/real{request.path}"})

    async def login(_: web.Request, __: JsonObject) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": "https://login.example/?next=secret"})

    async with Stub(otherwise=on).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
        assert found.failures == ["upstream"]
        assert found.fix_of("upstream") == f"--upstream {stub.url}/real/v1"
        stub.otherwise = login
        found = await doctor(f"{stub.url}/v1", tmp_path)
        assert "https://login.example" in found.text_of("upstream")
        assert "next=" not in found.text
        assert "login" in found.fix_of("upstream")


async def test_an_http_proxy_that_is_not_there(up: ScriptedUpstream, tmp_path: Path) -> None:
    env = {"FOLDGATE_UPSTREAM__HTTP_PROXY": f"http://127.0.0.1:{free_port()}"}
    found = await doctor(up.base_url, tmp_path, env=env)
    assert found.failures == ["upstream"]
    assert "HTTP proxy cannot be reached" in found.text_of("upstream")
    assert "upstream.http_proxy" in found.fix_of("upstream")


@pytest.mark.parametrize(("status", "word"), [(407, "password"), (503, "answers 503")])
async def test_an_http_proxy_that_lets_nothing_through(
    tmp_path: Path, status: int, word: str
) -> None:
    async with Stub(otherwise=saying({}, status)).running() as stub:
        env = {"FOLDGATE_UPSTREAM__HTTP_PROXY": stub.url}
        found = await doctor("http://127.0.0.1:9/v1", tmp_path, env=env)
    assert found.failures == ["upstream"]
    assert "HTTP proxy" in found.text_of("upstream")
    assert word in found.text_of("upstream")
    assert "upstream.http_proxy" in found.fix_of("upstream")


async def test_a_proxy_variable_that_is_not_followed(tmp_path: Path) -> None:
    env = {"HTTPS_PROXY": "http://127.0.0.1:3128"}
    found = await doctor("http://no-such-host.invalid/v1", tmp_path, env=env)
    assert "HTTPS_PROXY is set but not followed" in found.fix_of("upstream")


async def test_a_server_that_never_replies(tmp_path: Path) -> None:
    async with ScriptedUpstream() as up:
        async with Stub(otherwise=_never).running() as stub:
            found = await doctor(f"{stub.url}/v1", tmp_path, "--timeout", "0.3")
        assert found.failures == ["upstream"]
        assert "gave no reply within 0.3 s" in found.text_of("upstream")
        assert up.requests == []


async def _never(_: web.Request, __: JsonObject) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def test_what_is_there_speaks_no_http(tmp_path: Path) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.9\r\n")
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    found = await doctor(f"http://127.0.0.1:{port}/v1", tmp_path)
    server.close()
    assert found.failures == ["upstream"]
    assert "speaks no HTTP" in found.text_of("upstream")


async def test_it_is_still_loading(tmp_path: Path) -> None:
    error: Json = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
    async with Stub(otherwise=saying(error, 503)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.failures == ["upstream"]
    assert "loading" in found.text_of("upstream")
    assert "wait" in found.fix_of("upstream")


async def test_the_upstream_is_foldgate_itself(up: ScriptedUpstream, tmp_path: Path) -> None:
    async with Running(up.base_url, tmp_path) as fold:
        found = await doctor(f"{fold.url}/v1", tmp_path)
    assert found.failures == ["upstream"]
    assert "Foldgate itself" in found.text_of("upstream")
    assert "--upstream URL of the model server" in found.fix_of("upstream")
    assert up.requests == []
    port = str(free_port())
    found = await doctor(f"http://localhost:{port}", tmp_path, env={"FOLDGATE_SERVER__PORT": port})
    assert "the address of Foldgate itself" in found.text_of("upstream")


# --- the key


async def test_no_key_was_given(tmp_path: Path) -> None:
    async with ScriptedUpstream(key=SECRET) as up:
        found = await doctor(up.base_url, tmp_path)
    assert found.failures == ["key"]
    assert "wants a key" in found.text_of("key")
    assert "export OPENAI_API_KEY=" in found.fix_of("key")
    assert "upstream.key_variable" in found.fix_of("key")


async def test_the_key_is_refused(tmp_path: Path) -> None:
    async with ScriptedUpstream(key="another") as up:
        found = await doctor(up.base_url, tmp_path, env=KEYED)
        assert found.failures == ["key"]
        assert "OPENAI_API_KEY was refused (401 invalid_api_key)" in found.text_of("key")
        named = await doctor(
            up.base_url, tmp_path, "--key-variable", "MINE", env={"MINE": SECRET, **KEYED}
        )
        assert "the key in MINE was refused" in named.text_of("key")
        assert "export MINE=" in named.fix_of("key")


async def test_the_key_is_taken(tmp_path: Path) -> None:
    async with ScriptedUpstream(key=SECRET) as up:
        found = await doctor(up.base_url, tmp_path, env=KEYED)
        assert found.code == 0
        env = {"FOLDGATE_UPSTREAM__KEY_VARIABLE": "MINE", "MINE": SECRET}
        assert (await doctor(up.base_url, tmp_path, env=env)).code == 0


async def test_a_key_that_nobody_named_goes_only_to_who_asks(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    found = await doctor(up.base_url, tmp_path, env=KEYED)
    assert found.text_of("key") == "none was asked for"
    assert all("Authorization" not in request.headers for request in up.requests)


async def test_the_list_is_open_but_chat_is_not(tmp_path: Path) -> None:
    locked = saying({"error": {"message": f"bad key {SECRET}", "code": 401}}, 401)
    async with Stub(api(chat=locked)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, env=KEYED)
    assert found.failures == ["key"]
    assert "OPENAI_API_KEY was refused (401)" in found.text_of("key")


async def test_a_key_that_is_not_allowed(tmp_path: Path) -> None:
    async with Stub(api(chat=saying({"error": {}}, 403))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, env=KEYED)
    assert found.failures == ["key"]
    assert "does not allow it to the key in OPENAI_API_KEY" in found.text_of("key")


async def test_a_key_that_is_refused_with_a_400(tmp_path: Path) -> None:
    bad = saying([{"error": {"code": 400, "message": "API key not valid."}}], 400)
    async with Stub(api(models=bad, chat=bad)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, env=KEYED)
    assert found.failures == ["key"]
    assert "OPENAI_API_KEY was refused (400)" in found.text_of("key")


async def test_a_list_of_models_that_is_not_for_everybody(tmp_path: Path) -> None:
    async with Stub(api(models=saying({"error": {}}, 403))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.failures == []
    assert "lists no models (/models: 403)" in found.text_of("models")


@pytest.mark.parametrize("value", [f"{SECRET}\n", f'"{SECRET}"', f"{SECRET}…", f"Bearer {SECRET}"])
async def test_a_key_of_a_wrong_form(tmp_path: Path, value: str) -> None:
    async with ScriptedUpstream(key=SECRET) as up:
        found = await doctor(up.base_url, tmp_path, env={"OPENAI_API_KEY": value})
    assert found.failures == ["key"]
    assert "export OPENAI_API_KEY=… anew" in found.fix_of("key")


async def test_a_variable_that_is_not_set(up: ScriptedUpstream, tmp_path: Path) -> None:
    found = await doctor(up.base_url, tmp_path, "--key-variable", "NOT_SET")
    assert found.failures == ["key"]
    assert "export NOT_SET=" in found.fix_of("key")


async def test_a_login_in_front(tmp_path: Path) -> None:
    basic = {"WWW-Authenticate": 'Basic realm="x"'}
    async with Stub(otherwise=saying({}, 401, basic)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, env=KEYED)
    assert found.failures == ["key"]
    assert "user name and password" in found.text_of("key")


# --- the path


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("/v1/chat/completions", "/v1"),
        ("/v1/models", "/v1"),
        ("/v1/v1", "/v1"),
        ("/v2", "/v1"),
        ("/api", "/openai/v1"),
        ("", "/api/v1"),
        ("/v1", "/v1beta/openai"),
        ("/v1", "/openai/v1"),
        ("/team/llm/v2", "/team/llm/v1"),
        ("/chat/completions", "/v1"),
    ],
)
@pytest.mark.parametrize("otherwise", [nothing, page], ids=["404", "page"])
async def test_a_wrong_path(tmp_path: Path, given: str, right: str, otherwise: Answering) -> None:
    async with Stub(api(right), otherwise).running() as stub:
        found = await doctor(stub.url + given, tmp_path)
    assert found.failures == ["path"]
    assert found.fix_of("path") == f"--upstream {stub.url}{right}"


@pytest.mark.parametrize("given", ["", "/v1", "/v1/"])
async def test_a_base_url_is_good_with_and_without_its_version(tmp_path: Path, given: str) -> None:
    async with Stub(api()).running() as stub:
        assert (await doctor(stub.url + given, tmp_path)).code == 0


async def test_an_api_without_a_version_in_its_path(tmp_path: Path) -> None:
    async with Stub(api("/inference")).running() as stub:
        found = await doctor(f"{stub.url}/inference", tmp_path)
    assert found.failures == ["path"]
    assert f"{stub.url}/inference, without a version" in found.fix_of("path")


async def test_a_wrong_path_where_the_right_one_wants_a_key(tmp_path: Path) -> None:
    async with Stub(api(chat=saying({"error": {}}, 401))).running() as stub:
        found = await doctor(f"{stub.url}/v3", tmp_path)
    assert found.failures == ["path"]
    assert found.fix_of("path") == f"--upstream {stub.url}/v1; it wants a key too"


async def test_no_api_anywhere(tmp_path: Path, nothing_nearby: list[LocalServer]) -> None:
    nothing_nearby.append(LocalServer("LM Studio", "http://127.0.0.1:1234/v1"))
    async with Stub(otherwise=page).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.failures == ["path"]
    assert "a web page is there" in found.text_of("path")
    assert "LM Studio answers at http://127.0.0.1:1234/v1" in found.fix_of("path")


async def test_a_server_that_answers_every_path_with_200(tmp_path: Path) -> None:
    unexpected = saying({"error": "Unexpected endpoint or method. (POST /x). Returning 200 anyway"})
    async with Stub(api("/api/v1"), unexpected).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.fix_of("path") == f"--upstream {stub.url}/api/v1"


# --- models


async def test_a_server_without_a_list_of_models(tmp_path: Path) -> None:
    async with Stub(api(models=nothing)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
        assert found.code == 0
        assert found.status_of("path") == "ok"
        assert found.status_of("models") == "warn"
        assert "--model NAME" in found.fix_of("models")
        assert found.status_of("completion") == "ok"
        found = await doctor(f"{stub.url}/v1", tmp_path, "--model", "mine")
        assert found.status_of("completion") == "ok"
        assert found.document["model"] == "mine"


async def test_a_model_that_is_not_listed(up: ScriptedUpstream, tmp_path: Path) -> None:
    found = await doctor(up.base_url, tmp_path, "--model", "tset-modle")
    assert found.failures == ["models"]
    assert found.fix_of("models") == "--model test-model"
    assert (await doctor(up.base_url, tmp_path, "--model", "test-model")).code == 0


async def test_no_model_is_loaded(tmp_path: Path) -> None:
    empty = saying({"object": "list", "data": None})
    missing = saying({"error": {"message": "model is required"}}, 400)
    async with Stub(api(models=empty, chat=missing)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.failures == ["models"]
    assert "load a model" in found.fix_of("models")


async def test_the_first_model_that_can_chat_is_tried(tmp_path: Path) -> None:
    entries: list[Json] = [{"id": "nomic-embed-text"}, {"id": "qwen"}, {"id": "other"}]
    async with Stub(api(models=saying({"data": entries}))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.document["model"] == "qwen"
    assert "3 models" in found.text_of("models")


# --- the window


async def test_an_unknown_window(tmp_path: Path) -> None:
    async with Stub(api()).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
        assert found.status_of("window") == "warn"
        assert "FOLDGATE_UPSTREAM__CONTEXT_WINDOW=N" in found.fix_of("window")
        assert "upstream.context_window" in found.fix_of("window")
        env = {"FOLDGATE_UPSTREAM__CONTEXT_WINDOW": "8192"}
        found = await doctor(f"{stub.url}/v1", tmp_path, env=env)
        assert found.text_of("window") == "8,192 tokens, from settings"
        assert found.status_of("window") == "ok"


async def test_a_window_that_is_set_too_large(tmp_path: Path) -> None:
    env = {"FOLDGATE_UPSTREAM__CONTEXT_WINDOW": "16384"}
    async with ScriptedUpstream(window=8192) as up:
        found = await doctor(up.base_url, tmp_path, env=env)
    assert found.failures == ["window"]
    assert "set to 16,384 tokens, but the server takes 8,192" in found.text_of("window")
    assert "FOLDGATE_UPSTREAM__CONTEXT_WINDOW=8192" in found.fix_of("window")


async def test_a_window_of_a_profile_that_is_too_large(tmp_path: Path) -> None:
    config = tmp_path / "foldgate.toml"
    config.write_text('[[profiles]]\nmodel = "test-*"\ncontext_window = 16384\n')
    async with ScriptedUpstream(window=8192) as up:
        found = await doctor(up.base_url, tmp_path, "--config", str(config))
    assert found.failures == ["window"]


async def test_a_very_small_window(tmp_path: Path) -> None:
    async with ScriptedUpstream(window=1024) as up:
        found = await doctor(up.base_url, tmp_path)
        assert found.status_of("window") == "warn"
        assert "too small" in found.text_of("window")
        assert "made for 131,072" in found.text_of("window")
        env = {"FOLDGATE_UPSTREAM__CONTEXT_WINDOW": "1024"}
        up.window = 8192
        found = await doctor(up.base_url, tmp_path, env=env)
        assert "FOLDGATE_UPSTREAM__CONTEXT_WINDOW=8192" in found.fix_of("window")


@pytest.mark.parametrize("loaded", [None, 4096])
async def test_ollama_does_not_tell_its_window(tmp_path: Path, loaded: int | None) -> None:
    entry: Json = {"id": "qwen:latest", "object": "model", "owned_by": "library"}
    running: list[Json] = [{"name": "qwen:latest", "context_length": loaded}] if loaded else []
    paths = api(models=saying({"object": "list", "data": [entry]}))
    paths["GET", "/api/ps"] = saying({"models": running})
    async with Stub(paths).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
        assert found.status_of("window") in {"ok", "warn"}
        if found.status_of("window") == "warn":
            number = loaded or "N"
            assert f"OLLAMA_CONTEXT_LENGTH={number}" in found.fix_of("window")
            assert f"FOLDGATE_UPSTREAM__CONTEXT_WINDOW={number}" in found.fix_of("window")
        env = {"FOLDGATE_UPSTREAM__CONTEXT_WINDOW": "32768"}
        found = await doctor(f"{stub.url}/v1", tmp_path, env=env)
        assert found.failures == (["window"] if loaded else [])


async def test_lm_studio_tells_its_window_elsewhere(tmp_path: Path) -> None:
    entry: Json = {"id": "qwen", "object": "model", "owned_by": "organization_owner"}
    paths = api(models=saying({"object": "list", "data": [entry]}))
    paths["GET", "/api/v0/models"] = saying({"data": [{"id": "qwen", "loaded_context_length": 9}]})
    async with Stub(paths).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
        assert found.status_of("window") == "ok" or "CONTEXT_WINDOW=9" in found.fix_of("window")


async def test_an_ollama_that_does_not_sign_its_models(tmp_path: Path) -> None:
    paths = api()
    paths["GET", "/api/version"] = saying({"version": "0.9"})

    async def root(_: web.Request, __: JsonObject) -> web.StreamResponse:
        return web.Response(text="Ollama is running")

    paths["GET", "/"] = root
    async with Stub(paths).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.of("models")["server"] == "Ollama"


async def test_a_named_model_while_none_is_loaded(tmp_path: Path) -> None:
    async with Stub(api(models=saying({"data": []}))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, "--model", "mine")
    assert found.failures == []
    assert found.status_of("models") == "warn"
