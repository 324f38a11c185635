"""Restarts, crashes and a failing store: the old state or the new one, and the session goes on."""

import asyncio
import os
import resource
import signal
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

import aiohttp
import pytest

from proxy.codec import JsonObject, as_text, loads
from tests import builders as b
from tests.e2e import checks
from tests.e2e.apis import CHAT, RESPONSES, Api
from tests.e2e.checks import Agent, Exchange
from tests.e2e.running import Running, Served
from tests.upstream import Reply, ScriptedUpstream
from tests.upstream_rules import plausible_checkpoint

WINDOW = 8192


def session(seed: int = 0, number: int = 26) -> list[JsonObject]:
    return b.tool_session(number, seed=seed, result_chars=2000)


def steps_of(messages: Sequence[JsonObject]) -> list[Sequence[JsonObject]]:
    return list(checks.steps(messages))


def rows(folder: Path, query: str) -> list[tuple[str | int, ...]]:
    with closing(sqlite3.connect(folder / "foldgate.db")) as db:
        return db.execute(query).fetchall()


def assert_sound(folder: Path) -> None:
    """The file is whole, and no cut has two checkpoints."""
    assert rows(folder, "PRAGMA integrity_check") == [("ok",)]
    twice = "SELECT cut_digest FROM checkpoints GROUP BY cut_digest HAVING count(*) > 1"
    assert rows(folder, twice) == []
    orphans = (
        "SELECT count(*) FROM checkpoints WHERE session NOT IN (SELECT id FROM sessions)"
        " OR id NOT IN (SELECT archive_id FROM archive)"
    )
    assert rows(folder, orphans) == [(0,)]


async def test_a_restart_in_between_changes_nothing(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """A new process for every request of the session."""
    checks.make_strict(up, WINDOW)
    messages = session()
    steps = steps_of(messages)
    exchanges: list[Exchange] = []
    for number, step in enumerate(steps):
        async with Running(up.base_url, tmp_path) as proxy:
            agent = Agent(client, proxy.url, up, api=api)
            exchanges.append(await agent.say(step))
            if number % 5 == 4:
                exchanges[-1] = await agent.say(step)
    checks.assert_fine(exchanges, up)
    checks.assert_in_every(b.TASK, exchanges)
    assert len({e.session for e in exchanges if e.session}) == 1
    assert len(up.summaries) == 2
    assert len(checks.rewrites(exchanges)) == 2
    assert b"Previous checkpoint:" in up.summaries[1].decoded
    assert_sound(tmp_path)
    spans = rows(tmp_path, "SELECT count(*) FROM archive")[0][0]
    assert spans == len({r[0] for r in rows(tmp_path, "SELECT position FROM archive")})


async def test_clips_survive_a_restart(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    messages = session(number=3)
    messages[-1]["content"] = b.prose(90_000, 5)
    exchanges = []
    for _ in range(2):
        async with Running(up.base_url, tmp_path) as proxy:
            exchanges.append(await Agent(client, proxy.url, up, api=api).say(messages))
    checks.assert_fine(exchanges, up)
    assert exchanges[0].marks == ["clipped"]
    assert exchanges[1].arrived == exchanges[0].arrived


@pytest.mark.parametrize(
    ("api", "how"),
    [
        (CHAT, signal.SIGKILL),
        (CHAT, signal.SIGTERM),
        pytest.param(RESPONSES, signal.SIGKILL, marks=pytest.mark.slow),
    ],
    ids=str,
)
async def test_a_process_that_ends_and_starts_again(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    api: Api,
    how: signal.Signals,
) -> None:
    """With tenants by credential, whose key is drawn once and kept in the store."""
    checks.make_strict(up, WINDOW)
    env = {"FOLDGATE_TENANCY__SOURCE": "credential"}
    keys = {"Authorization": "Bearer one"}
    messages = session()
    steps = steps_of(messages)
    async with Served(up.base_url, tmp_path, env=env) as served:
        agent = Agent(client, served.url, up, keys, api=api)
        for step in steps[:18]:
            await agent.say(step)
        served.signal(how)
        await served.wait()
    assert len(up.summaries) == 1
    async with Served(up.base_url, tmp_path, env=env) as served:
        agent.url = served.url
        same = await agent.say(steps[17])
        stranger = await Agent(
            client, served.url, up, {"Authorization": "Bearer two"}, api=api
        ).say(steps[8])
        for step in steps[18:]:
            await agent.say(step)
    checks.assert_fine([*agent.exchanges, stranger], up)
    assert same.arrived == agent.exchanges[17].arrived
    assert same.session == agent.exchanges[17].session
    assert stranger.arrived == stranger.sent
    checks.assert_stable(agent.exchanges)
    assert_sound(tmp_path)


MOMENTS = (-2.0, -1.0, 0.0, 0.001, 0.002, 0.004, 0.006, 0.01, 0.02, 0.04)
"""Seconds after the summary's end; -2 while it is being written, -1 in the same breath."""


@pytest.mark.slow
async def test_killed_at_any_moment_of_a_compaction(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    served = Served(up.base_url, tmp_path)
    await served.__aenter__()
    outcomes = set[str]()
    try:
        for seed, moment in enumerate(MOMENTS):
            messages = session(seed, 18)
            gate = asyncio.Event()
            before = len(up.summaries)
            up.summary_replies.append(Reply(text=plausible_checkpoint(messages), gate=gate))
            task = asyncio.get_running_loop().create_task(
                _try(Agent(client, served.url, up, api=api), messages)
            )
            await up.wait_for(lambda count=before: len(up.summaries) > count)  # type: ignore[misc]
            if moment > -2:
                gate.set()
            # The moment itself is what is tried here.
            await asyncio.sleep(max(0.0, moment))
            await served.kill()
            gate.set()
            died = await task
            assert_sound(tmp_path)
            served = Served(up.base_url, tmp_path)
            await served.__aenter__()
            agent = Agent(client, served.url, up, api=api)
            first = await agent.say(messages)
            more = await agent.say([*messages, b.assistant("So."), b.user("And now?")])
            checks.assert_fine(agent.exchanges, up)
            checks.assert_in_every(b.TASK, agent.exchanges)
            checks.assert_stable(agent.exchanges)
            assert first.marks in (["compacted"], ["reused"])
            assert more.marks == ["reused"]
            if died is not None and died.status == 200 and died.forwarded is not None:
                # What a client got an answer for is not forgotten.
                assert first.arrived == died.arrived
            outcomes.add(first.marks[0])
            assert len(up.summaries) == before + (2 if first.marks == ["compacted"] else 1)
            assert_sound(tmp_path)
    finally:
        await served.kill()
    assert "compacted" in outcomes


async def _try(agent: Agent, messages: Sequence[JsonObject]) -> Exchange | None:
    try:
        return await agent.say(messages)
    except aiohttp.ClientError:
        return None


@asynccontextmanager
async def locked(folder: Path) -> AsyncIterator[None]:
    """Another program holds the store's write lock."""
    with closing(sqlite3.connect(folder / "foldgate.db", isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("ROLLBACK")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.server.app.PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr("proxy.sessions.sqlite_store.BUSY_SECONDS", 0.1)
    monkeypatch.setattr("proxy.server.app.FLUSH_SECONDS", 0.1)


@pytest.mark.usefixtures("impatient")
async def test_a_locked_store_does_not_stop_a_session(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    """It is compacted from memory, and stored when the lock is gone."""
    checks.make_strict(up, WINDOW)
    steps = steps_of(session())
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        for step in steps[:5]:
            await agent.say(step)
        async with locked(tmp_path):
            for step in steps[5:20]:
                await agent.say(step)
            failed = await proxy.wait_event("store_failed")
            assert rows(tmp_path, "SELECT count(*) FROM checkpoints") == [(0,)]
            page = await ready(client, proxy)
        async with asyncio.timeout(5):
            while (await ready(client, proxy))["pending_writes"]:  # noqa: ASYNC110  -- HTTP only
                await asyncio.sleep(0.02)
        for step in steps[20:]:
            await agent.say(step)
        known = len(up.summaries)
    async with Running(up.base_url, tmp_path) as proxy:
        later = await Agent(client, proxy.url, up, api=api).say(steps[-1])
    checks.assert_fine([*agent.exchanges, later], up)
    checks.assert_stable(agent.exchanges)
    checks.assert_in_every(b.TASK, agent.exchanges)
    assert failed["operation"] == "lease"
    assert (page["status"], page["store"]) == ("ok", "down")
    assert known == 2
    assert len(up.summaries) == known
    assert later.arrived == agent.exchanges[-1].arrived
    assert_sound(tmp_path)


async def ready(client: aiohttp.ClientSession, proxy: Running | Served) -> JsonObject:
    async with client.get(proxy.url + "/_foldgate/ready") as reply:
        value = loads(await reply.read())
        assert isinstance(value, dict)
        return value


@pytest.mark.usefixtures("impatient")
async def test_a_store_that_could_not_be_read_is_asked_again_soon(
    up: ScriptedUpstream,
    client: aiohttp.ClientSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a known session would look new for half a minute."""
    from proxy.errors import StoreUnavailable
    from proxy.sessions.sqlite_store import SqliteStore

    for module in ("breaker", "memory"):
        monkeypatch.setattr(f"proxy.compactor.{module}.RETRY_SECONDS", 0.05)
    checks.make_strict(up, WINDOW)
    messages = session(number=18)
    async with Running(up.base_url, tmp_path) as proxy:
        await Agent(client, proxy.url, up).play(messages)
    assert len(up.summaries) == 1
    broken = True
    find = SqliteStore.find

    async def sometimes(
        self: SqliteStore, anchor: bytes, chain: Sequence[bytes], known: Sequence[str]
    ) -> object:
        if broken:
            raise StoreUnavailable("down")
        return await find(self, anchor, chain, known)

    monkeypatch.setattr(SqliteStore, "find", sometimes)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up)
        without = await agent.say(messages[:6])
        broken = False
        await asyncio.sleep(0.06)
        known = await agent.say(messages)
        failed = proxy.events.of_type("store_failed")
    checks.assert_fine(agent.exchanges, up)
    assert without.arrived == without.sent
    assert known.marks == ["reused"]
    assert len(up.summaries) == 1
    assert [as_text(e["operation"]) for e in failed] == ["find"]


async def test_a_full_disk(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    """Files of the process may not grow any more, then they may again."""
    checks.make_strict(up, WINDOW)
    steps = steps_of(session())
    async with Served(up.base_url, tmp_path) as served:
        agent = Agent(client, served.url, up)
        for step in steps[:5]:
            await agent.say(step)
        limit = resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, (512, limit[1]))
        for step in steps[5:20]:
            await agent.say(step)
        await served.wait_event("store_failed")
        page = await ready(client, served)
        resource.prlimit(served.process.pid, resource.RLIMIT_FSIZE, limit)
        for step in steps[20:]:
            await agent.say(step)
        assert await served.terminate() == 0
    assert page["store"] == "down"
    summaries = len(up.summaries)
    async with Served(up.base_url, tmp_path) as served:
        again = await Agent(client, served.url, up).say(steps[-1])
    checks.assert_fine([*agent.exchanges, again], up)
    checks.assert_stable(agent.exchanges)
    assert summaries == len(up.summaries) == 2
    assert again.arrived == agent.exchanges[-1].arrived
    assert_sound(tmp_path)


async def test_a_damaged_checkpoint_counts_as_none(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    messages = session(number=18)
    async with Running(up.base_url, tmp_path) as proxy:
        await Agent(client, proxy.url, up, api=api).play(messages)
    with closing(sqlite3.connect(tmp_path / "foldgate.db")) as db, db:
        db.execute("UPDATE checkpoints SET data = substr(data, 1, length(data) - 40)")
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        exchange = await agent.say(messages)
        again = await agent.say(messages)
        failed = proxy.events.of_type("store_failed")
    checks.assert_fine(agent.exchanges, up)
    assert exchange.marks == ["compacted"]
    assert again.arrived == exchange.arrived
    assert set(checks.reasons(failed)) == {"corrupt_values"}


async def test_many_identical_requests_commit_once(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, api: Api
) -> None:
    checks.make_strict(up, WINDOW)
    messages = session(number=16)
    async with Running(up.base_url, tmp_path) as proxy:
        agent = Agent(client, proxy.url, up, api=api)
        await asyncio.gather(*(agent.say(messages) for _ in range(6)))
    checks.assert_fine(agent.exchanges, up)
    assert rows(tmp_path, "SELECT count(*) FROM checkpoints") == [(1,)]
    assert rows(tmp_path, "SELECT count(*) FROM sessions") == [(1,)]
    assert_sound(tmp_path)


async def test_the_store_is_private(up: ScriptedUpstream, tmp_path: Path) -> None:
    async with Running(up.base_url, tmp_path):
        assert os.stat(tmp_path / "foldgate.db").st_mode & 0o077 == 0
