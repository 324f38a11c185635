"""The Redis store: the common suite on every kind of deployment, and what only Redis can do."""

import itertools
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from proxy import codec
from proxy.errors import StateCorrupt
from proxy.sessions import state
from proxy.sessions.redis_client import RedisClient
from proxy.sessions.redis_keys import Keys
from proxy.sessions.redis_store import RedisStore, Retention
from proxy.sessions.sealing import Sealer
from proxy.sessions.state import ClipSet
from proxy.sessions.store_url import parse_store_url
from tests import redis_servers as servers
from tests.contract.session_store_contract import (
    DAY,
    GENEROUS,
    SessionStoreContract,
    StoreHarness,
)

_NUMBERS = itertools.count()
PLAIN = Sealer()
SECRET = Sealer([("k2", b"2" * 32), ("k1", b"1" * 32)])


class RedisHarness(StoreHarness):
    """Stores under a prefix of their own on a running deployment."""

    def __init__(self, url: str, sealer: Sealer = PLAIN) -> None:
        self.url = url
        self.sealer = sealer
        self.prefix = f"test{next(_NUMBERS)}"
        self.keys = Keys(self.prefix)
        self.client = RedisClient(parse_store_url(url))
        self.opened: list[RedisStore] = []

    async def open(
        self, *, retention_seconds: float = DAY, archive_bytes: int = GENEROUS
    ) -> RedisStore:
        store = RedisStore(
            parse_store_url(self.url),
            Retention(retention_seconds, DAY),
            prefix=self.prefix,
            sealer=self.sealer,
        )
        await store.open()
        self.opened.append(store)
        return store

    async def stored_checkpoint(self, checkpoint_id: str) -> bytes:
        return await self._get(f"c:{checkpoint_id}".encode(), checkpoint_id)

    async def put_checkpoint(self, checkpoint_id: str, data: bytes) -> None:
        await self._put(f"c:{checkpoint_id}".encode(), data)

    async def stored_clips(self, anchor: bytes, clips: ClipSet) -> bytes:
        field = b"k:" + clips.digest + clips.checkpoint.encode()
        return await self._get(field, f"{clips.digest.hex()} {clips.checkpoint}")

    async def put_clips(self, anchor: bytes, clips: ClipSet, data: bytes) -> None:
        await self._put(b"k:" + clips.digest + clips.checkpoint.encode(), data)

    async def blobs(self) -> int:
        return len({key async for key in self.client.keys(f"{self.prefix}:*:blob:*")})

    async def close(self) -> None:
        for store in self.opened:
            await store.close()
        await self.client.close()

    async def _key(self, field: bytes) -> tuple[str, bytes]:
        async for key in self.client.keys(self.keys.states):
            name = key.decode()
            found = await self.client.call("HGET", name, field)
            if isinstance(found, bytes):
                return name, found
        raise AssertionError("nothing is stored there")

    async def _get(self, field: bytes, name: str) -> bytes:
        key, found = await self._key(field)
        anchor = self.keys.anchor_of(key.encode())
        if not found[1]:
            return found[2:]
        return self.sealer.open(found, anchor.hex().encode() + b":" + name.encode())

    async def _put(self, field: bytes, data: bytes) -> None:
        key, _ = await self._key(field)
        assert await self.client.call("HSET", key, field, envelope(data)) == 0


def envelope(data: bytes) -> bytes:
    """What a version that writes `data` would put around it."""
    try:
        document = codec.loads(state.unpack(data))
    except (StateCorrupt, codec.MalformedJson):
        document = None
    version = document.get("schema_version") if isinstance(document, dict) else None
    return bytes((version if isinstance(version, int) else 1, 0)) + data


def _binaries() -> list[object]:
    found = servers.binaries()
    if not found:
        return [pytest.param(None, marks=pytest.mark.skip(reason=servers.NO_SERVER))]
    return [pytest.param(path, id=name) for name, path in found.items()]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=_binaries())
async def single(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("single")
    async with servers.RedisServer(folder, request.param) as started:
        yield started.url


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=_binaries())
async def lone_node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("lone_node")
    async with servers.RedisCluster(folder, request.param, nodes=1) as started:
        yield started.url


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=_binaries())
async def three_nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("three_nodes")
    async with servers.RedisCluster(folder, request.param, nodes=3) as started:
        yield started.url


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=_binaries())
async def sentinel(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("sentinel")
    async with servers.RedisSentinel(folder, request.param) as started:
        yield started.url


class RedisContract(SessionStoreContract):
    """The common suite; the archive is bounded by time, single events are not expired."""

    limits_archive = False
    expires_single_events = False


class TestSingleServer(RedisContract):
    @pytest.fixture
    async def harness(self, single: str) -> AsyncIterator[RedisHarness]:
        harness = RedisHarness(single)
        yield harness
        await harness.close()


class TestEncrypted(RedisContract):
    @pytest.fixture
    async def harness(self, single: str) -> AsyncIterator[RedisHarness]:
        harness = RedisHarness(single, SECRET)
        yield harness
        await harness.close()


class TestLoneClusterNode(RedisContract):
    @pytest.fixture
    async def harness(self, lone_node: str) -> AsyncIterator[RedisHarness]:
        harness = RedisHarness(lone_node)
        yield harness
        await harness.close()


class TestCluster(RedisContract):
    @pytest.fixture
    async def harness(self, three_nodes: str) -> AsyncIterator[RedisHarness]:
        harness = RedisHarness(three_nodes)
        yield harness
        await harness.close()


class TestSentinel(RedisContract):
    @pytest.fixture
    async def harness(self, sentinel: str) -> AsyncIterator[RedisHarness]:
        harness = RedisHarness(sentinel)
        yield harness
        await harness.close()
