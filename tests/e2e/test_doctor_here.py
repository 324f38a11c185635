"""`foldgate doctor`: settings, port, store, clock, tenants, and its own end."""

import asyncio
import os
import signal
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from proxy.codec import Json
from tests import redis_servers as servers
from tests.e2e.running import ROOT, Running, store_url
from tests.e2e.test_doctor import SECRET, Stub, api, doctor, nothing_nearby
from tests.redis_servers import RedisServer, free_port
from tests.upstream import Recorded, Reply, ScriptedUpstream

__all__ = ["nothing_nearby"]
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl"


# --- settings


@pytest.mark.parametrize(
    ("text", "said", "fix"),
    [
        ("[upstream]\nbase_ur = 'http://h'\n", "upstream.base_ur: unknown setting", "base_url"),
        ("[upstrem]\n", "upstrem: unknown setting", "write upstream"),
        ("[server]\nport = 'x'\n", "server.port: ", "FOLDGATE_SERVER__PORT"),
        ("[server\n", "is not valid TOML", "--config FILE"),
        ("[upstream]\nkey_variable = 'NO_SUCH_KEY'\n", "NO_SUCH_KEY is not set", "export NO_SUCH"),
        ("[upstream]\nca_file = '/no/such.pem'\n", "there is no file", "correct upstream.ca_file"),
    ],
)
async def test_settings_that_cannot_be_used(tmp_path: Path, text: str, said: str, fix: str) -> None:
    config = tmp_path / "foldgate.toml"
    config.write_text(text)
    # The environment would hide what the file says of the port.
    found = await doctor(
        None, tmp_path, "--config", str(config), env={"FOLDGATE_SERVER__PORT": None}
    )
    assert found.failures == ["settings"]
    assert said in found.text_of("settings")
    assert fix in found.fix_of("settings")
    assert len(found.document["findings"]) == 1  # type: ignore[arg-type]


async def test_each_wrong_setting_is_a_line(tmp_path: Path) -> None:
    config = tmp_path / "foldgate.json"
    config.write_text('{"compaction": {"treshold": 1}, "provider": {"contextWidow": 1}}')
    found = await doctor(None, tmp_path, "--config", str(config))
    assert found.failures == ["settings", "settings"]
    missing = await doctor(None, tmp_path, "--config", str(tmp_path / "none.toml"))
    assert "No such file" in missing.text_of("settings")


async def test_variables_that_are_wrong(tmp_path: Path) -> None:
    found = await doctor(None, tmp_path, env={"FOLDGATE_UPSTRAEM__BASE_URL": "http://h"})
    assert found.failures == ["settings"]
    assert "unset FOLDGATE_UPSTRAEM__BASE_URL" in found.fix_of("settings")
    found = await doctor("ftp://h", tmp_path)
    assert "http://HOST:PORT/v1" in found.fix_of("settings")
    found = await doctor(None, tmp_path, "--store", "mysql://h")
    assert "store.url" in found.fix_of("settings")


# --- port


async def test_a_port_that_foldgate_has(up: ScriptedUpstream, tmp_path: Path) -> None:
    async with Running(up.base_url, tmp_path) as fold:
        env = {"FOLDGATE_SERVER__PORT": fold.url.rpartition(":")[2]}
        found = await doctor(up.base_url, tmp_path, env=env)
    assert found.code == 0
    assert "foldgate is running there" in found.text_of("port")
    quiet: dict[str, Json] = {"admin.health": False}
    async with Running(up.base_url, tmp_path / "other", **quiet) as fold:
        env = {"FOLDGATE_SERVER__PORT": fold.url.rpartition(":")[2]}
        found = await doctor(up.base_url, tmp_path, env=env)
    assert "foldgate is running there" in found.text_of("port")


async def test_a_port_that_another_has(up: ScriptedUpstream, tmp_path: Path) -> None:
    async with Stub(api(), headers={"Server": "other/1"}).running() as stub:
        env = {"FOLDGATE_SERVER__PORT": stub.url.rpartition(":")[2]}
        found = await doctor(up.base_url, tmp_path, env=env)
    assert found.failures == ["port"]
    assert "taken by another program (other/1)" in found.text_of("port")
    assert f"--port {found.of('port')['free_port']}" in found.fix_of("port")
    assert "--port 0" in found.fix_of("port")


async def test_a_port_that_a_silent_program_has(up: ScriptedUpstream, tmp_path: Path) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    env = {"FOLDGATE_SERVER__PORT": str(server.sockets[0].getsockname()[1])}
    found = await doctor(up.base_url, tmp_path, env=env)
    server.close()
    assert found.failures == ["port"]
    assert "taken by another program" in found.text_of("port")


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
async def test_an_address_that_is_not_ours(up: ScriptedUpstream, tmp_path: Path, host: str) -> None:
    env = {"FOLDGATE_SERVER__HOST": host, "FOLDGATE_SERVER__PORT": str(free_port())}
    found = await doctor(up.base_url, tmp_path, env=env)
    assert found.failures == ["port"]
    assert "--host 127.0.0.1" in found.fix_of("port")


# --- store


@pytest.mark.parametrize("kind", ["folder", "below a file", "no store"])
async def test_a_store_that_cannot_be_used(up: ScriptedUpstream, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "place.db"
    if kind == "folder":
        path.mkdir()
    elif kind == "no store":
        path.write_bytes(b"certainly no database" * 100)
    else:
        path.write_text("file")
        path = path / "below.db"
    found = await doctor(up.base_url, tmp_path, "--store", f"sqlite:///{path}")
    assert found.failures == ["store"]
    assert found.fix_of("store")
    # The upstream is looked at all the same.
    assert found.status_of("completion") == "ok"


async def test_a_store_that_is_fine_and_one_of_a_newer_version(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    url = store_url(tmp_path)
    async with Running(up.base_url, tmp_path):
        pass
    found = await doctor(up.base_url, tmp_path, "--store", url)
    assert found.status_of("store") == "ok"
    assert "0 sessions" in found.text_of("store")
    with closing(sqlite3.connect(tmp_path / "foldgate.db")) as db:
        db.execute("PRAGMA user_version = 9999")
        db.commit()
    found = await doctor(up.base_url, tmp_path, "--store", url)
    assert found.failures == ["store"]


async def test_a_redis_that_is_not_there(up: ScriptedUpstream, tmp_path: Path) -> None:
    url = f"redis://:{SECRET}@127.0.0.1:{free_port()}/0"
    found = await doctor(up.base_url, tmp_path, "--store", url)
    assert "store" in found.failures
    assert "redis://:***@127.0.0.1" in found.text_of("store")


async def test_the_clock_of_redis_and_the_key_for_its_tenants(
    up: ScriptedUpstream, tmp_path: Path
) -> None:
    if servers.default_binary() is None:
        pytest.skip(servers.NO_SERVER)
    env = {"FOLDGATE_SERVER__HOST": "0.0.0.0"}
    async with RedisServer(tmp_path / "redis") as redis:
        found = await doctor(up.base_url, tmp_path, "--store", redis.url, env=env)
        assert found.failures == ["store"]
        assert "FOLDGATE_TENANCY__KEY=hex:" in found.fix_of("store")
        env["FOLDGATE_TENANCY__KEY"] = f"hex:{'ab' * 32}"
        found = await doctor(up.base_url, tmp_path, "--store", redis.url, env=env)
    assert found.failures == []
    assert found.text_of("clock") == "agrees with that of Redis"


# --- clock and tenants


@pytest.mark.parametrize(
    ("seconds", "status"), [(0, "ok"), (-20, "warn"), (20, "warn"), (3600, "FAIL"), (-90, "FAIL")]
)
async def test_the_clock(tmp_path: Path, seconds: int, status: str) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)
    async with Stub(api(), headers={"Date": date}).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert found.status_of("clock") == status
    if status != "ok":
        assert "NTP" in found.fix_of("clock")
        assert ("behind" if seconds > 0 else "ahead of") in found.text_of("clock")


async def test_a_date_out_of_a_cache_or_none_at_all(tmp_path: Path) -> None:
    old = {"Date": "Mon, 01 Jan 2024 00:00:00 GMT", "Age": "99"}
    async with Stub(api(), headers=old).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert "not compared" in found.text_of("clock")
    async with Stub(api(), headers={"Date": "yesterday"}).running() as stub:
        found = await doctor(f"{stub.url}/v1", tmp_path)
    assert "not compared" in found.text_of("clock")


@pytest.mark.parametrize(
    ("host", "source", "key", "status"),
    [
        ("0.0.0.0", "auto", TOKEN, "warn"),
        ("127.0.0.1", "credential", TOKEN, "warn"),
        ("127.0.0.1", "auto", TOKEN, "ok"),
        ("0.0.0.0", "fixed", TOKEN, "ok"),
        ("0.0.0.0", "auto", SECRET, "ok"),
    ],
)
async def test_a_key_that_is_renewed_often(
    up: ScriptedUpstream, tmp_path: Path, host: str, source: str, key: str, status: str
) -> None:
    env = {"FOLDGATE_SERVER__HOST": host, "FOLDGATE_TENANCY__SOURCE": source, "MINE": key}
    found = await doctor(up.base_url, tmp_path, "--key-variable", "MINE", env=env)
    assert found.status_of("tenancy") == status
    assert TOKEN not in found.text
    if status == "warn":
        assert 'tenancy.source = "header"' in found.fix_of("tenancy")
        assert '"fixed"' in found.fix_of("tenancy")


# --- its end


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
async def test_ctrl_c(tmp_path: Path) -> None:
    async with ScriptedUpstream() as up:
        up.reply = _hang
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "proxy", "doctor", "--upstream", up.base_url),
            cwd=ROOT,
            env={**os.environ, "HOME": str(tmp_path), "FOLDGATE_SERVER__PORT": "0"},  # noqa: TID251
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            await up.wait_for(lambda: any(r.json.get("messages") for r in up.main), 20.0)
            process.send_signal(signal.SIGINT)
            stdout, stderr = await asyncio.wait_for(process.communicate(), 20.0)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert process.returncode == 130
    # What was found until then has been shown.
    assert b"ok    path" in stdout
    assert stderr == b""


def _hang(_: Recorded) -> Reply:
    return Reply(hang=True)


async def test_a_model_that_takes_too_long(tmp_path: Path) -> None:
    async with ScriptedUpstream(window=8192) as up:
        up.reply = _hang
        found = await doctor(up.base_url, tmp_path, "--timeout", "0.5")
    assert found.status_of("completion") == "warn"
    assert "no answer within 0.5 s" in found.text_of("completion")
    assert "--timeout" in found.fix_of("completion")
    assert found.status_of("streaming") == ""
