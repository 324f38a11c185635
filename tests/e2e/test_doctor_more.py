"""`foldgate doctor` at servers that are wrong in ways that look like other ways."""

import asyncio
import socket
from pathlib import Path

import pytest
from aiohttp import web

from proxy.codec import Json, JsonObject, as_objects
from tests.e2e.test_doctor import (
    KEYED,
    PAGE,
    SECRET,
    Answering,
    Stub,
    api,
    chat,
    doctor,
    events,
    nothing_nearby,
    reply,
    saying,
)
from tests.e2e.test_doctor_answers import llama, picky, rendering
from tests.redis_servers import free_port

__all__ = ["nothing_nearby"]


async def _hang(_: web.Request, __: JsonObject) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


def blocked(status: int = 403) -> Answering:
    async def block(_: web.Request, __: JsonObject) -> web.StreamResponse:
        body = PAGE.replace(b"Welcome", b"Just a moment...")
        return web.Response(body=body, status=status, content_type="text/html")

    return block


# --- the URL and what listens there


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ("127.0.0.1:8080/v1", "--upstream http://127.0.0.1:8080/v1"),
        ("localhost:8080", "--upstream http://localhost:8080"),
        (" http://h.example/v1 ", "--upstream http://h.example/v1"),
        ("https://h.example/v1?version=1", "--upstream https://h.example/v1"),
        ("HTTP://h.example/v1", "--upstream http://h.example/v1"),
        ("[::1]:8080/v1", "--upstream http://[::1]:8080/v1"),
        ("", "--upstream http://HOST:PORT/v1 or https://HOST/v1 (an IPv6 HOST in brackets)"),
        (f"http://me:{SECRET}@h/v1", "--upstream http://HOST:PORT/v1"),
        ("http://::1:8080/v1", "--upstream http://HOST:PORT/v1"),
        (f"http://h.example/v1?key={SECRET}", "--upstream http://h.example/v1"),
    ],
)
async def test_a_url_that_was_meant_otherwise(tmp_path: Path, given: str, fix: str) -> None:
    found = await doctor(given, tmp_path)
    assert found.failures == ["settings"]
    assert found.fix_of("settings").startswith(fix)


async def test_it_listens_on_ipv6_only(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET6) as server:
        try:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            server.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
        server.listen()
        port = server.getsockname()[1]
        found = await doctor(f"http://127.0.0.1:{port}/v1", tmp_path)
    assert found.failures == ["upstream"]
    assert found.fix_of("upstream").startswith(f"--upstream http://[::1]:{port}/v1: something")


async def test_tls_that_never_comes_about(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        found = await doctor(f"https://127.0.0.1:{port}/v1", tmp_path, "--timeout", "0.3")
    assert found.failures == ["upstream"]
    assert "makes no TLS connection" in found.text_of("upstream")


async def test_every_path_says_that_it_is_well(tmp_path: Path) -> None:
    async with Stub(api(), saying({"status": "ok"})).running() as stub:
        found = await doctor(f"{stub.url}/api", tmp_path)
    assert found.failures == ["path"]
    assert found.fix_of("path") == f"--upstream {stub.url}/v1"


async def test_everything_fails(tmp_path: Path) -> None:
    async with Stub(otherwise=saying({"error": "boom"}, 500)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, "--free")
    assert found.failures == ["upstream"]
    assert "answers 500" in found.text_of("upstream")


@pytest.mark.parametrize(("status", "name"), [(403, "path"), (503, "upstream")])
async def test_a_wall_in_front(tmp_path: Path, status: int, name: str) -> None:
    async with Stub(otherwise=blocked(status)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, env=KEYED)
    assert found.failures == [name]
    assert "a web page refuses us" in found.text_of(name)
    assert "bot protection" in found.fix_of(name)


# --- redirects


async def test_redirects(tmp_path: Path) -> None:
    def to(place: str) -> Answering:
        async def on(_: web.Request, __: JsonObject) -> web.StreamResponse:
            return web.Response(status=307, headers={"Location": place})

        return on

    async with Stub(api(), otherwise=to("/v1/")).running() as stub:
        found = await doctor(f"{stub.url}/x", tmp_path)
        assert found.failures == ["upstream"]
        assert found.fix_of("upstream") == f"--upstream {stub.url}/v1"
        stub.paths = api(models=to("/login"))
        found = await doctor(f"{stub.url}/v1", tmp_path)
        assert found.failures == []
        assert "(/models: 307)" in found.text_of("models")
        stub.paths = api(chat=to(f"https://h.example/v1/chat/completions?key={SECRET}"))
        found = await doctor(f"{stub.url}/v1", tmp_path)
        assert found.failures == ["path"]
        assert found.fix_of("path") == "--upstream https://h.example/v1"
        stub.paths = api(models=to("/v1/models/"), chat=to("/v1/chat/completions/"))
        found = await doctor(f"{stub.url}/v1", tmp_path)
        assert "without a / at the end" in found.fix_of("upstream")


# --- the key


@pytest.mark.parametrize(
    ("status", "error", "said"),
    [
        (400, {"message": "Authentication Error, No api key passed in."}, "was refused (400)"),
        (200, {"message": "Invalid API key"}, "was refused (200)"),
        (401, {"code": "billing_not_active"}, "quota or balance"),
        (403, {"code": "insufficient_quota"}, "quota or balance"),
        (403, {"code": "unsupported_country_region_territory"}, "country or network"),
    ],
)
async def test_refusals(tmp_path: Path, status: int, error: Json, said: str) -> None:
    async with Stub(api(chat=saying({"error": error}, status))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, env=KEYED)
    assert found.failures == ["key"]
    assert said in found.text_of("key")
    if "was refused" not in said:
        assert "right key" not in found.fix_of("key")


async def test_a_model_that_the_key_may_not_use(tmp_path: Path) -> None:
    bad = picky(messages=saying({"error": {"message": "no access to model `small`"}}, 403))
    async with Stub(api(chat=bad)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, env=KEYED)
    assert found.failures == ["completion"]
    assert "--model" in found.fix_of("completion")


async def test_a_gateway_that_refuses_paths_it_does_not_know(tmp_path: Path) -> None:
    deny = saying({"message": "Missing Authentication Token"}, 403)
    async with Stub(api("/api/v1"), deny).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, env=KEYED)
    assert found.failures == ["path"]
    assert found.fix_of("path") == f"--upstream {stub.url}/api/v1"


async def test_the_list_wants_a_key_and_chat_does_not(tmp_path: Path) -> None:
    async with Stub(api(models=saying({"error": {}}, 401))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
        assert found.failures == []
        assert "chat completions do not" in found.text_of("key")
        assert found.status_of("completion") == "ok"
        found = await doctor(f"{stub.url}/v1", tmp_path, env=KEYED)
        assert found.failures == ["key"]
        stub.paths = api(
            models=saying({"error": {}}, 401), chat=picky(messages=saying({"error": {}}, 401))
        )
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.failures == ["key"]


async def test_chat_completions_hang(tmp_path: Path) -> None:
    async with Stub(api(chat=_hang)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, "--timeout", "0.3")
    assert found.failures == ["completion"]
    assert found.status_of("upstream") == "ok"
    assert "no answer within 0.3 s" in found.text_of("completion")


async def test_the_key_belongs_into_another_header(tmp_path: Path) -> None:
    async def azure(request: web.Request, body: JsonObject) -> web.StreamResponse:
        if request.headers.get("api-key") != SECRET:
            return reply({"error": {"message": "invalid subscription key"}}, 401)
        return await chat(request, body)

    async with Stub(api(chat=azure)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, env=KEYED)
        assert found.failures == ["key"]
        assert "as header api-key" in found.text_of("key")
        found = await doctor(f"{stub.url}/v1", tmp_path, env={"OPENAI_API_KEY": "wrong"})
        assert "was refused" in found.text_of("key")


async def test_a_key_in_the_place_of_its_variable(tmp_path: Path) -> None:
    found = await doctor("http://h.example", tmp_path, "--key-variable", SECRET)
    assert found.failures[0] == "key"
    assert "looks like a key" in found.text_of("key")
    env = {"FOLDGATE_UPSTREAM__KEY_VARIABLE": SECRET}
    found = await doctor("http://h.example", tmp_path, env=env)
    assert found.failures == ["settings"]
    assert "the NAME of the variable" in found.fix_of("settings")


# --- the path


async def test_a_path_without_a_version_once_it_is_set_right(tmp_path: Path) -> None:
    async with Stub(api("/api")).running() as stub:
        found = await doctor(stub.url, tmp_path)
        assert found.failures == []
        assert found.status_of("path") == "warn"
        assert "127.0.0.1:PORT/api as the clients'" in found.fix_of("path")
        assert found.status_of("completion") == "ok"
        stub.paths = api("")
        assert (await doctor(stub.url, tmp_path)).failures == ["path"]


async def test_a_server_for_embeddings_only(tmp_path: Path) -> None:
    text = "This server does not support completions. Start it without `--embeddings`"
    error: Json = {"code": 501, "message": text, "type": "not_supported_error"}
    async with Stub(api(chat=saying({"error": error}, 501))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.failures == ["path"]
    assert "without --embeddings" in found.fix_of("path")


# --- models


@pytest.mark.parametrize("model", [(), ("--model", "small")], ids=["none", "named"])
async def test_a_list_that_hangs(tmp_path: Path, model: tuple[str, ...]) -> None:
    async with Stub(api(models=_hang)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, "--timeout", "0.5", *model)
    assert found.failures == []
    assert "(/models: no answer within 0.5 s)" in found.text_of("models")
    assert found.status_of("completion") == "ok"


async def test_an_empty_list_where_no_name_is_needed(tmp_path: Path) -> None:
    async with Stub(api(models=saying({"object": "list", "data": []}))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
        assert found.failures == []
        assert "empty" in found.text_of("models")
        found = await doctor(f"{stub.url}/v1", tmp_path, "--free")
        assert found.failures == ["models"]


async def test_a_list_of_bare_names(tmp_path: Path) -> None:
    async with Stub(api(models=saying({"data": ["small", "large"]}))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert "2 models: small, large" in found.text_of("models")


async def test_no_name_is_known_and_none_is_not_enough(tmp_path: Path) -> None:
    bad = picky(messages=saying({"detail": "unknown deployment"}, 422))
    async with Stub(api(models=saying({}, 404), chat=bad)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.failures == ["completion"]
    assert "--model NAME" in found.fix_of("completion")


async def test_names_that_draw_on_the_terminal(tmp_path: Path) -> None:
    evil = saying({"data": [{"id": "small\x1b[31m\nFAIL  forged"}]})
    async with Stub(api(models=evil)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.failures == []
    assert found.text_of("models").isprintable()


# --- completions and tools


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: events(b'{"choices": []}'), "answered with one"),
        (lambda: reply({"error": {"message": "overloaded"}}), "an error in it"),
    ],
    ids=["stream", "error"],
)
async def test_odd_successes(tmp_path: Path, answer: type[web.Response], said: str) -> None:
    async def odd(_: web.Request, __: JsonObject) -> web.StreamResponse:
        return answer()

    async with Stub(api(chat=picky(messages=odd))).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.failures == ["completion"]
    assert said in found.text_of("completion")


async def test_results_of_tools_are_refused(tmp_path: Path) -> None:
    def has_result(body: JsonObject) -> bool:
        return any(message.get("tool_calls") for message in as_objects(body.get("messages")))

    async def bare(request: web.Request, body: JsonObject) -> web.StreamResponse:
        if has_result(body):
            return reply({"error": {"message": "only user and assistant roles"}}, 400)
        return await chat(request, body)

    async def render(request: web.Request, body: JsonObject) -> web.StreamResponse:
        return await (bare if has_result(body) else rendering("tools"))(request, body)

    async with Stub(api(chat=bare)).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
        assert found.failures == []
        assert found.text_of("tools").startswith("conversations with tool calls and their results")
        stub.paths = llama(render)
        found = await doctor(f"{stub.url}/v1", tmp_path, "--free")
    assert "ignored silently, and conversations with tool calls" in found.text_of("tools")


async def test_all_slots_are_busy(tmp_path: Path) -> None:
    paths = llama(rendering())
    paths["POST", "/v1/chat/completions"] = picky(messages=_hang)
    paths["GET", "/slots"] = saying([{"id": 0, "is_processing": True}])
    async with Stub(paths).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path, "--timeout", "0.5")
        assert "its only slot is busy" in found.text_of("completion")
        stub.paths["GET", "/slots"] = saying([{"id": 0, "is_processing": False}])
        found = await doctor(f"{stub.url}/v1", tmp_path, "--timeout", "0.5")
    assert "busy" not in found.text_of("completion")


# --- profiles


async def test_upstreams_of_profiles(tmp_path: Path) -> None:
    config = tmp_path / "foldgate.toml"
    async with Stub(api()).running() as stub, Stub(api()).running() as other:
        config.write_text(f'[[profiles]]\nmodel = "big*"\nbase_url = "{other.url}/v1"\n')
        found = await doctor(f"{stub.url}/v1", tmp_path, "--config", str(config), "--free")
        assert found.status_of("profile") == "ok"

        env = {"FOLDGATE_UPSTREAM__BASE_URL": f"{stub.url}/v1"}
        args = ("--config", str(config), "--free", "--model", "small")
        found = await doctor(None, tmp_path, *args, env=env)
        assert found.document["upstream"] == f"{stub.url}/v1"
        config.write_text(config.read_text().replace("big*", "sm*"))
        found = await doctor(None, tmp_path, *args, env=env)
        assert found.document["upstream"] == f"{other.url}/v1"

        more = 'key_variable = "OPENAI_API_KEY"\n'
        config.write_text(config.read_text() + more)
        other.paths = api(chat=saying({"error": {}}, 401))
        found = await doctor(f"{stub.url}/v1", tmp_path, *args[:3], env=KEYED)
        assert found.failures == ["profile"]
        assert "sm*: the key in OPENAI_API_KEY was refused" in found.text_of("profile")

        config.write_text(
            f'[[profiles]]\nmodel = "big*"\nbase_url = "http://127.0.0.1:{free_port()}"\n'
        )
        found = await doctor(f"{stub.url}/v1", tmp_path, *args[:3])
    assert found.failures == ["profile"]
    assert "big*: nothing listens" in found.text_of("profile")
    assert "base_url of the profile" in found.fix_of("profile")
