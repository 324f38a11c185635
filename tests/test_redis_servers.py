"""The Redis servers of the tests do what their names say, and leave nothing behind."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hiredis import ReplyError

from tests.redis_servers import (
    HOST,
    NO_SERVER,
    Mode,
    NotStarted,
    RedisCluster,
    RedisSentinel,
    RedisServer,
    StallingProxy,
    Wire,
    binaries,
    default_binary,
    free_port,
    parse_monitor_line,
    version,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(default_binary() is None, reason=NO_SERVER),
]

SCRIPT = "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('GET', KEYS[1])"


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(params=["path", "wheel"])
def binary(request: pytest.FixtureRequest) -> Path:
    found = binaries().get(str(request.param))
    if found is None:
        pytest.skip(f"no {request.param} binary")
    return found


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with RedisServer(tmp_path) as server:
        yield server


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server whose process outlives the event loop that started it."""
    server = RedisServer(tmp_path_factory.mktemp("shared"))
    try:
        asyncio.run(server.start())
        yield server
    finally:
        server.end()


async def test_a_server_answers_and_ends(tmp_path: Path, binary: Path) -> None:
    async with RedisServer(tmp_path, binary, password="s3cret:/@", unix_socket=True) as server:
        assert await server.command("SET", b"k\r\n", 7) == b"OK"
        assert await server.command("GET", b"k\r\n") == b"7"
        assert server.url == f"redis://:s3cret%3A%2F%40@{HOST}:{server.port}/0"
        assert (tmp_path / "r.sock").is_socket()
        with pytest.raises(ReplyError, match="NOAUTH"):
            async with Wire.open(server.port) as wire:
                await wire.call("PING")
        info = await server.command("INFO", "server")
        assert b"redis_version:%d.%d.%d\r\n" % version(binary) in bytes(info)  # type: ignore[call-overload]
    assert not is_alive(server.pid)


async def test_kill_and_restart_keep_what_was_persisted(tmp_path: Path, binary: Path) -> None:
    async with RedisServer(tmp_path, binary, args=["--appendonly", "yes"]) as server:
        await server.command("SET", "k", "v")
        port = server.port
        await server.kill()
        assert not server.is_running
        await server.restart()
        assert (server.port, await server.command("GET", "k")) == (port, b"v")
        await server.restart()
        assert await server.command("GET", "k") == b"v"


async def test_a_paused_server_is_silent_until_it_resumes(server: RedisServer) -> None:
    server.pause()
    with pytest.raises(TimeoutError):
        await server.command("PING", seconds=0.1)
    server.resume()
    assert await server.command("PING") == b"PONG"


async def test_a_paused_server_is_ended_too(tmp_path: Path) -> None:
    async with RedisServer(tmp_path) as server:
        server.pause()
    assert not is_alive(server.pid)


async def test_a_taken_port_is_left_for_another(
    tmp_path: Path, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = iter([server.port, free_port()])
    monkeypatch.setattr("tests.redis_servers.free_port", lambda: next(ports))
    async with RedisServer(tmp_path / "other") as other:
        assert other.port != server.port
    with pytest.raises(NotStarted):
        await RedisServer(tmp_path / "third", port=server.port).start()


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotStarted, match="no-such-option"):
        await RedisServer(tmp_path, args=["--no-such-option", "1"]).start()


async def test_a_process_outlives_its_event_loop(shared: RedisServer) -> None:
    assert await shared.command("PING") == b"PONG"


async def test_the_monitor_tells_scripts_from_clients(server: RedisServer) -> None:
    async with server.monitor() as lines:
        await server.command("EVAL", SCRIPT, 1, "k", b'\x00 "\\\n\xff')
        await lines.settle()
        assert [(line.name, line.is_lua) for line in lines] == [
            ("EVAL", False),
            ("SET", True),
            ("GET", True),
        ]
        assert lines[1].words == (b"SET", b"k", b'\x00 "\\\n\xff')
        lines.clear()
        await lines.settle()
        assert lines == []


async def test_the_monitor_survives_the_end_of_its_server(server: RedisServer) -> None:
    async with server.monitor() as lines:
        await server.command("SET", "k", "v")
        await lines.settle()
        await server.kill()
    assert [line.name for line in lines] == ["SET"]


def test_a_monitor_line_is_unescaped() -> None:
    line = parse_monitor_line(rb'17.5 [0 unix:/tmp/r.sock] "set" "a\"b\\n" "\x00\r\n"')
    assert (line.client, line.words) == ("unix:/tmp/r.sock", (b"set", b'a"b\\n', b"\x00\r\n"))


async def test_the_proxy_passes_and_delays(server: RedisServer) -> None:
    async with StallingProxy(server.port, delay=0.15) as proxy, Wire.open(proxy.port) as wire:
        loop = asyncio.get_running_loop()
        assert await wire.call("PING") == b"PONG"
        proxy.mode = "slow"
        begin = loop.time()
        assert await wire.call("PING") == b"PONG"
        assert loop.time() - begin >= 0.15


@pytest.mark.parametrize(("mode", "is_run"), [("hang", False), ("mute", True)])
async def test_the_proxy_swallows(server: RedisServer, mode: Mode, is_run: bool) -> None:
    async with StallingProxy(server.port) as proxy, Wire.open(proxy.port) as wire:
        proxy.mode = mode
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await wire.call("SET", "k", "v")
        assert await server.command("EXISTS", "k") == is_run
        proxy.mode = "pass"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await wire.call("PING")
        async with Wire.open(proxy.port) as fresh:
            assert await fresh.call("PING") == b"PONG"
        assert proxy.accepted == 2


@pytest.mark.parametrize("mode", ["cut", "refuse"])
async def test_the_proxy_closes_connections(server: RedisServer, mode: Mode) -> None:
    async with StallingProxy(server.port) as proxy:
        async with Wire.open(proxy.port) as wire:
            assert await wire.call("PING") == b"PONG"
            proxy.mode = mode
            with pytest.raises((EOFError, ConnectionError)):
                await wire.call("PING")
        with pytest.raises((EOFError, ConnectionError)):
            async with Wire.open(proxy.port) as wire:
                await wire.call("PING")
        proxy.mode = "pass"
        async with Wire.open(proxy.port) as wire:
            assert await wire.call("PING") == b"PONG"


async def test_the_proxy_drops_clients_of_a_dead_server(server: RedisServer) -> None:
    async with StallingProxy(server.port) as proxy, Wire.open(proxy.port) as wire:
        assert await wire.call("PING") == b"PONG"
        await server.kill()
        with pytest.raises((EOFError, ConnectionError)):
            await wire.call("PING")


async def test_a_cluster_of_one_has_every_slot(tmp_path: Path) -> None:
    async with RedisCluster(tmp_path, nodes=1) as cluster:
        node = cluster.nodes[0]
        assert cluster.url == f"redis+cluster://{HOST}:{node.port}/"
        await node.command("SET", "a", 1)
        await node.command("SET", "b", 2)
        assert await cluster.keys() == [b"a", b"b"]
        assert await cluster.owner_of(await cluster.slot_of("a")) == 0
        await cluster.flush()
        assert await cluster.keys() == []
    assert not is_alive(node.pid)


async def test_a_slot_moves_with_its_keys(tmp_path: Path, binary: Path) -> None:
    async with RedisCluster(tmp_path, binary) as cluster:
        slot = await cluster.slot_of("{tag}")
        source = await cluster.owner_of(slot)
        target = (source + 1) % 3
        giver, taker = cluster.nodes[source], cluster.nodes[target]
        keys = [b"{tag}%d" % n for n in range(5)]
        for key in keys:
            await giver.command("SET", key, "v")
        counts: list[object] = []

        async def act() -> None:
            for node in (giver, taker):
                counts.append(await node.command("CLUSTER", "COUNTKEYSINSLOT", slot))
            with pytest.raises(ReplyError, match=f"ASK {slot} {HOST}:{taker.port}"):
                await giver.command("GET", "{tag}none")

        await cluster.move_slots([slot], source, target, act)
        await cluster.move_slots(range(slot + 1, slot + 9), source, target)
        assert counts == [2, 3]
        assert await cluster.owner_of(slot + 8) == target
        assert await cluster.owner_of(slot) == target
        assert await cluster.keys() == keys
        with pytest.raises(ReplyError, match=f"MOVED {slot} {HOST}:{taker.port}"):
            await giver.command("GET", keys[0])
        assert await taker.command("GET", keys[0]) == b"v"
    assert not any(is_alive(node.pid) for node in cluster.nodes)


@pytest.mark.slow
async def test_a_killed_node_comes_back(tmp_path: Path) -> None:
    async with RedisCluster(tmp_path) as cluster:
        port = cluster.nodes[1].port
        await cluster.kill(1)
        with pytest.raises(ConnectionError):
            await cluster.nodes[1].command("PING")
        assert await cluster.keys() == []
        await cluster.nodes[1].restart()
        await cluster.wait_ok()
        assert cluster.nodes[1].port == port


async def test_a_cluster_that_fails_to_start_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "node2").write_text("not a folder")
    cluster = RedisCluster(tmp_path)
    with pytest.raises(FileExistsError):
        await cluster.__aenter__()
    assert not any(is_alive(node.pid) for node in cluster.nodes[:2])


async def test_a_sentinel_fails_over_on_request(tmp_path: Path, binary: Path) -> None:
    async with RedisSentinel(tmp_path, binary) as group:
        first, second = group.master, group.replica
        assert group.url == f"redis+sentinel://{HOST}:{group.sentinel.port}/mymaster/0"
        await first.command("SET", "k", "v")
        await group.failover()
        assert (group.master, group.replica) == (second, first)
        assert await group.keys() == [b"k"]
        with pytest.raises(ReplyError, match="READONLY"):
            await first.command("SET", "k", "w")
        await group.flush()
        assert await group.keys() == []


async def test_a_sentinel_replaces_a_dead_master(tmp_path: Path) -> None:
    async with RedisSentinel(tmp_path) as group:
        await group.master.command("SET", "k", "v")
        assert await group.wait_replicated()
        await group.kill_master()
        await group.wait_promoted()
        assert await group.keys() == [b"k"]
        assert not group.replica.is_running
    assert not any(is_alive(server.pid) for server in group.servers)
