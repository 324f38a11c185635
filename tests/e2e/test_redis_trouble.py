"""A Redis that is slow, silent, gone or unwilling: sessions go on, and all is stored afterwards."""

import asyncio
import contextlib
import gc
import itertools
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from hiredis import ReplyError

from proxy.codec import Json, JsonObject, dumps, loads
from proxy.errors import StoreUnavailable
from proxy.sessions import redis_client
from proxy.sessions.redis_store import RedisStore, Retention
from proxy.sessions.sealing import Sealer
from proxy.sessions.store_url import parse_store_url
from proxy.settings import SettingsError
from tests import builders as b
from tests import redis_servers as servers
from tests.e2e import checks
from tests.e2e.checks import Agent, Exchange
from tests.e2e.running import Running
from tests.redis_servers import HOST, Mode, RedisServer, StallingProxy, Word, wait_until
from tests.upstream import Reply, ScriptedUpstream
from tests.upstream_rules import plausible_checkpoint

pytestmark = pytest.mark.skipif(servers.default_binary() is None, reason=servers.NO_SERVER)

WINDOW = 8192
KEY = "hex:" + "5a" * 32
DAY = 86_400.0
FIRST, SECOND, THIRD = 14, 24, 34
"""The requests of `session()` that a compaction is made for."""


def session(seed: int = 0, number: int = 36) -> list[JsonObject]:
    return b.tool_session(number, task=f"{b.TASK} Case {seed}.", seed=seed, result_chars=2000)


def steps_of(messages: Sequence[JsonObject]) -> list[Sequence[JsonObject]]:
    return list(checks.steps(messages))


class Stopping(Running):
    """A proxy whose stop is not waited for without end."""

    async def stop(self) -> None:
        task = asyncio.get_running_loop().create_task(super().stop())
        await asyncio.wait({task}, timeout=10)
        is_late = not task.done()
        while not task.done():
            # The test is to fail; what does not end would keep the loop from closing, too.
            for other in asyncio.all_tasks():
                if "_housekeeping" in repr(other):
                    other.cancel()
            await asyncio.wait({task}, timeout=0.01)
        await task
        assert not is_late, "the proxy did not stop"


class Rig:
    """A Redis server behind a relay, an upstream, and proxies over them."""

    def __init__(
        self,
        up: ScriptedUpstream,
        client: aiohttp.ClientSession,
        folder: Path,
        server: RedisServer,
        relay: StallingProxy,
    ) -> None:
        self.up = up
        self.client = client
        self.folder = folder
        self.server = server
        self.relay = relay
        self.login = ""
        self.key: str | None = KEY

    def proxy(self, url: str = "", *, patience: int = 150, tenants: str = "auto") -> Stopping:
        values: dict[str, Json] = {
            "store.url": url or f"redis://{self.login}{HOST}:{self.relay.port}/0",
            "store.timeout_ms": patience,
            "tenancy.source": tenants,
            # What was made by code in an outage is to be found again, not to be made good.
            "compaction.background": False,
        }
        if self.key is not None:
            values["tenancy.key"] = self.key
        return Stopping(self.up.base_url, self.folder, **values)

    def agent(self, proxy: Running) -> Agent:
        return Agent(self.client, proxy.url, self.up)

    async def command(self, *words: Word) -> object:
        return await self.server.command(*words)

    async def ready(self, proxy: Running) -> JsonObject:
        async with self.client.get(proxy.url + "/_foldgate/ready") as reply:
            value = loads(await reply.read())
            assert isinstance(value, dict)
            return value

    async def until_stored(self, proxy: Running, seconds: float = 20.0) -> None:
        async def stored() -> bool:
            return (await self.ready(proxy))["pending_writes"] == 0

        await wait_until(stored, seconds, "everything is stored")

    @asynccontextmanager
    async def store(self) -> AsyncIterator[RedisStore]:
        """The same data, as another process sees it."""
        store = RedisStore(parse_store_url(self.server.url), Retention(DAY, DAY), sealer=Sealer())
        try:
            yield store
        finally:
            await store.close()

    async def sessions(self) -> set[str]:
        async with self.store() as store:
            return {row.id for row in await store.sessions()}

    async def assert_kept(self, agents: Sequence[Agent]) -> None:
        """A fresh process makes of each last request what was made of it before."""
        before = len(self.up.summaries)
        async with self.proxy(self.server.url) as proxy:
            for agent in agents:
                last = agent.exchanges[-1]
                again = await self.agent(proxy).post(last.sent)
                assert again.status == 200
                assert again.arrived == last.arrived
                assert again.session == last.session
                assert "compacted" not in again.marks
            assert_sober(proxy)
        assert len(self.up.summaries) == before


def assert_sober(proxy: Running) -> None:
    """Nothing failed inside, and no event tells what was said."""
    assert {"internal", "invariant"} & {*failures(proxy, "compaction_failed")} == set()
    told = dumps([*proxy.events]).decode()
    found = [word for word in ("nightly import", "mark0n", "mark1n", "src/", HOST) if word in told]
    assert found == []


def failures(proxy: Running, type_: str = "store_failed") -> list[str]:
    return checks.reasons(proxy.events.of_type(type_))


class Tripwire(StallingProxy):
    """A relay whose mode changes before the first request that holds a word gets through."""

    word = b""
    then: Mode = "pass"

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_reply: bool
    ) -> None:
        relayed = asyncio.StreamReader()
        task = asyncio.get_running_loop().create_task(
            super()._pump(relayed, sink, is_reply=is_reply)
        )
        try:
            while data := await source.read(65536):
                if not is_reply and self.word and self.word in data:
                    self.word = b""
                    self.mode = self.then
                    # Who is cut off here must not get through.
                    await asyncio.sleep(0)
                relayed.feed_data(data)
            relayed.feed_eof()
            await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request asks the store, and what failed is tried again soon."""
    monkeypatch.setattr("proxy.compactor.memory.FRESH_SECONDS", 0.0)
    monkeypatch.setattr("proxy.compactor.memory.RETRY_SECONDS", 0.1)
    monkeypatch.setattr("proxy.compactor.breaker.RETRY_SECONDS", 0.1)
    monkeypatch.setattr("proxy.server.app.FLUSH_SECONDS", 0.1)
    monkeypatch.setitem(redis_client._COMMON, "socket_timeout", 0.7)
    monkeypatch.setattr("proxy.sessions.redis_client.ANSWER_SECONDS", 0.7)


@pytest.fixture
async def relay() -> AsyncIterator[Tripwire]:
    async with Tripwire(0, delay=0.3) as relay:
        yield relay


@pytest.fixture
async def rig(
    up: ScriptedUpstream, client: aiohttp.ClientSession, tmp_path: Path, relay: Tripwire
) -> AsyncIterator[Rig]:
    checks.make_strict(up, WINDOW)
    folder = tmp_path / "redis"
    async with RedisServer(folder) as server:
        relay._target = server.port
        try:
            yield Rig(up, client, tmp_path, server, relay)
        finally:
            server.resume()


Outage = Callable[[Rig], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, slots=True)
class Trouble:
    """How a store fails, and the fixed words that events may give as the reason."""

    outage: Outage
    reasons: frozenset[str]
    stores: bool = False
    """What takes long is stored all the same."""


def relayed(mode: Mode) -> Outage:
    @asynccontextmanager
    async def outage(rig: Rig) -> AsyncIterator[None]:
        rig.relay.mode = mode
        yield
        rig.relay.mode = "pass"

    return outage


def configured(*commands: tuple[Sequence[Word], Sequence[Word]]) -> Outage:
    """Pairs of a command that begins the trouble and one that ends it."""

    @asynccontextmanager
    async def outage(rig: Rig) -> AsyncIterator[None]:
        for begin, _ in commands:
            assert await rig.command(*begin) == b"OK"
        yield
        for _, end in commands:
            assert await rig.command(*end) == b"OK"

    return outage


def config(name: str, bad: Word, good: Word) -> Outage:
    return configured((("CONFIG", "SET", name, bad), ("CONFIG", "SET", name, good)))


def acl(bad: str, good: str) -> Outage:
    begin, end = (["ACL", "SETUSER", "default", *rules.split()] for rules in (bad, good))
    return configured((begin, end))


@asynccontextmanager
async def paused(rig: Rig) -> AsyncIterator[None]:
    rig.server.pause()
    yield
    rig.server.resume()


@asynccontextmanager
async def killed(rig: Rig) -> AsyncIterator[None]:
    """Its data was saved before."""
    await rig.command("SAVE")
    await rig.server.kill()
    yield
    await rig.server.start()


@asynccontextmanager
async def loading(rig: Rig) -> AsyncIterator[None]:
    """It starts again and takes long to read its data."""
    for number in range(80):
        await rig.command("SET", f"filler{number}", b"x" * 3000)
    await rig.command("CONFIG", "SET", "rdbcompression", "no")
    await rig.command("SAVE")
    await rig.server.kill()
    usual = rig.server._args
    slowly = ["--key-load-delay", "40000", "--loading-process-events-interval-bytes", "1024"]

    async def is_loading() -> bool:
        if not rig.server.is_running:
            rig.server._args = slowly
            rig.server._spawn()
            rig.server._args = usual
        try:
            return await rig.command("PING") != b"PONG"
        except ReplyError as error:
            return "LOADING" in str(error)

    await wait_until(is_loading, what="the server says that it is loading")
    yield
    await wait_until(rig.server._is_ready, 30.0, "the server has loaded")


@asynccontextmanager
async def unable_to_save(rig: Rig) -> AsyncIterator[None]:
    # Stands where the snapshot is to be put; a folder without write permission stops no root.
    (rig.server.folder / "dump.rdb").mkdir()
    await rig.command("CONFIG", "SET", "save", "3600 1")
    await rig.command("BGSAVE")

    async def has_failed() -> bool:
        info = await rig.command("INFO", "persistence")
        return isinstance(info, bytes) and b"rdb_last_bgsave_status:err" in info

    await wait_until(has_failed, what="the snapshot failed")
    yield
    await rig.command("CONFIG", "SET", "save", "")


def password(*, named_user: bool) -> Outage:
    """It is changed, and whoever had the old one is thrown out."""

    @asynccontextmanager
    async def outage(rig: Rig) -> AsyncIterator[None]:
        if named_user:
            await rig.command("ACL", "SETUSER", "fold", "resetpass", ">other")
        else:
            await rig.command("CONFIG", "SET", "requirepass", "other")
            rig.server.password = "other"
        await rig.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        yield
        if named_user:
            await rig.command("ACL", "SETUSER", "fold", "resetpass", ">good")
        else:
            await rig.command("CONFIG", "SET", "requirepass", "")
            rig.server.password = None

    return outage


@asynccontextmanager
async def stranger(rig: Rig) -> AsyncIterator[None]:
    """Something else answers there."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as other:
        rig.relay._target = other.sockets[0].getsockname()[1]
        rig.relay.mode = "cut"
        rig.relay.mode = "pass"
        yield
    rig.relay._target = rig.server.port


def words(*reasons: str) -> frozenset[str]:
    return frozenset(reasons)


TROUBLES = {
    "slow": Trouble(relayed("slow"), words("timeout"), stores=True),
    "hanging": Trouble(relayed("hang"), words("timeout")),
    "replies_lost": Trouble(relayed("mute"), words("timeout")),
    "paused": Trouble(paused, words("timeout")),
    "refusing": Trouble(relayed("refuse"), words("unreachable")),
    "cutting": Trouble(relayed("cut"), words("unreachable")),
    "killed": Trouble(killed, words("unreachable")),
    "loading": Trouble(loading, words("loading", "unreachable")),
    "stranger": Trouble(stranger, words("refused", "unreachable")),
    "replica": Trouble(
        configured((("REPLICAOF", HOST, "1"), ("REPLICAOF", "NO", "ONE"))), words("read_only")
    ),
    "too_few_replicas": Trouble(config("min-replicas-to-write", 1, 0), words("too_few_replicas")),
    "out_of_memory": Trouble(config("maxmemory", 1, 0), words("out_of_memory")),
    "cannot_save": Trouble(unable_to_save, words("cannot_save")),
    "password_changed": Trouble(password(named_user=False), words("wrong_password")),
    "user_password_changed": Trouble(password(named_user=True), words("wrong_password")),
    "no_scripts": Trouble(acl("-eval -evalsha", "+eval +evalsha"), words("no_permission")),
    "no_writes_in_scripts": Trouble(acl("-hset -hsetnx", "+hset +hsetnx"), words("no_permission")),
    "no_keys": Trouble(acl("resetkeys ~other:*", "~*"), words("no_permission")),
}


@pytest.fixture(params=[*TROUBLES])
async def trouble(rig: Rig, request: pytest.FixtureRequest) -> Trouble:
    binary = servers.default_binary()
    if request.param == "loading" and binary and servers.version(binary) < (7, 0, 0):
        pytest.skip("this redis-server cannot be told to load slowly")
    if request.param == "user_password_changed":
        await rig.command("ACL", "SETUSER", "fold", "on", ">good", "~*", "&*", "+@all")
        rig.login = "fold:good@"
    return TROUBLES[str(request.param)]


@pytest.mark.slow
async def test_sessions_live_through_it(
    rig: Rig, trouble: Trouble, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that was compacted before, one that is new, and one that only needs a clip."""
    steps, late = steps_of(session()), session(1, 18)
    clipped = [*session(2, 3)[:-1], b.result(b.call_id(2, 2), b.prose(90_000, 5))]
    async with rig.proxy() as proxy:
        main, new, big = [rig.agent(proxy) for _ in range(3)]
        for step in steps[: FIRST + 4]:
            await main.say(step)
        await rig.until_stored(proxy)
        known = len(rig.up.summaries)
        async with trouble.outage(rig):
            for step in steps[FIRST + 4 : SECOND + 3]:
                await main.say(step)
            await new.say(late)
            await big.say(clipped)
            page = await rig.ready(proxy)
            during = len(rig.up.summaries)
        await rig.until_stored(proxy)
        for step in steps[SECOND + 3 :]:
            await main.say(step)
        await new.say([*late, b.assistant("So."), b.user("And now?")])
        await big.say([*clipped, b.assistant("So."), b.user("And now?")])
        await rig.until_stored(proxy)
        assert_sober(proxy)
        told = failures(proxy)
    agents = [main, new, big]
    for agent in agents:
        checks.assert_fine(agent.exchanges, rig.up)
        checks.assert_stable(agent.exchanges)
    checks.assert_in_every(b.TASK, [*main.exchanges, *new.exchanges])
    assert known == during == 1
    assert main.exchanges[SECOND].marks == ["compacted", "extractive"]
    assert [e.marks for e in new.exchanges] == [["compacted", "extractive"], ["reused"]]
    assert [e.marks for e in big.exchanges] == [["clipped"]] * 2
    assert main.exchanges[THIRD].marks == ["compacted"]
    assert page["store"] == "down"
    if not trouble.stores:
        assert page["pending_writes"] == 3
    # Who is thrown out in the middle of a command may hear anything.
    assert set(told) - {"refused"} <= trouble.reasons
    assert told
    await rig.assert_kept(agents)
    output = capsys.readouterr()
    assert "nightly import" not in output.out + output.err


FROM_THE_START = ["hanging", "refusing", "replica", "out_of_memory", "no_scripts", "no_keys"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FROM_THE_START, "password_changed", "stranger"])
async def test_a_proxy_starts_into_it(
    rig: Rig, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the key of its tenants at hand it warns and works, and stores when it can."""
    late, trouble = session(1, 18), TROUBLES[name]
    outage = trouble.outage(rig)
    await outage.__aenter__()
    async with rig.proxy() as proxy:
        warned = capsys.readouterr()
        agent = rig.agent(proxy)
        await agent.say(late)
        page = await rig.ready(proxy)
        await outage.__aexit__(None, None, None)
        await rig.until_stored(proxy)
        await agent.say([*late, b.assistant("So."), b.user("And now?")])
        assert_sober(proxy)
        told = failures(proxy)
    checks.assert_fine(agent.exchanges, rig.up)
    assert [e.marks for e in agent.exchanges] == [["compacted", "extractive"], ["reused"]]
    assert (page["status"], page["store"], page["pending_writes"]) == ("ok", "down", 1)
    assert set(told) <= trouble.reasons
    if name in {"hanging", "refusing", "no_keys", "password_changed", "stranger"}:
        assert "store_unavailable" in warned.out + warned.err
    await rig.assert_kept([agent])


@pytest.mark.parametrize("name", ["hanging", "refusing", "password_changed", "no_keys"])
async def test_a_proxy_without_a_key_for_its_tenants_does_not_start(rig: Rig, name: str) -> None:
    rig.key = None
    async with TROUBLES[name].outage(rig):
        with warnings.catch_warnings():
            # Whether connections are closed is the next test's matter.
            warnings.simplefilter("ignore", ResourceWarning)
            text = await refused_start(rig, StoreUnavailable)
            assert "tenancy.key" in await refused_start(rig, SettingsError, "credential")
            gc.collect()
    assert f"redis://{HOST}:{rig.relay.port}/0: Redis: {next(iter(TROUBLES[name].reasons))}" in text
    assert "tenancy.key" in text


async def refused_start(rig: Rig, kind: type[Exception], tenants: str = "auto") -> str:
    with pytest.raises(kind) as caught:
        async with rig.proxy(tenants=tenants):
            pass
    return str(caught.value)


async def test_a_refused_start_leaves_no_connection_open(rig: Rig) -> None:
    rig.key = None
    async with TROUBLES["no_keys"].outage(rig):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ResourceWarning)
            await refused_start(rig, StoreUnavailable)
            gc.collect()
    assert [str(warning.message) for warning in caught] == []


async def test_a_wrong_password_is_named_but_not_shown(rig: Rig) -> None:
    """It works without a restart once the server takes it."""
    rig.login = ":hunter2-secret@"
    late = session(1, 18)
    async with rig.proxy() as proxy:
        agent = rig.agent(proxy)
        await rig.command("CONFIG", "SET", "requirepass", "other")
        rig.server.password = "other"
        await rig.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        await agent.say(late)
        told = failures(proxy)
        await rig.command("CONFIG", "SET", "requirepass", "hunter2-secret")
        rig.server.password = "hunter2-secret"
        await rig.until_stored(proxy)
        assert "hunter2" not in dumps([*proxy.events]).decode()
    checks.assert_fine(agent.exchanges, rig.up)
    assert set(told) == {"wrong_password"}
    await rig.assert_kept([agent])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["hang", "mute", "cut", "refuse"])
async def test_a_store_that_fails_while_a_summary_is_written(rig: Rig, mode: Mode) -> None:
    """It was begun under a lease; nobody has to wait for it twice."""
    gate, late = asyncio.Event(), session(1, 18)
    rig.up.summary_replies.append(Reply(text=plausible_checkpoint(late), gate=gate))
    async with rig.proxy() as proxy:
        agent = rig.agent(proxy)
        task = asyncio.get_running_loop().create_task(agent.say(late))
        await rig.up.wait_for(lambda: len(rig.up.summaries) == 1)
        rig.relay.mode = mode
        gate.set()
        first = await task
        await agent.say([*late, b.assistant("So."), b.user("And now?")])
        rig.relay.mode = "pass"
        await rig.until_stored(proxy)
        assert_sober(proxy)
    checks.assert_fine(agent.exchanges, rig.up)
    checks.assert_stable(agent.exchanges)
    assert first.marks == ["compacted"]
    assert len(rig.up.summaries) == 1
    await rig.assert_kept([agent])


@pytest.mark.parametrize("name", ["paused", "refusing"])
async def test_many_conversations_in_an_outage(rig: Rig, name: str) -> None:
    """Each is compacted from what the process has, and none waits for the others."""
    clock = asyncio.get_running_loop().time
    async with rig.proxy() as proxy:
        agents = [rig.agent(proxy) for _ in range(16)]
        async with TROUBLES[name].outage(rig):
            started = clock()
            await asyncio.gather(*(a.say(session(n, 18)) for n, a in enumerate(agents)))
            took = clock() - started
            page = await rig.ready(proxy)
        await rig.until_stored(proxy)
        assert_sober(proxy)
    exchanges: list[Exchange] = [*itertools.chain(*(a.exchanges for a in agents))]
    checks.assert_fine(exchanges, rig.up)
    assert {tuple(e.marks) for e in exchanges} == {("compacted", "extractive")}
    assert page["pending_writes"] == 16
    assert took < 5.0
    await rig.assert_kept(agents)


@pytest.mark.slow
async def test_a_proxy_stops_whatever_it_is_storing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that the store refuses is tried again and again until the end."""
    monkeypatch.setattr("proxy.server.app.FLUSH_SECONDS", 0.0)
    for seed in range(40):
        async with rig.proxy() as proxy:
            agent = rig.agent(proxy)
            async with TROUBLES["replica"].outage(rig):
                await agent.say(session(seed, 18))
                told = len(failures(proxy))
                await wait_until(lambda told=told, p=proxy: len(failures(p)) > told)  # type: ignore[misc]
                await proxy.stop()
        checks.assert_fine(agent.exchanges, rig.up)


async def test_the_page_says_when_the_store_is_back(rig: Rig) -> None:
    """Also while nobody sends anything."""
    async with rig.proxy() as proxy:
        async with TROUBLES["refusing"].outage(rig):
            await rig.agent(proxy).say(session(1, 18))
            assert (await rig.ready(proxy))["store"] == "down"
        await rig.until_stored(proxy)

        async def is_back() -> bool:
            return (await rig.ready(proxy))["store"] == "ok"

        await wait_until(is_back, 5.0, "the page says that the store is back")
