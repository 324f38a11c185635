"""`foldgate store`: moving sessions to Redis and back, and what the commands say."""

import asyncio
import contextlib
import os
import re
import signal
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from typer.testing import CliRunner

from proxy.__main__ import app
from proxy.codec import Json, JsonObject, loads
from proxy.sessions.sqlite_store import SqliteStore
from tests import builders as b
from tests import redis_servers as servers
from tests.contract.response_store_contract import record, response
from tests.contract.session_store_contract import (
    ANCHOR,
    GENEROUS,
    NOW,
    archive_of,
    checkpoint_change,
    make_checkpoint,
)
from tests.e2e import checks
from tests.e2e.checks import Agent
from tests.e2e.running import ROOT, Finished, Running, command, store_url
from tests.redis_servers import RedisServer, StallingProxy
from tests.upstream import ScriptedUpstream

WINDOW = 8192
PASSWORD = "s3cret/pass"
KEYS = {"Authorization": "Bearer one"}

pytestmark = pytest.mark.skipif(servers.default_binary() is None, reason=servers.NO_SERVER)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RedisServer]:
    async with RedisServer(tmp_path_factory.mktemp("redis"), password=PASSWORD) as server:
        yield server


@pytest.fixture
async def redis(running: RedisServer) -> RedisServer:
    """An empty one."""
    await running.command("FLUSHALL")
    return running


async def store(*args: str, folder: Path, **env: str) -> Finished:
    """Run `foldgate store ARGS` in this process, on a thread of its own."""
    variables = {"HOME": str(folder), "XDG_DATA_HOME": None, "COLUMNS": "200", **env}
    done = await asyncio.to_thread(CliRunner().invoke, app, ["store", *args], env=variables)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return discreet(Finished(done.exit_code, done.stdout, done.stderr))


async def process(*args: str, folder: Path) -> Finished:
    """Run `foldgate store ARGS` as a process of its own."""
    return discreet(await command("store", *args, folder=folder, seconds=60.0))


def discreet(done: Finished) -> Finished:
    assert "Traceback" not in done.stderr
    assert "s3cret" not in done.stdout + done.stderr
    return done


def parsed(done: Finished) -> JsonObject:
    value = loads(done.stdout)
    assert isinstance(value, dict), done.stdout
    return value


def findings(done: Finished) -> dict[str, JsonObject]:
    found = parsed(done)["findings"]
    assert isinstance(found, list)
    return {str(f["name"]): f for f in found if isinstance(f, dict)}


async def fill(path: Path, number: int = 5) -> None:
    """Some sessions in a file, with a tenancy key."""
    made = SqliteStore(path, retention_seconds=1e9, archive_bytes=GENEROUS)
    await made.open()
    for n in range(number):
        checkpoint = make_checkpoint(f"cp{n}", n, session=f"s{n}")
        change = checkpoint_change(
            checkpoint, anchor=b"anchor-%013d" % n, time=NOW + n, archive=archive_of(b"%d" % n)
        )
        await made.commit(change)
    await made.adopt_secret("tenancy", b"\x07" * 32)
    await made.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- a session that moves ---


def steps_of(messages: Sequence[JsonObject]) -> list[Sequence[JsonObject]]:
    return list(checks.steps(messages))


@pytest.mark.parametrize("source", ["fixed", "credential"])
@pytest.mark.slow
async def test_a_session_goes_on_in_redis_and_back_in_a_file(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    redis: RedisServer,
    source: str,
) -> None:
    """Byte-identical prompts without a new summary, both ways, and the client notices nothing."""
    checks.make_strict(up, WINDOW)
    tenancy: dict[str, Json] = {"tenancy.source": source}
    steps = steps_of(b.tool_session(26, result_chars=2000))
    exchanges: list[checks.Exchange] = []
    async with Running(up.base_url, tmp_path, **tenancy) as proxy:
        agent = Agent(client, proxy.url, up, KEYS)
        for step in steps[:18]:
            exchanges.append(await agent.say(step))
    assert len(up.summaries) == 1
    key_file = tmp_path / "key.env"

    there = await process(
        "migrate", store_url(tmp_path), redis.url, "--key-file", str(key_file), folder=tmp_path
    )

    assert (there.code, there.stderr) == (0, there.stderr), there.stderr
    assert "verified: 1 session equal in the target" in there.stdout
    name, _, key = key_file.read_text().strip().partition("=")
    assert name == "FOLDGATE_TENANCY__KEY"
    in_redis: dict[str, Json] = {"store.url": redis.url, "store.timeout_ms": 5000, **tenancy}
    if source == "credential":
        in_redis["tenancy.key"] = key
    async with Running(up.base_url, tmp_path / "other", **in_redis) as proxy:
        agent = Agent(client, proxy.url, up, KEYS)
        again = await agent.say(steps[17])
        assert again.arrived == exchanges[17].arrived
        assert again.session == exchanges[17].session
        stranger = await Agent(client, proxy.url, up, {"Authorization": "Bearer two"}).say(steps[8])
        for step in steps[18:22]:
            exchanges.append(await agent.say(step))
        if source == "credential":
            assert stranger.arrived == stranger.sent
    summaries = len(up.summaries)

    back = await store("migrate", redis.url, str(tmp_path / "back.db"), folder=tmp_path)

    assert back.code == 0, back.stderr
    in_file = {**tenancy, "store.url": f"sqlite:///{tmp_path / 'back.db'}"}
    async with Running(up.base_url, tmp_path / "third", **in_file) as proxy:
        agent = Agent(client, proxy.url, up, KEYS)
        again = await agent.say(steps[21])
        assert again.arrived == exchanges[21].arrived
        assert again.session == exchanges[21].session
        assert len(up.summaries) == summaries
        for step in steps[22:]:
            exchanges.append(await agent.say(step))
    checks.assert_fine(exchanges, up)
    checks.assert_stable(exchanges)
    checks.assert_in_every(b.TASK, exchanges)
    assert len({e.session for e in exchanges if e.session}) == 1
    assert len(up.summaries) == 2


def stored_events(folder: Path) -> dict[str, int]:
    """How often each event is in the file."""
    with closing(sqlite3.connect(folder / "foldgate.db")) as db:
        return dict(db.execute("SELECT data, count(*) FROM events GROUP BY data").fetchall())


async def test_a_session_goes_back_to_the_file_it_came_from(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, redis: RedisServer
) -> None:
    """What was compacted in Redis meanwhile is found, and nothing is there twice."""
    checks.make_strict(up, WINDOW)
    steps = steps_of(b.tool_session(26, result_chars=2000))
    exchanges: list[checks.Exchange] = []
    before = dict[str, int]()
    for number, span in enumerate((steps[:18], steps[18:24], steps[24:])):
        values: dict[str, Json] = {"store.timeout_ms": 5000} if number == 1 else {}
        if number == 1:
            values["store.url"] = redis.url
        async with Running(up.base_url, tmp_path, **values) as proxy:
            agent = Agent(client, proxy.url, up)
            if number:
                again = await agent.say(steps[steps.index(span[0]) - 1])
                assert again.arrived == exchanges[-1].arrived
            for step in span:
                exchanges.append(await agent.say(step))
        ends = (store_url(tmp_path), redis.url) if number == 0 else (redis.url, store_url(tmp_path))
        if number == 0:
            before = stored_events(tmp_path)
        if number < 2:
            assert (await store("migrate", *ends, folder=tmp_path)).code == 0
        if number == 1:
            after = stored_events(tmp_path)
            assert {line: after[line] for line in before} == before
    checks.assert_fine(exchanges, up)
    checks.assert_stable(exchanges)
    assert len(up.summaries) == 2


async def test_clips_move_too(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, redis: RedisServer
) -> None:
    checks.make_strict(up, WINDOW)
    messages = b.tool_session(3, result_chars=2000)
    messages[-1]["content"] = b.prose(90_000, 5)
    async with Running(up.base_url, tmp_path) as proxy:
        before = await Agent(client, proxy.url, up).say(messages)
    assert before.marks == ["clipped"]
    assert (await store("migrate", store_url(tmp_path), redis.url, folder=tmp_path)).code == 0
    moved: dict[str, Json] = {"store.url": redis.url, "store.timeout_ms": 5000}
    async with Running(up.base_url, tmp_path, **moved) as proxy:
        after = await Agent(client, proxy.url, up).say(messages)
    assert after.arrived == before.arrived
    checks.assert_fine([before, after], up)


# --- migrate ---


@pytest.mark.slow
async def test_what_a_migration_says(tmp_path: Path, redis: RedisServer) -> None:
    path = tmp_path / "a.db"
    await fill(path)
    done = await process("migrate", str(path), redis.url, folder=tmp_path)
    assert done.code == 0
    shown = redis.url.replace(PASSWORD.replace("/", "%2F"), "***")
    assert done.stdout.splitlines()[0] == f"copied sqlite:///{path} -> {shown}"
    assert (
        "  5 sessions, 5 checkpoints, 0 clip decisions, 5 archived messages, 0 events, "
        "0 recorded responses\n"
    ) in done.stdout
    assert "verified: 5 sessions equal in the target" in done.stdout
    assert "--key-file FILE writes it" in done.stdout
    assert done.stderr.splitlines() == [
        "copying: 0 of 5 sessions",
        "copying: 5 of 5 sessions",
        "verifying: 0 of 5 sessions",
        "verifying: 5 of 5 sessions",
    ]


async def test_a_migration_as_json(tmp_path: Path, redis: RedisServer) -> None:
    path = tmp_path / "a.db"
    await fill(path)
    found = parsed(await store("migrate", str(path), redis.url, "--json", folder=tmp_path))
    assert list(found) == [
        "source", "target", "dry_run", "complete", "ok", "interrupted", "error", "total",
        "sessions", "checkpoints", "clip_decisions", "archived", "events", "responses", "bytes",
        "unreadable", "verified", "out_of_reach", "different", "different_responses", "seconds",
        "tenancy_key", "key_file", "warnings", "notes",
    ]  # fmt: skip
    assert (found["ok"], found["complete"], found["interrupted"]) == (True, True, False)
    assert (found["total"], found["sessions"], found["verified"]) == (5, 5, 5)
    assert (found["tenancy_key"], found["error"], found["warnings"]) == ("copied", None, [])
    nothing: dict[str, Json] = {"damaged": 0, "newer": 0, "locked": 0, "missing_keys": []}
    assert found["unreadable"] == nothing
    again = parsed(await store("migrate", str(path), redis.url, "--json", folder=tmp_path))
    assert (again["verified"], again["tenancy_key"]) == (5, "kept")


async def test_recorded_responses_move_too(tmp_path: Path, redis: RedisServer) -> None:
    path = tmp_path / "a.db"
    await fill(path, 1)
    made = SqliteStore(path, retention_seconds=1e9, archive_bytes=GENEROUS)
    await made.open()
    await record(made.responses, response("r1", "ab"), response("r2", "c", "r1", 2))
    await made.close()
    there = await store("migrate", str(path), redis.url, folder=tmp_path)
    assert there.code == 0, there.stderr
    assert "0 events, 2 recorded responses\n" in there.stdout
    assert "verified: 1 session and 2 recorded responses equal in the target" in there.stdout
    assert "responses: 1 so far" in there.stderr
    assert (await store("check", redis.url, folder=tmp_path)).code == 0
    target = str(tmp_path / "b.db")
    back = parsed(await store("migrate", redis.url, target, "--json", folder=tmp_path))
    assert (back["ok"], back["responses"], back["different_responses"]) == (True, 2, 0)
    key = f"foldgate:{{{ANCHOR.hex()}}}:responses"
    await redis.command("DEL", key)
    await redis.command("SET", key, "of somebody else")
    refused = await store("migrate", target, redis.url, folder=tmp_path)
    assert refused.code == 1
    assert "warning: 2 recorded responses not equal in the target" in refused.stderr
    assert "verified: 1 session equal in the target" in refused.stdout


async def test_a_dry_run_writes_nothing(tmp_path: Path, redis: RedisServer) -> None:
    path, target, key = tmp_path / "a.db", tmp_path / "b.db", tmp_path / "key"
    await fill(path)
    args = ("--dry-run", "--json", "--key-file", str(key))
    for there in (redis.url, str(target)):
        found = parsed(await store("migrate", str(path), there, *args, folder=tmp_path))
        assert (found["dry_run"], found["sessions"], found["verified"]) == (True, 5, 0)
        assert found["ok"] is True
    assert await redis.command("DBSIZE") == 0
    assert not target.exists()
    assert not key.exists()
    spoken = await store("migrate", str(path), str(target), "--dry-run", folder=tmp_path)
    assert spoken.stdout.startswith("would copy ")
    dead = await store("migrate", str(path), "redis://127.0.0.1:1", "--dry-run", folder=tmp_path)
    assert dead.code == 1
    assert "TARGET redis://127.0.0.1:1: Redis: unreachable" in dead.stderr


async def test_a_damaged_value_is_counted_and_left_out(tmp_path: Path, redis: RedisServer) -> None:
    path = tmp_path / "a.db"
    await fill(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE checkpoints SET data = x'00' WHERE id = 'cp3'")
    done = await store("migrate", str(path), redis.url, folder=tmp_path)
    assert done.code == 0
    assert "warning: left out: 1 value damaged" in done.stderr
    assert "5 sessions, 4 checkpoints" in done.stdout
    back = await store("migrate", redis.url, str(tmp_path / "b.db"), folder=tmp_path)
    assert back.code == 0
    assert "left out" not in back.stderr


async def test_values_that_stay_behind_though_they_are_whole_are_trouble(
    tmp_path: Path, redis: RedisServer
) -> None:
    path = tmp_path / "a.db"
    await fill(path)
    key = "k1:" + "A" * 43 + "="
    env = {"FOLDGATE_STORE__ENCRYPTION_KEYS": f'["{key}"]'}
    there = await store("migrate", str(path), redis.url, folder=tmp_path, **env)
    assert there.code == 0, there.stderr
    without = await store("migrate", redis.url, str(tmp_path / "b.db"), folder=tmp_path)
    assert without.code == 1
    assert "encrypted with key 'k1', which is not there: add the key 'k1'" in without.stderr
    assert (await store("check", redis.url, folder=tmp_path)).code == 1
    assert (await store("check", redis.url, folder=tmp_path, **env)).code == 0
    with_key = await store("migrate", redis.url, str(tmp_path / "b.db"), folder=tmp_path, **env)
    assert with_key.code == 0, with_key.stderr
    assert "5 checkpoints" in with_key.stdout


async def test_the_key_file(tmp_path: Path, redis: RedisServer) -> None:
    path, key = tmp_path / "a.db", tmp_path / "key.env"
    await fill(path)
    args = ("migrate", str(path), redis.url, "--key-file", str(key))
    done = await store(*args, folder=tmp_path)
    assert done.code == 0
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_text() == f"FOLDGATE_TENANCY__KEY=hex:{'07' * 32}\n"
    assert str(key) in done.stdout
    assert "07" * 32 not in done.stdout + done.stderr
    # The same command again goes on; somebody else's file is left alone.
    assert (await store(*args, folder=tmp_path)).code == 0
    key.write_text("mine\n")
    refused = await store(*args, folder=tmp_path)
    assert (refused.code, key.read_text()) == (1, "mine\n")
    assert "is there already" in refused.stderr
    nowhere = await store(*args[:-1], str(tmp_path / "no" / "key"), folder=tmp_path)
    assert nowhere.code == 1
    assert "cannot be written" in nowhere.stderr


async def test_a_target_with_another_tenancy_key(tmp_path: Path, redis: RedisServer) -> None:
    path = tmp_path / "a.db"
    await fill(path)
    await redis.command("SET", "foldgate:secret:tenancy", b"\x08" * 32)
    done = await store("migrate", str(path), redis.url, folder=tmp_path)
    assert done.code == 0
    assert "warning: the target has another tenancy key" in done.stderr
    assert await redis.command("GET", "foldgate:secret:tenancy") == b"\x08" * 32
    env = {"FOLDGATE_TENANCY__KEY": "hex:" + "07" * 32}
    told = await store("migrate", str(path), redis.url, folder=tmp_path, **env)
    assert "another tenancy key" not in told.stderr
    other = {"FOLDGATE_TENANCY__KEY": "hex:" + "09" * 32}
    told = await store("migrate", str(path), redis.url, folder=tmp_path, **other)
    assert "not the key stored in the source" in told.stdout


async def test_a_source_without_a_tenancy_key(tmp_path: Path, redis: RedisServer) -> None:
    path = tmp_path / "a.db"
    await fill(path, 1)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DELETE FROM secrets")
    done = await store("migrate", str(path), redis.url, folder=tmp_path)
    assert done.code == 0
    assert "keep tenancy.key as it is" in done.stdout
    key = tmp_path / "key"
    refused = await store("migrate", str(path), redis.url, "--key-file", str(key), folder=tmp_path)
    assert (refused.code, key.exists()) == (1, False)


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("{folder}/a.db", "{folder}/a.db", "are the same store"),
        ("{folder}/a.db", "sqlite:///{folder}/../{name}/a.db", "are the same store"),
        ("{folder}/a.db", "{folder}/link.db", "are the same store"),
        ("redis://127.0.0.1:1/2", "redis://:x@127.0.0.1:1/2", "are the same store"),
        ("{folder}/none.db", "{folder}/b.db", "SOURCE: there is no file"),
        ("sqlite:///{folder}/none.db", "{folder}/b.db", "SOURCE: there is no file"),
        ("{folder}/a.db", "nowhere", "TARGET: must be sqlite:///PATH"),
        ("{folder}/text.db", "{folder}/b.db", "SOURCE sqlite:///"),
        ("{folder}/newer.db", "{folder}/b.db", "use a newer foldgate"),
        ("{folder}/a.db", "{folder}/newer.db", "use a newer foldgate"),
        ("{folder}/a.db", "redis://:s3cret@127.0.0.1:1/0", "TARGET redis://:***@127.0.0.1:1/0"),
        ("redis://:s3cret@127.0.0.1:1/0", "{folder}/b.db", "SOURCE redis://:***@127.0.0.1:1/0"),
    ],
)
async def test_ends_that_are_refused(
    tmp_path: Path, source: str, target: str, expected: str
) -> None:
    await fill(tmp_path / "a.db", 1)
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    (tmp_path / "text.db").write_text("hello\n" * 1000)
    with closing(sqlite3.connect(tmp_path / "newer.db")) as db:
        db.execute("PRAGMA user_version = 99")
    before = names(tmp_path)
    ends = [end.format(folder=tmp_path, name=tmp_path.name) for end in (source, target)]
    done = await store("migrate", *ends, folder=tmp_path)
    assert done.code == 1
    assert expected in done.stderr
    assert done.stdout == ""
    after = [name for name in names(tmp_path) if name != "b.db"]
    assert [name for name in after if "-" not in name] == before


async def test_a_target_that_is_full_or_read_only(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await fill(path)
    async with servers.RedisSentinel(tmp_path / "r") as group:
        replica = await store("migrate", str(path), group.replica.url, folder=tmp_path)
        await group.master.command("CONFIG", "SET", "maxmemory", "100kb")
        args = ("migrate", str(path), group.master.url)
        full = await store(*args, folder=tmp_path)
        as_json = parsed(await store(*args, "--json", folder=tmp_path))
        await group.master.command("CONFIG", "SET", "maxmemory", "0")
        after = await store(*args, folder=tmp_path)
    assert (replica.code, full.code, after.code) == (1, 1, 0)
    assert "read_only" in replica.stderr
    assert "out_of_memory; raise maxmemory" in full.stderr
    assert (as_json["ok"], as_json["complete"]) == (False, False)
    assert "out_of_memory" in str(as_json["error"])


@pytest.mark.slow
async def test_a_server_that_dies_while_copying(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await fill(path, 40)
    async with (
        RedisServer(tmp_path / "r") as server,
        StallingProxy(server.port, delay=0.02) as relay,
    ):
        relay.mode = "slow"
        process = await start("migrate", str(path), relay.url, folder=tmp_path)
        await servers.wait_until(lambda: some(server, 5), what="some sessions are copied")
        relay.mode = "refuse"
        done = await ended(process)
        assert done.code == 1
        assert re.search(r"stopped: \d+ of 40 sessions are copied; the same command", done.stderr)
        relay.mode = "pass"
        again = await store("migrate", str(path), relay.url, folder=tmp_path)
    assert "verified: 40 sessions equal" in again.stdout


@pytest.mark.slow
async def test_ctrl_c_says_how_far_it_got(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await fill(path, 60)
    async with (
        RedisServer(tmp_path / "r") as server,
        StallingProxy(server.port, delay=0.02) as relay,
    ):
        relay.mode = "slow"
        process = await start("migrate", str(path), relay.url, folder=tmp_path)
        await servers.wait_until(lambda: some(server, 5), what="some sessions are copied")
        process.send_signal(signal.SIGINT)
        done = await ended(process)
        before = relay.accepted
        as_json = await start("migrate", str(path), relay.url, "--json", folder=tmp_path)
        await servers.wait_until(lambda: relay.accepted > before, what="it is at it")
        as_json.send_signal(signal.SIGINT)
        told = await ended(as_json)
        relay.mode = "pass"
        again = await store("migrate", str(path), relay.url, folder=tmp_path)
    assert done.code == 130, done.stderr
    assert re.search(
        r"interrupted: \d+ of 60 sessions are copied; the same command again", done.stderr
    )
    assert told.code == 130
    found = parsed(told)
    assert (found["interrupted"], found["complete"], found["ok"]) == (True, False, False)
    assert again.code == 0
    assert "verified: 60 sessions equal" in again.stdout


async def test_a_bar_on_a_terminal(tmp_path: Path) -> None:
    """Nothing but the summary reaches stdout; the bar is on stderr, which is a terminal here."""
    path = tmp_path / "a.db"
    await fill(path)
    ours, theirs = os.openpty()
    process = await start(
        "migrate", str(path), str(tmp_path / "b.db"), folder=tmp_path, stderr=theirs
    )
    os.close(theirs)
    stdout, _ = await process.communicate()
    shown = b""
    with contextlib.suppress(OSError):  # how Linux tells the end
        while piece := os.read(ours, 65536):
            shown += piece
    os.close(ours)
    assert process.returncode == 0
    assert stdout.decode().startswith("copied ")
    assert b"verifying" in shown
    assert b"5/5" in shown


async def some(server: RedisServer, number: int) -> bool:
    found = await server.command("HLEN", "foldgate:{sessions}:anchors")
    return isinstance(found, int) and found >= number


async def start(
    *args: str, folder: Path, stderr: int = asyncio.subprocess.PIPE
) -> asyncio.subprocess.Process:
    inherited = {**os.environ, "HOME": str(folder), "NO_COLOR": "1"}  # noqa: TID251
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "proxy",
        "store",
        *args,
        cwd=ROOT,
        env=inherited,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
    )


async def ended(process: asyncio.subprocess.Process) -> Finished:
    try:
        async with asyncio.timeout(30):
            stdout, stderr = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    assert process.returncode is not None
    assert "Traceback" not in stderr.decode()
    return Finished(process.returncode, stdout.decode(), stderr.decode())


# --- check ---


async def test_a_check_of_the_store_of_the_settings(tmp_path: Path, redis: RedisServer) -> None:
    env = {"FOLDGATE_STORE__URL": redis.url}
    done = await store("check", folder=tmp_path, **env)
    assert done.code == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("store redis://:***@")
    assert re.fullmatch(r"ok    reachable    answers in [\d.]+ ms", lines[1])
    assert "warn  persistence  neither append-only file nor snapshots" in done.stdout
    assert "      fix: set `appendonly yes`" in done.stdout
    as_json = await store("check", "--json", folder=tmp_path, **env)
    assert parsed(as_json)["ok"] is True
    assert list(findings(as_json)) == [
        "reachable", "server", "mode", "writable", "persistence", "memory", "contents", "values",
        "listing", "encryption", "tenancy",
    ]  # fmt: skip


async def test_a_check_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await fill(path)
    done = await store("check", str(path), "--json", folder=tmp_path)
    assert (done.code, parsed(done)["store"]) == (0, f"sqlite:///{path}")
    assert findings(done)["contents"]["sessions"] == 5
    by_default = await store("check", folder=tmp_path)
    assert by_default.code == 0
    assert "there is no such file yet" in by_default.stdout
    config = tmp_path / "f.toml"
    config.write_text(f'[store]\nurl = "sqlite:///{path}"\n')
    configured = await store("check", "--config", str(config), folder=tmp_path)
    assert "5 sessions, 5 checkpoints" in configured.stdout


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret@127.0.0.1:1/0",
        "redis+sentinel://:s3cret@127.0.0.1:1,127.0.0.1:2/main?sentinel_password=s3cret",
        "redis+cluster://:s3cret@127.0.0.1:1",
    ],
)
@pytest.mark.slow
async def test_a_dead_server(tmp_path: Path, url: str) -> None:
    async with asyncio.timeout(15):
        done = await process("check", url, folder=tmp_path)
    assert done.code == 1
    assert "FAIL  reachable" in done.stdout
    assert "fix: start the " in done.stdout
    assert "***" in done.stdout


async def test_a_wrong_password(tmp_path: Path, redis: RedisServer) -> None:
    url = f"redis://:s3cret-but-wrong@{servers.HOST}:{redis.port}/0"
    done = await store("check", url, "--json", folder=tmp_path)
    assert done.code == 1
    assert findings(done)["reachable"]["reason"] == "wrong_password"
    moved = await store("migrate", url, str(tmp_path / "b.db"), folder=tmp_path)
    assert moved.code == 1
    assert "wrong_password; check the user name and password" in moved.stderr


async def test_the_tenancy_key_that_a_shared_store_needs(
    tmp_path: Path, redis: RedisServer
) -> None:
    async def tenancy(**env: str) -> tuple[int, Json]:
        done = await store("check", redis.url, "--json", folder=tmp_path, **env)
        return done.code, findings(done)["tenancy"]["status"]

    assert await tenancy() == (0, "ok")
    public = {"FOLDGATE_SERVER__HOST": "0.0.0.0"}
    assert await tenancy(**public) == (1, "FAIL")
    assert await tenancy(**public, FOLDGATE_TENANCY__KEY="a text") == (0, "ok")
    assert await tenancy(FOLDGATE_TENANCY__SOURCE="credential") == (1, "FAIL")


async def test_repair(tmp_path: Path, redis: RedisServer) -> None:
    await fill(tmp_path / "a.db")
    await store("migrate", str(tmp_path / "a.db"), redis.url, folder=tmp_path)
    await redis.command("DEL", "foldgate:{sessions}:anchors")
    before = findings(await store("check", redis.url, "--json", folder=tmp_path))
    assert (before["listing"]["status"], before["listing"]["unlisted"]) == ("warn", 5)
    repaired = await store("check", redis.url, "--repair", folder=tmp_path)
    assert "ok    listing      made anew: 5 sessions" in repaired.stdout
    after = findings(await store("check", redis.url, "--json", folder=tmp_path))
    assert after["listing"]["status"] == "ok"


async def test_help(tmp_path: Path) -> None:
    texts = {}
    for words in ((), ("check",), ("migrate",)):
        done = await process(*words, "--help", folder=tmp_path)
        assert done.code == 0
        texts[words] = done.stdout
    for word in ("check", "migrate"):
        assert word in texts[()]
    for word in ("--json", "--repair", "--config"):
        assert word in texts["check",]
    for word in ("--json", "--dry-run", "--key-file", "--config"):
        assert word in texts["migrate",]


async def test_a_bad_url_is_told_without_its_password(tmp_path: Path) -> None:
    done = await store("check", "redis://u:s3cret@host:port/0", folder=tmp_path)
    assert done.code == 1
    assert done.stderr.startswith("foldgate: URL: must name each host as HOST or HOST:PORT")
