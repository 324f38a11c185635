"""The Redis store: the common suite on every kind of deployment, and what only Redis can do."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from proxy import codec
from proxy.compaction.checkpoint import Checkpoint, Fold
from proxy.errors import StateCorrupt
from proxy.sessions import redis_events, state
from proxy.sessions.redis_client import RedisClient
from proxy.sessions.redis_keys import Keys, data, items
from proxy.sessions.redis_store import MAX_CUTS, RedisStore, Retention
from proxy.sessions.sealing import Sealer
from proxy.sessions.state import ClipSet
from proxy.sessions.store_url import parse_store_url
from tests import redis_servers as servers
from tests.contract.response_store_contract import (
    ResponseHarness,
    ResponseStoreContract,
    exported,
    name,
    record,
    response,
    texts,
)
from tests.contract.session_store_contract import (
    ANCHOR,
    DAY,
    GENEROUS,
    NOW,
    SessionStoreContract,
    archive_of,
    checkpoint_change,
    damage,
    digest,
    event,
    look,
    make_checkpoint,
    make_clips,
    noise,
    numbers,
)

_NUMBERS = itertools.count()
PLAIN = Sealer()
SECRET = Sealer([("k2", b"2" * 32), ("k1", b"1" * 32)])


class RedisHarness(ResponseHarness):
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

    async def put_fold(self, anchor: bytes, fold: Fold, data: bytes) -> None:
        assert (
            await self.client.call("HSET", self.keys.folds(anchor), fold.key, envelope(data)) == 0
        )

    async def blobs(self) -> int:
        return len({key async for key in self.client.keys(f"{self.prefix}:*:blob:*")})

    def another(self) -> "RedisHarness":
        return RedisHarness(self.url, self.sealer)

    async def stored_items(self) -> int:
        count = 0
        async for key in self.client.keys(self.keys.all_responses):
            fields = items(await self.client.call("HKEYS", key.decode()))
            pieces, named = ([f for f in fields if data(f)[:2] == kind] for kind in (b"b:", b"f:"))
            # All that is there is named.
            assert len(pieces) == len(named)
            count += len(pieces)
        return count

    async def spoil_item(self, anchor: bytes, raw: bytes, how: str) -> None:
        key, field = self.keys.responses(anchor), b"b:" + self.sealer.address(raw)
        stored = await self.client.call("HGET", key, field)
        assert isinstance(stored, bytes)
        await self.client.call("HSET", key, field, damage(stored, how))

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
    # Every further version runs in the slow group.
    return [
        pytest.param(path, id=name, marks=[pytest.mark.slow] if number else [])
        for number, (name, path) in enumerate(found.items())
    ]


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
) -> AsyncIterator[servers.RedisCluster]:
    folder = tmp_path_factory.mktemp("three_nodes")
    async with servers.RedisCluster(folder, request.param, nodes=3) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=_binaries())
async def sentinel(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("sentinel")
    async with servers.RedisSentinel(folder, request.param) as started:
        yield started.url


class TestSingleServer(SessionStoreContract, ResponseStoreContract):
    @pytest.fixture
    async def harness(self, single: str) -> AsyncIterator[RedisHarness]:
        harness = RedisHarness(single)
        yield harness
        await harness.close()


class TestEncrypted(SessionStoreContract, ResponseStoreContract):
    @pytest.fixture
    async def harness(self, single: str) -> AsyncIterator[RedisHarness]:
        harness = RedisHarness(single, SECRET)
        yield harness
        await harness.close()


class TestLoneClusterNode(SessionStoreContract, ResponseStoreContract):
    @pytest.fixture
    async def harness(self, lone_node: str) -> AsyncIterator[RedisHarness]:
        harness = RedisHarness(lone_node)
        yield harness
        await harness.close()


class TestCluster(SessionStoreContract, ResponseStoreContract):
    @pytest.fixture
    async def harness(self, three_nodes: servers.RedisCluster) -> AsyncIterator[RedisHarness]:
        harness = RedisHarness(three_nodes.url)
        yield harness
        await harness.close()


class TestSentinel(SessionStoreContract, ResponseStoreContract):
    @pytest.fixture
    async def harness(self, sentinel: str) -> AsyncIterator[RedisHarness]:
        harness = RedisHarness(sentinel)
        yield harness
        await harness.close()


@pytest.fixture
async def harness(single: str) -> AsyncIterator[RedisHarness]:
    harness = RedisHarness(single)
    yield harness
    await harness.close()


async def test_a_slot_that_is_half_moved(three_nodes: servers.RedisCluster) -> None:
    """Lookups and commits work on either side; an archive may have to wait for the move."""
    harness = RedisHarness(three_nodes.url)
    store = await harness.open()
    anchors = [b"anchor-%d-to-be-moved" % n for n in range(6)]
    checkpoints = {anchor: make_checkpoint(anchor.hex()[:18]) for anchor in anchors}
    archive = archive_of(b"one", b"two", b"three")
    for anchor, checkpoint in checkpoints.items():
        await store.commit(
            checkpoint_change(checkpoint, anchor=anchor, archive=archive, events=(event(1),))
        )
    for anchor, checkpoint in checkpoints.items():
        slot = await three_nodes.slot_of(harness.keys.state(anchor))
        source = await three_nodes.owner_of(slot)
        later = [make_checkpoint(f"{checkpoint.id}-{n}", n) for n in range(2, 7)]

        async def use(
            anchor: bytes = anchor, later: list[Checkpoint] = later, whole: Checkpoint = checkpoint
        ) -> None:
            finds = asyncio.gather(*(store.find(anchor, [digest(1)]) for _ in range(30)))
            loads = asyncio.gather(*(store.load_checkpoint(anchor, whole.id) for _ in range(10)))
            commits = (store.commit(checkpoint_change(one, anchor=anchor)) for one in later)
            leases = (store.acquire_lease(anchor, digest(n), 60.0) for n in range(20))
            await asyncio.gather(*commits)
            assert all(await asyncio.gather(*leases))
            assert all(dict(one.checkpoints) == {whole.id: whole} for one in await finds)
            assert await loads == [whole] * 10

        await three_nodes.move_slots([slot], source, (source + 1) % 3, use)
        again = await store.find(anchor, [digest(1), digest(6)], [])
        assert set(again.cuts.values()) == {checkpoint.id, *(one.id for one in later)}
        assert await store.archived("s1", checkpoint.id) in ([*archive], [])
    await harness.close()


async def test_responses_whose_slots_are_half_moved(three_nodes: servers.RedisCluster) -> None:
    """The responses of an anchor are in one slot, what points to them in others."""
    harness = RedisHarness(three_nodes.url)
    store = (await harness.open()).responses
    await record(
        store,
        *(response(f"r{n}", "ab", f"r{n - 1}" if n else "", 2 * n) for n in range(5)),
        response("r5", "cd", "r4", 10, names={"c": 0, "d": 1}),
    )
    places = [
        harness.keys.responses(ANCHOR),
        harness.keys.response(name("r5")),
        harness.keys.item(name("d")),
        harness.keys.recorded,
    ]
    for number, key in enumerate(places):
        slot = await three_nodes.slot_of(key)
        source = await three_nodes.owner_of(slot)

        async def use(number: int = number) -> None:
            loads = asyncio.gather(*(texts(store, "r5") for _ in range(20)))
            items = asyncio.gather(
                *(store.load_items([name("c"), name("d"), name("?")]) for _ in range(20))
            )
            saves = [
                response(f"new{number}-{n}", "x", "r5", 3, names={f"i{n}": 0, "d": 0})
                for n in range(20)
            ]
            await asyncio.gather(*(record(store, one) for one in saves))
            await record(store, response("r5", "cd", "r4", 10, names={"c": 0, "d": 1}))
            assert await loads == [["ababababab" + "cd"]] * 20
            assert all(set(found) == {name("c"), name("d")} for found in await items)
            assert await store.forget(saves[0].key) is True
            assert await store.expire(NOW + 1) == 0

        await three_nodes.move_slots([slot], source, (source + 1) % 3, use)
        assert await texts(store, "r5", f"new{number}-7") == ["ababababab" + "cd", "abax"]
    assert len(await exported(store)) == 6 + 19 * len(places)
    await harness.close()


async def test_the_listing_is_repaired_from_the_state(harness: RedisHarness) -> None:
    """A process that dies between the commit and the listing leaves a session unlisted."""
    store = await harness.open()
    for n in range(3):
        checkpoint = make_checkpoint(f"cp{n}", n, session=f"s{n}")
        await store.commit(checkpoint_change(checkpoint, anchor=b"%019d" % n, time=NOW + n))
    await harness.client.call("UNLINK", harness.keys.used)
    await harness.client.call("UNLINK", harness.keys.anchors)
    again = await harness.open()
    assert await again.sessions() == []
    assert await again.expire(NOW) == 0
    assert [row.id for row in await again.sessions()] == ["s2", "s1", "s0"]
    assert await again.delete_session("s1") is True


async def test_a_session_that_is_listed_too_early_is_not_expired(harness: RedisHarness) -> None:
    store = await harness.open()
    await store.commit(checkpoint_change(make_checkpoint("cp1")))
    await harness.client.call("ZADD", harness.keys.used, repr(NOW - 10 * DAY), "s1")
    assert await store.expire(NOW + 1) == 0
    assert await store.load_checkpoint(ANCHOR, "cp1") == make_checkpoint("cp1")
    assert [row.used for row in await store.sessions()] == [NOW]
    assert await store.expire(NOW + DAY + 1) == 1


async def test_the_oldest_cut_makes_room(harness: RedisHarness) -> None:
    store = await harness.open()
    for n in range(MAX_CUTS + 3):
        await store.commit(checkpoint_change(make_checkpoint(f"cp{n}", n, created=NOW + n)))
    found = await store.find(ANCHOR, [digest(n) for n in range(MAX_CUTS + 3)])
    assert set(found.cuts.values()) == {f"cp{n}" for n in range(3, MAX_CUTS + 3)}
    assert await store.load_checkpoint(ANCHOR, "cp2") is None
    assert await store.load_checkpoint(ANCHOR, "cp3") is not None


async def test_the_oldest_clips_and_events_make_room(
    harness: RedisHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_events, "MAX_EVENTS", 5)
    store = await harness.open()
    for n in range(state.MAX_CLIP_SETS + 2):
        clips = make_clips(n)
        await store.commit(
            replace(checkpoint_change(make_checkpoint("cp")), checkpoint=None, clip_set=clips)
        )
    await store.append_events([event(n) for n in range(9)])
    kept = sorted(clips.digest for clips in (await look(store)).clip_sets)
    assert kept == [digest(n) for n in range(2, state.MAX_CLIP_SETS + 2)]
    assert numbers(await store.events("s1")) == [4, 5, 6, 7, 8]


async def test_a_checkpoint_that_was_lost_can_be_stored_again(harness: RedisHarness) -> None:
    store = await harness.open()
    change = checkpoint_change(make_checkpoint("cp1"), archive=archive_of(b"x"))
    await store.commit(change)
    await harness.client.call("UNLINK", harness.keys.state(ANCHOR))
    assert await look(store, [digest(1)]) == (await look(store, [], b"unknown"))
    await store.commit(replace(change, archive=()))
    assert (await store.find(ANCHOR, [digest(1)])).cuts == {digest(1): "cp1"}


async def test_an_archive_that_expired_is_stored_anew(harness: RedisHarness) -> None:
    """Blobs have a life of their own; what counted references to a gone one is void."""
    store = await harness.open()
    archive = archive_of(b"shared", noise(700_000, 9))
    await store.commit(checkpoint_change(make_checkpoint("cp1"), archive=archive))
    async for key in harness.client.keys(f"{harness.prefix}:*:blob:*"):
        await harness.client.call("UNLINK", key.decode())
    assert await store.archived("s1", "cp1") == []
    for session in ("s2", "s3"):
        checkpoint = make_checkpoint(f"cp-{session}", 2, session=session)
        await store.commit(checkpoint_change(checkpoint, archive=archive))
    await store.delete_session("s2")
    assert await store.archived("s3", "cp-s3") == [*archive]
    await store.delete_session("s3")
    assert await store.archived("s1", "cp1") == []


async def test_a_large_item_goes_in_parts(harness: RedisHarness) -> None:
    """No single command is large; what a crash leaves of an item is not taken for it."""
    store = await harness.open()
    archive = archive_of(noise(3_000_000, 5), b"small", noise(300_000, 6))
    change = checkpoint_change(make_checkpoint("cp1"), archive=archive)
    await store.commit(change)
    await store.commit(change)
    other = make_checkpoint("cp2", 2, session="s2")
    await store.commit(checkpoint_change(other, archive=archive[:1]))
    assert await store.archived("s1", "cp1") == [*archive]
    kinds = {}
    async for key in harness.client.keys(f"{harness.prefix}:*:blob:*"):
        name = key.decode()
        kinds[name] = await harness.client.call("TYPE", name)
        assert await harness.client.call("PTTL", name)
    assert sorted(str(kind) for kind in kinds.values()) == ["b'list'"] * 2 + ["b'string'"]
    await store.delete_session("s1")
    assert await store.archived("s2", "cp2") == [archive[0]]
    assert await harness.blobs() == 1
    await store.delete_session("s2")
    assert await harness.blobs() == 0
