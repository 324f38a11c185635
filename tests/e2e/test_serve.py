"""The command line and the life of the process: start, refuse, reload, drain."""

import asyncio
import signal
import socket
import sqlite3
import tomllib
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

import aiohttp
import pytest
from typer.testing import CliRunner

from proxy import __main__ as command_line
from proxy.codec import Json, JsonObject, loads
from proxy.settings import load_settings
from tests import builders as b
from tests.e2e.raw import RawUpstream, exchange, reply, request
from tests.e2e.running import NotServing, Running, Served, command, store_url
from tests.upstream import Reply, ScriptedUpstream

CHAT = "/v1/chat/completions"
WHOLE = b.chat_body([b.user("hi")])
STREAMED = b.chat_body([b.user("hi")], stream=True)
UPSTREAM = "http://127.0.0.1:9/v1"


class Refused(Protocol):
    def __call__(self, *args: str, store: bool = True) -> str: ...


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Runs a command in this process that must refuse; returns what it said."""
    monkeypatch.setattr(command_line, "configure_log", lambda: None)
    monkeypatch.setenv("FOLDGATE_UPSTREAM__DISCOVER", "false")

    def invoke(*args: str, store: bool = True) -> str:
        more = ["--store", store_url(tmp_path), "--port", "0"] if store else []
        result = CliRunner().invoke(command_line.app, [*args, *more])
        assert result.exit_code == 1, result.output
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        assert all(line.startswith("foldgate: ") for line in result.stderr.splitlines())
        return result.stderr

    return invoke


async def post(client: aiohttp.ClientSession, url: str, body: bytes = WHOLE) -> JsonObject:
    async with client.post(url + CHAT, data=body) as response:
        assert response.status == 200
        document = loads(await response.read())
        assert isinstance(document, dict)
        return document


# Starting


async def test_the_ready_line_is_text_for_people(up: ScriptedUpstream, tmp_path: Path) -> None:
    up.window = 16_384
    async with Served(up.url, tmp_path, json_lines=False) as fold:
        assert fold.stdout == [
            f"foldgate listening on {fold.url} -> {up.base_url} "
            f"(store {store_url(tmp_path)}, window 16384 from models)\n"
        ]
        assert await fold.terminate() == 0
    assert len(fold.stdout) == 1


async def test_the_ready_line_is_json_for_programs(up: ScriptedUpstream, tmp_path: Path) -> None:
    async with Served(up.base_url, tmp_path, args=["--shadow"]) as fold:
        ready = dict(fold.ready)
        assert str(ready.pop("time")).endswith("Z")
        assert ready == {
            "schema": 1,
            "type": "listening",
            "url": fold.url,
            "upstream": up.base_url,
            "store": store_url(tmp_path),
            "window": None,
            "window_source": "unknown",
            "shadow": True,
        }
        assert not fold.url.endswith(":0")
        assert await fold.terminate() == 0
    assert fold.log == ""


def test_a_port_that_is_taken(refused: Refused, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        store = ("--store", store_url(tmp_path))
        text = refused("serve", "--upstream", UPSTREAM, *store, "--port", port, store=False)
        assert f"cannot listen on 127.0.0.1:{port} (" in text
        assert "choose another --port" in text


def test_an_address_that_is_not_ours(refused: Refused) -> None:
    text = refused("serve", "--upstream", UPSTREAM, "--host", "192.0.2.1")
    assert "cannot listen on 192.0.2.1:0 (" in text


async def test_the_version(tmp_path: Path) -> None:
    finished = await command("--version", folder=tmp_path)
    assert finished.code == 0
    assert finished.stdout == f"foldgate {version('foldgate')}\n"


# Refusing to start


def test_a_missing_upstream(refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLDGATE_UPSTREAM__DISCOVER", "false")
    assert "upstream.base_url: name the upstream" in refused("serve")


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--upstream", "ftp://x"), "upstream.base_url: must be an http:// or https:// URL"),
        (("--upstream", "http://u:p@x/v1"), "must not hold a user name or password"),
        (("--upstream", "http://x:99999/v1"), "must hold a host and a port from 1 to 65535"),
        (("--upstream", "http://[::1/v1"), "must hold a host and a port from 1 to 65535"),
        (("--upstream", "http://x:0/v1"), "must not name port 0"),
        (("--upstream", "http://x/v1?key=1"), "must not hold spaces, a query or a fragment"),
        (("--upstream", UPSTREAM, "--store", "redis:x"), "store.url: must be sqlite:///PATH"),
        (("--upstream", UPSTREAM, "--store", "redis://u:p@x:y"), "store.url: must name"),
    ],
)
def test_a_bad_argument(refused: Refused, args: tuple[str, ...], expected: str) -> None:
    text = refused("serve", *args, store="--store" not in args)
    assert expected in text
    assert "u:p" not in text


def test_an_unknown_option(tmp_path: Path) -> None:
    result = CliRunner().invoke(command_line.app, ["serve", "--thresold", "1"])
    assert result.exit_code == 2
    assert "--thresold" in result.stderr


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("FOLDGATE_COMPACTION__TRESHOLD", "0.5", "compaction.treshold: unknown setting"),
        ("FOLDGATE_COMPACTOIN__THRESHOLD", "0.5", "FOLDGATE_COMPACTOIN__THRESHOLD: no such"),
        ("FOLDGATE_PORT", "1", "FOLDGATE_PORT: no such setting"),
        ("FOLDGATE_SERVER__PORT", "many", "server.port: "),
        ("FOLDGATE_COMPACTION__THRESHOLD", "1.5", "compaction.threshold: "),
        ("FOLDGATE_UPSTREAM__KEY_VARIABLE", "NOT_SET_HERE", "NOT_SET_HERE is not set"),
        ("FOLDGATE_UPSTREAM__CA_FILE", "/no/such.pem", "upstream.ca_file: there is no file"),
        ("FOLDGATE_PROFILES", "[{", "not valid JSON"),
    ],
)
def test_a_bad_variable(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(name, value)
    port = ("--port", "0") if name != "FOLDGATE_SERVER__PORT" else ()
    assert expected in refused("serve", "--upstream", UPSTREAM, *port, store=False)


CONFIGS = {
    "unknown key": ("a.toml", "[compaction]\ntreshold = 0.5\n", "compaction.treshold: unknown"),
    "unknown section": ("a.toml", "[compactoin]\nx = 1\n", "compactoin: unknown setting"),
    "unknown profile key": ("a.toml", '[[profiles]]\nmodel="m"\nx=1\n', "profiles.0.x: unknown"),
    "a profile without a model": ("a.toml", "[[profiles]]\nauto=true\n", "profiles.0.model: "),
    "a section that is none": ("a.toml", "compaction = 3\n", "compaction: "),
    "not toml": ("a.toml", "[compaction\n", "a.toml is not valid TOML: "),
    "not text": ("a.toml", "\udcff", "a.toml is not valid TOML: "),
    "not json": ("a.json", "{", "a.json is not valid JSON"),
    "an agent's setting": (
        "a.json",
        '{"limits": {"maxTokens": 5}, "provider": {"model": "x"}}',
        "limits.maxTokens: this setting steers the agent itself, which a proxy does not do",
    ),
    "unknown in the specification": (
        "a.json",
        '{"compaction": {"treshold": 1}}',
        "compaction.treshold: unknown setting; known are auto, keepTurns",
    ),
    "out of bounds": ("a.json", '{"compaction": {"keepTurns": 99}}', "compaction.keep_turns: "),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_bad_config_file(refused: Refused, tmp_path: Path, name: str) -> None:
    file, text, expected = CONFIGS[name]
    (tmp_path / file).write_bytes(text.encode("utf-8", "surrogateescape"))
    said = refused("serve", "--upstream", UPSTREAM, "--config", str(tmp_path / file))
    assert expected in said


def test_a_config_file_that_cannot_be_read(refused: Refused, tmp_path: Path) -> None:
    said = refused("serve", "--config", str(tmp_path / "none.toml"))
    assert f"config file {tmp_path / 'none.toml'}: No such file" in said
    assert f"config file {tmp_path}: Is a directory" in refused("serve", "--config", str(tmp_path))


def test_a_store_that_is_a_folder(refused: Refused, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}"
    said = refused("serve", "--upstream", UPSTREAM, "--store", url, "--port", "0", store=False)
    assert str(tmp_path) in said


def test_a_store_in_a_place_that_cannot_be_made(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    url = f"sqlite:///{tmp_path}/file/foldgate.db"
    said = refused("serve", "--upstream", UPSTREAM, "--store", url, "--port", "0", store=False)
    assert str(tmp_path / "file") in said


def test_a_store_that_is_no_database(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "foldgate.db").write_bytes(b"this is not a database, by far" * 100)
    said = refused("serve", "--upstream", UPSTREAM)
    assert "foldgate.db" in said
    assert "SQLITE_NOTADB" in said
    assert (tmp_path / "foldgate.db").read_bytes().startswith(b"this is not")


def test_a_store_of_a_newer_version(refused: Refused, tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "foldgate.db")
    database.execute("PRAGMA user_version = 9999")
    database.close()
    said = refused("serve", "--upstream", UPSTREAM)
    assert "foldgate.db" in said
    assert "newer" in said


async def test_a_refusal_ends_the_process(tmp_path: Path) -> None:
    with pytest.raises(NotServing, match=r"exit code 1:\nfoldgate: upstream\.base_url: name the"):
        async with Served(None, tmp_path, env={"FOLDGATE_UPSTREAM__DISCOVER": "false"}):
            pass


# Showing the settings


CONFIG = """
[server]
keepalive_seconds = 2.5
request_headers = []

[upstream]
base_url = "http://there.test/v1"

[compaction]
threshold = 0.5

[tenancy]
source = "header"
key = "a-secret-hash-key"
trusted_proxies = ["10.0.0.0/8", "fd00::/8"]

[[profiles]]
model = "gpt-*"
context_window = 9000
fallback = "none"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "foldgate.toml"
    path.write_text(CONFIG)
    return path


def shown(*args: str) -> str:
    result = CliRunner().invoke(command_line.app, ["config", *args])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_settings_as_toml_can_be_read_again(config: Path, tmp_path: Path) -> None:
    text = shown("--config", str(config))
    assert "a-secret-hash-key" not in text
    assert "threshold = 0.5  # changed" in text
    assert "keep_turns = 2\n" in text
    again = tmp_path / "again.toml"
    again.write_text(text)
    assert shown("--config", str(again)) == text
    assert load_settings(again, {}, {}).profiles == load_settings(config, {}, {}).profiles


def test_the_settings_as_json(config: Path) -> None:
    text = shown("--config", str(config), "--json")
    assert "a-secret-hash-key" not in text
    document = loads(text)
    assert isinstance(document, dict)
    assert document["server"] == {
        **load_settings(None, {}, {}).server.model_dump(mode="json"),
        "keepalive_seconds": 2.5,
        "request_headers": [],
    }
    profiles: list[Json] = [{"model": "gpt-*", "context_window": 9000, "fallback": "none"}]
    assert document["profiles"] == profiles


def test_a_variable_names_the_config_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOLDGATE_CONFIG", str(config))
    monkeypatch.setenv("FOLDGATE_COMPACTION__THRESHOLD", "0.6")
    document = tomllib.loads(shown())
    assert document["upstream"]["base_url"] == "http://there.test/v1"
    assert document["compaction"]["threshold"] == 0.6


async def test_a_specification_file_is_a_config_file(up: ScriptedUpstream, tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    text = b'{"provider": {"contextWindow": 4096}, "compaction": {"auto": false, "keepTurns": 3}}'
    path.write_bytes(text)
    async with Served(up.url, tmp_path, env={"FOLDGATE_CONFIG": str(path)}) as fold:
        assert fold.ready["window"] == 4096
        assert fold.ready["window_source"] == "settings"


# Draining


async def test_sigterm_lets_a_stream_finish(
    up: ScriptedUpstream, tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    gate = asyncio.Event()
    up.replies.append(Reply(text="one two three four", gate=gate))
    async with Served(up.base_url, tmp_path) as fold:
        async with client.post(fold.url + CHAT, data=STREAMED) as stream:
            assert await stream.content.readany()
            fold.signal(signal.SIGTERM)
            await fold.wait_log("draining")
            answer = await exchange(fold.url, request("POST", CHAT, WHOLE))
            assert answer.status == 503
            assert answer.get("Retry-After") == "5"
            assert answer.get("Connection") == "close"
            assert b'"code":"shutting_down"' in answer.body
            ready = await exchange(fold.url, request("GET", "/_foldgate/ready"))
            assert ready.status == 503
            gate.set()
            assert (await stream.read()).endswith(b"data: [DONE]\n\n")
        assert await fold.wait() == 0
    assert len(up.main) == 1


@pytest.mark.slow
async def test_a_stream_longer_than_the_drain_is_cut(
    up: ScriptedUpstream, tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    up.replies.append(Reply(text="one two three four", gate=asyncio.Event()))
    env = {"FOLDGATE_SERVER__DRAIN_SECONDS": "0.2"}
    async with Served(up.base_url, tmp_path, env=env) as fold:
        async with client.post(fold.url + CHAT, data=STREAMED) as stream:
            assert await stream.content.readany()
            fold.signal(signal.SIGTERM)
            with pytest.raises(aiohttp.ClientError):
                await stream.read()
        assert await fold.wait(5) == 0
        assert "drain_cut_short" in fold.log
        assert "Traceback" not in fold.log
    await up.wait_for(lambda: up.main[0].disconnected)


async def test_sigint_with_idle_connections_ends_at_once(
    up: ScriptedUpstream, tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    async with Served(up.base_url, tmp_path) as fold:
        await post(client, fold.url)
        fold.signal(signal.SIGINT)
        assert await fold.wait(5) == 0


# Reloading


async def test_sighup_takes_the_changed_file_over(
    up: ScriptedUpstream, tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    config = tmp_path / "foldgate.toml"
    config.write_text("[compaction]\nthreshold = 0.99\n[upstream]\ncontext_window = 100000\n")
    body = b.chat_body(b.tool_session(12))
    async with Served(up.base_url, tmp_path, args=["--config", str(config)]) as fold:
        await post(client, fold.url, body)
        assert fold.events == []

        config.write_text("[compaction]\nthreshold = 2\n")
        fold.signal(signal.SIGHUP)
        await fold.wait_log("reload_refused")
        assert "compaction.threshold: " in fold.log
        await post(client, fold.url, body)
        assert fold.events == []

        config.write_text(
            "[compaction]\nthreshold = 0.5\n[upstream]\ncontext_window = 8000\n"
            "[server]\nmemo_bytes = 1000000\n"
        )
        fold.signal(signal.SIGHUP)
        await fold.wait_log("reloaded")
        await fold.wait_log("reload_needs_restart")
        assert "server.memo_bytes" in fold.log
        await post(client, fold.url, body)
        started = await fold.wait_event("compaction_started")
        assert started["window"] == 8000
        assert started["trigger"] == 4000
        assert await fold.terminate() == 0


# Profiles


async def test_a_profile_sends_its_models_elsewhere_with_their_own_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_KEY", "sk-theirs")
    async with RawUpstream() as ours, RawUpstream() as theirs, RawUpstream() as keyless:
        profiles: list[Json] = [
            {
                "model": "their-*",
                "base_url": theirs.url + "/api",
                "key_variable": "THEIR_KEY",
                "context_window": 10_000,
            },
            {"model": "free-*", "base_url": keyless.base_url, "context_window": 10_000},
        ]
        settings: dict[str, Json] = {"profiles": profiles, "upstream.context_window": 10_000}
        async with Running(ours.base_url, tmp_path, **settings) as fold:
            for model in ("their-model", "free-model", "our-model"):
                body = b.chat_body([b.user("hi")], model=model)
                secrets = [
                    ("Authorization", "Bearer sk-mine"),
                    ("api-key", "sk-mine"),
                    ("Cookie", "sk-mine"),
                    ("X-Kept", "1"),
                ]
                answer = await exchange(fold.url, request("POST", CHAT, body, *secrets))
                assert answer.status == 200
    assert theirs.last.target == "/api/v1/chat/completions"
    assert theirs.last.all("Authorization") == ["Bearer sk-theirs"]
    assert keyless.last.all("Authorization") == []
    assert ours.last.all("Authorization") == ["Bearer sk-mine"]
    for upstream in (theirs, keyless):
        assert upstream.last.get("X-Kept") == "1"
        assert "sk-mine" not in str(upstream.last.headers)


async def test_the_proxy_may_have_a_key_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_KEY", "sk-ours")
    settings: dict[str, Json] = {"upstream.key_variable": "OUR_KEY"}
    async with RawUpstream() as raw, Running(raw.base_url, tmp_path, **settings) as fold:
        for path in (CHAT, "/v1/models"):
            await exchange(fold.url, request("POST", path, b"", ("Authorization", "Bearer mine")))
            assert raw.last.all("Authorization") == ["Bearer sk-ours"]


async def test_a_profile_has_its_own_window_and_rules(
    up: ScriptedUpstream, tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    profiles: list[Json] = [
        {"model": "small-*", "context_window": 8000, "threshold": 0.5},
        {"model": "never-*", "context_window": 8000, "auto": False},
    ]
    settings: dict[str, Json] = {"profiles": profiles, "upstream.context_window": 100_000}
    async with Running(up.base_url, tmp_path, **settings) as fold:
        for model in ("large-1", "never-1", "small-1"):
            await post(client, fold.url, b.chat_body(b.tool_session(12), model=model))
        started = fold.events.of_type("compaction_started")
    assert [(event["window"], event["trigger"]) for event in started] == [(8000, 4000)]
    assert [record.json["model"] for record in up.summaries] == ["small-1"]


async def test_a_summary_of_a_profile_goes_to_its_upstream(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    async with ScriptedUpstream() as ours, ScriptedUpstream() as theirs:
        profiles: list[Json] = [{"model": "t", "base_url": theirs.base_url, "context_window": 8000}]
        async with Running(ours.base_url, tmp_path, profiles=profiles) as fold:
            body = b.chat_body(b.tool_session(20), model="t")
            headers = {"Authorization": "Bearer sk-mine"}
            async with client.post(fold.url + CHAT, data=body, headers=headers) as response:
                assert response.status == 200
    assert ours.requests == []
    assert theirs.summaries
    assert all("Authorization" not in record.headers for record in theirs.requests)


# Our own pages


@pytest.fixture
async def raw() -> AsyncIterator[RawUpstream]:
    async with RawUpstream() as upstream:
        yield upstream


async def test_live_and_ready(raw: RawUpstream, tmp_path: Path) -> None:
    async with Running(raw.base_url, tmp_path) as fold:
        live = await exchange(fold.url, request("GET", "/_foldgate/live"))
        ready = await exchange(fold.url, request("GET", "/_foldgate/ready"))
        none = await exchange(fold.url, request("GET", "/_foldgate/none"))
    assert (live.status, bytes(live.body)) == (200, b'{"status":"ok"}')
    assert ready.status == 200
    assert loads(bytes(ready.body)) == {"status": "ok", "store": "ok", "pending_writes": 0}
    assert none.status == 404
    assert raw.requests == []


async def test_the_pages_can_be_switched_off(raw: RawUpstream, tmp_path: Path) -> None:
    async with Running(raw.base_url, tmp_path, **{"admin.health": False}) as fold:
        for page in ("live", "ready"):
            answer = await exchange(fold.url, request("GET", f"/_foldgate/{page}"))
            assert answer.status == 404
    assert raw.requests == []


async def test_the_upstreams_own_pages_are_its_own(raw: RawUpstream, tmp_path: Path) -> None:
    async with Running(raw.base_url, tmp_path) as fold:
        for path in ("/health", "/metrics", "/live", "/v1/_foldgate/live"):
            raw.replies.append(reply("200 OK", b"theirs"))
            answer = await exchange(fold.url, request("GET", path))
            assert answer.body == b"theirs"
            assert raw.last.target == path
    assert len(raw.requests) == 4
