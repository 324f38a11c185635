"""Data that is lost on its way or in Redis, damaged, deleted by others or of a newer version."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from proxy.codec import JsonObject
from proxy.errors import StoreError
from proxy.server.events import StoredEvents
from proxy.sessions import redis_scripts as scripts
from proxy.sessions.redis_store import RedisStore
from tests import builders as b
from tests import redis_servers as servers
from tests.e2e import checks
from tests.e2e.checks import Agent
from tests.e2e.test_redis_trouble import (
    FIRST,
    SECOND,
    THIRD,
    Rig,
    Stopping,
    Tripwire,
    assert_sober,
    brisk,
    failures,
    relay,
    rig,
    session,
    steps_of,
)
from tests.redis_servers import Mode, wait_until

pytestmark = pytest.mark.skipif(servers.default_binary() is None, reason=servers.NO_SERVER)

__all__ = ["brisk", "relay", "rig"]


async def checkpoints_of(rig: Rig) -> tuple[int, list[int]]:
    """How many checkpoints there are, and how many each session says it has."""
    count = 0
    keys = await rig.command("KEYS", "foldgate:*:state")
    assert isinstance(keys, list)
    for key in keys:
        fields = await rig.command("HKEYS", key)
        assert isinstance(fields, list)
        count += sum(field.startswith(b"c:") for field in fields)
    async with rig.store() as store:
        return count, [row.checkpoints for row in await store.sessions()]


SCRIPTS = {"archive": scripts.ARCHIVE.sha.encode(), "commit": scripts.COMMIT.sha.encode()}
LOST: dict[str, tuple[Mode, bool]] = {
    "reply_lost": ("mute", True),
    "swallowed": ("hang", False),
    "cut_before": ("cut", False),
    "refused_before": ("refuse", False),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LOST])
@pytest.mark.parametrize("script", [*SCRIPTS])
async def test_a_connection_that_breaks_in_the_middle_of_a_commit(
    rig: Rig, relay: Tripwire, name: str, script: str
) -> None:
    """The change is stored once, whether the server had run it or not."""
    mode, runs = LOST[name]
    late = session(1, 18)
    async with rig.proxy() as proxy:
        warm = rig.agent(proxy)
        await warm.say(session(3, 18))
        agent = rig.agent(proxy)
        relay.word, relay.then = SCRIPTS[script], mode
        await agent.say(late)
        await wait_until(lambda: relay.mode == mode, what="the commit was sent")
        page = await rig.ready(proxy)
        if script == "commit" and runs:
            await wait_until(lambda: _has_checkpoints(rig, 2), what="the server ran it")
        before = await checkpoints_of(rig)
        relay.mode = "pass"
        await rig.until_stored(proxy)
        await agent.say([*late, b.assistant("So."), b.user("And now?")])
        assert_sober(proxy)
    checks.assert_fine(agent.exchanges, rig.up)
    checks.assert_stable(agent.exchanges)
    assert agent.exchanges[0].marks == ["compacted"]
    assert page["pending_writes"] == 1
    assert before[0] == (2 if script == "commit" and runs else 1)
    assert await checkpoints_of(rig) == (2, [1, 1])
    assert len(rig.up.summaries) == 2
    await rig.assert_kept([agent])


async def _has_checkpoints(rig: Rig, count: int) -> bool:
    return (await checkpoints_of(rig))[0] == count


@pytest.mark.slow
async def test_scripts_flushed_at_any_moment(rig: Rig) -> None:
    async def flush() -> None:
        while True:
            await rig.command("SCRIPT", "FLUSH")

    async with rig.proxy(patience=2000) as proxy:
        task = asyncio.get_running_loop().create_task(flush())
        agents = [rig.agent(proxy) for _ in range(3)]
        await asyncio.gather(*(a.play(session(seed)) for seed, a in enumerate(agents)))
        await rig.until_stored(proxy)
        task.cancel()
        assert_sober(proxy)
        assert failures(proxy) == []
    for agent in agents:
        checks.assert_fine(agent.exchanges, rig.up)
        checks.assert_stable(agent.exchanges)
        assert checks.compactions(agent.exchanges) == [FIRST, SECOND, THIRD]
    await rig.assert_kept(agents)


async def _flush_all(rig: Rig) -> None:
    await rig.command("FLUSHALL")


async def _start_empty(rig: Rig) -> None:
    await rig.server.kill()
    await rig.server.start()


async def _evict(rig: Rig) -> None:
    """Only what the lookup needs; archive, listing and events stay."""
    keys = await rig.command("KEYS", "foldgate:*:state")
    assert isinstance(keys, list)
    assert keys
    await rig.command("DEL", *keys)


@pytest.mark.parametrize(
    ("lose", "often"),
    [
        (_flush_all, False),
        (_flush_all, True),
        (_start_empty, False),
        (_evict, False),
        (_evict, True),
    ],
)
async def test_a_living_process_stores_again_what_the_server_lost(
    rig: Rig, lose: Callable[[Rig], Awaitable[None]], often: bool
) -> None:
    steps = steps_of(session())
    async with rig.proxy(patience=1000) as proxy:
        agent = rig.agent(proxy)
        for number, step in enumerate(steps):
            if number == FIRST + 3 or (often and number > FIRST):
                await rig.until_stored(proxy)
                await lose(rig)
            await agent.say(step)
        await rig.until_stored(proxy)
        assert_sober(proxy)
        told = failures(proxy)
    checks.assert_fine(agent.exchanges, rig.up)
    checks.assert_stable(agent.exchanges)
    assert checks.compactions(agent.exchanges) == [FIRST, SECOND, THIRD]
    assert all("extractive" not in e.marks for e in agent.exchanges)
    assert "lost_checkpoint" in told
    assert len(rig.up.summaries) == 3
    await rig.assert_kept([agent])
    assert await rig.sessions() == {agent.exchanges[-1].session}


async def test_clips_live_on_when_the_server_lost_them(rig: Rig) -> None:
    """What was shortened once is shortened alike ever after, as the upstream's cache needs it."""
    messages = [*session(2, 3)[:-1], b.result(b.call_id(2, 2), b.prose(90_000, 5))]
    async with rig.proxy(patience=1000) as proxy:
        agent = rig.agent(proxy)
        first = await agent.say(messages)
        await rig.until_stored(proxy)
        await rig.command("FLUSHALL")
        for number in range(3):
            messages = [*messages, b.assistant("So."), b.user(f"And {number}?")]
            await agent.say(messages)
        await rig.until_stored(proxy)
    checks.assert_fine(agent.exchanges, rig.up)
    assert first.marks == ["clipped"]
    checks.assert_stable(agent.exchanges)
    await rig.assert_kept([agent])


async def test_a_deleted_session_stays_deleted(rig: Rig) -> None:
    """Another process deletes it; the living one begins anew instead of storing it again."""
    messages = session(1, 18)
    async with rig.proxy(patience=1000) as proxy:
        agent = rig.agent(proxy)
        before = await agent.say(messages)
        await rig.until_stored(proxy)
        async with rig.store() as store:
            assert await store.delete_session(before.session)
        after = await agent.say([*messages, b.assistant("So."), b.user("And now?")])
        await rig.until_stored(proxy)
        told = failures(proxy)
    checks.assert_fine(agent.exchanges, rig.up)
    assert after.marks == ["compacted"]
    assert after.session != before.session
    assert "lost_checkpoint" not in told
    assert await rig.sessions() == {after.session}
    assert checks.record_id(checks.record_of(before)) not in after.text


@pytest.mark.parametrize("needs", ["clip", "compaction"])
async def test_a_session_deleted_a_moment_ago_stays_deleted(
    rig: Rig, needs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The living process may use what it remembers for half a minute, but stores none of it."""
    monkeypatch.setattr("proxy.compactor.memory.FRESH_SECONDS", 30.0)
    messages = session(1, 18)
    async with rig.proxy(patience=1000) as proxy:
        agent = rig.agent(proxy)
        before = await agent.say(messages)
        await rig.until_stored(proxy)
        async with rig.store() as store:
            assert await store.delete_session(before.session)
        more = [*messages, b.assistant("So."), b.user(b.prose(90_000, 7))]
        await agent.say(more if needs == "clip" else session(1, 36))
        await rig.until_stored(proxy)
    checks.assert_fine(agent.exchanges, rig.up)
    assert before.session not in await rig.sessions()


STRING, LIST = b"string", b"list"


@dataclass(frozen=True, slots=True)
class Damage:
    """What is done to a key, or to a field of it; a name with a colon at its end may go on."""

    key: str
    field: bytes = b""
    value: Callable[[bytes], bytes] = bytes
    """The new value of the field; or, without a field, the kind of key that stands there."""

    async def do(self, rig: Rig) -> tuple[bytes, bytes]:
        """Return the key and field that were changed."""
        keys = await rig.command("KEYS", self.key)
        assert isinstance(keys, list)
        assert keys, self.key
        key = bytes(keys[0])
        if not self.field:
            await rig.command("DEL", key)
            if self.value(b"") == LIST:
                await rig.command("RPUSH", key, "x")
            else:
                await rig.command("SET", key, "x")
            return key, b""
        fields = await rig.command("HKEYS", key)
        assert isinstance(fields, list)
        field = self.field
        if field.endswith(b":"):
            field = next(bytes(f) for f in fields if f.startswith(field))
        old = await rig.command("HGET", key, field) or b"\1\0"
        assert isinstance(old, bytes)
        await rig.command("HSET", key, field, self.value(old))
        return key, field


def becomes(value: bytes) -> Callable[[bytes], bytes]:
    return lambda _: value


def shorter(old: bytes) -> bytes:
    return old[: len(old) // 2]


def newer(old: bytes) -> bytes:
    return b"\x09" + old[1:]


STATE = "foldgate:{????????????????????????????????????????}:state"
NOT_PACKED, NUMBER, WORDS = b"\xc1\xff?", b"\x2a", b"\x93\xa3abc\xa3def\xa3ghi"

VALUES = {
    "checkpoint_cut": Damage(STATE, b"c:", shorter),
    "checkpoint_newer": Damage(STATE, b"c:", newer),
    "checkpoint_empty": Damage(STATE, b"c:", becomes(b"")),
    "clips_cut": Damage(STATE, b"k:", shorter),
    "clips_newer": Damage(STATE, b"k:", newer),
    "struggle_garbage": Damage(STATE, b"t", becomes(b"?")),
    "struggle_newer": Damage(STATE, b"t", becomes(b"\x09?")),
}
"""A record that cannot be read counts as absent."""

LISTS = {
    f"{name}_{kind}": Damage(STATE, field, becomes(value))
    for name, field in {"index": b"i", "clip_sets": b"k", "row": b"x:", "leases": b"l"}.items()
    for kind, value in {"garbage": NOT_PACKED, "number": NUMBER, "words": WORDS}.items()
}
OTHERS = {
    "version": Damage(STATE, b"v", becomes(b"many")),
    "count": Damage(STATE, b"s", becomes(b"many")),
    "state_is_a_string": Damage(STATE, value=becomes(STRING)),
    "references_are_a_string": Damage("foldgate:*:references", value=becomes(STRING)),
    "entries_are_a_string": Damage("foldgate:*:archive:*", value=becomes(STRING)),
    "blob_is_a_list": Damage("foldgate:*:blob:*", value=becomes(LIST)),
    "events_are_a_string": Damage("foldgate:*:events:*", value=becomes(STRING)),
    "listing_is_a_string": Damage("foldgate:{sessions}:used", value=becomes(STRING)),
    "anchors_are_a_string": Damage("foldgate:{sessions}:anchors", value=becomes(STRING)),
}
DAMAGES = {**VALUES, **LISTS, **OTHERS}

UNREADABLE = {
    "corrupt_values",
    "refused",
    "unreadable",
    "malformed_reply",
    "lost_checkpoint",
    "lost_clips",
}


def long_session(seed: int = 0) -> list[list[JsonObject]]:
    """A conversation that is compacted, then clipped, and goes on until it is compacted again."""
    begin = session(seed, 18)
    clipped = [*begin, b.assistant("So."), b.user(b.prose(90_000, 7))]
    more = session(seed + 100, 10)[2:]
    return [begin, clipped, [*clipped, *more], [*clipped, *more, *session(seed + 200, 10)[2:]]]


async def begun(rig: Rig, proxy: Stopping) -> Agent:
    agent = rig.agent(proxy)
    for step in long_session()[:2]:
        await agent.say(step)
    await rig.until_stored(proxy)
    # The listing is made whole when a process starts.
    await rig.command("DEL", "foldgate:{sessions}:repaired")
    return agent


async def damaged_life(rig: Rig, name: str, proxy: Stopping, agent: Agent) -> None:
    """The session goes on over damaged data, and over data that was repaired."""
    rest = long_session()[1:]
    key, field = await DAMAGES[name].do(rig)
    await agent.say(rest[0])
    await agent.say(rest[1])
    if field:
        await rig.command("HDEL", key, field)
    else:
        await rig.command("DEL", key)
    await agent.say(rest[2])
    await rig.until_stored(proxy)
    assert_sober(proxy)
    # What was repaired by taking it away was lost, so what the process knew is stored again.
    assert set(failures(proxy)) <= UNREADABLE | {"lost_checkpoint", "lost_clips"}


@pytest.mark.parametrize("name", [*DAMAGES])
async def test_damage_under_a_living_process(rig: Rig, name: str) -> None:
    """What it remembers goes on; what could not be stored is stored once the damage is gone."""
    async with rig.proxy(patience=1000) as proxy:
        agent = await begun(rig, proxy)
        await damaged_life(rig, name, proxy, agent)
    checks.assert_fine(agent.exchanges, rig.up)
    checks.assert_stable(agent.exchanges)
    await rig.assert_kept([agent])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*DAMAGES])
async def test_damage_before_a_process_starts(rig: Rig, name: str) -> None:
    async with rig.proxy(patience=1000) as proxy:
        await begun(rig, proxy)
    async with rig.proxy(patience=1000) as proxy:
        agent = rig.agent(proxy)
        await damaged_life(rig, name, proxy, agent)
    checks.assert_fine(agent.exchanges, rig.up)
    checks.assert_stable(agent.exchanges)
    await rig.assert_kept([agent])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*DAMAGES])
async def test_damage_to_one_session_is_none_to_others(rig: Rig, name: str) -> None:
    """They are found, compacted by a model and stored, whatever requests come in between."""
    damage = DAMAGES[name]
    other = session(7, 18)
    async with rig.proxy(patience=1000) as proxy:
        before = await rig.agent(proxy).say(other)
        await rig.until_stored(proxy)
        others = await rig.command("KEYS", "foldgate:*")
        assert isinstance(others, list)
    # Set aside, so that the damage finds the other one.
    for key in others:
        if b"{sessions}" not in bytes(key):
            await rig.command("RENAME", key, b"aside:" + bytes(key))
    async with rig.proxy(patience=1000) as proxy:
        await begun(rig, proxy)
    await damage.do(rig)
    for key in others:
        if b"{sessions}" not in bytes(key):
            await rig.command("RENAME", b"aside:" + bytes(key), key)
    async with rig.proxy(patience=1000) as proxy:
        sick, well, new = [rig.agent(proxy) for _ in range(3)]
        await sick.say(long_session()[1])
        again = await well.say(other)
        await sick.say(long_session()[2])
        for step in steps_of(session(8)):
            await new.say(step)
        await sick.say(long_session()[2])
        assert_sober(proxy)
    for agent in (sick, well, new):
        checks.assert_fine(agent.exchanges, rig.up)
    assert again.arrived == before.arrived
    assert again.marks == ["reused"]
    assert checks.compactions(new.exchanges) == [FIRST, SECOND, THIRD]
    assert all("extractive" not in e.marks for e in new.exchanges)
    await rig.assert_kept([well, new])


@pytest.mark.parametrize("name", ["checkpoint_newer", "clips_newer", "struggle_newer"])
async def test_what_a_newer_version_wrote_is_never_overwritten(rig: Rig, name: str) -> None:
    async with rig.proxy(patience=1000) as proxy:
        await begun(rig, proxy)
    key, field = await DAMAGES[name].do(rig)
    written = await rig.command("HGET", key, field)
    async with rig.proxy(patience=1000) as proxy:
        agent = rig.agent(proxy)
        for step in long_session():
            await agent.say(step)
        await rig.until_stored(proxy)
        assert failures(proxy) == []
    checks.assert_fine(agent.exchanges, rig.up)
    assert await rig.command("HGET", key, field) == written


async def exported(store: RedisStore, id_: str) -> int:
    return sum([len(change.archive) async for change in store.export(id_)])


@pytest.mark.parametrize("name", [*DAMAGES])
async def test_damage_and_the_operator(rig: Rig, name: str) -> None:
    """Listing, copying, deletion and expiry do what they can, and fail in a known way at most."""
    async with rig.proxy(patience=1000) as proxy:
        agent = await begun(rig, proxy)
        sick = agent.exchanges[-1].session
    await DAMAGES[name].do(rig)
    async with rig.proxy(patience=1000) as proxy:
        well = (await rig.agent(proxy).say(session(7, 18))).session
        await rig.until_stored(proxy) if "listing" not in name else None
    listed = name not in {"listing_is_a_string", "anchors_are_a_string"}
    async with rig.store() as store:
        if listed:
            assert well in {row.id for row in await store.sessions()}
            assert await exported(store, well) > 0
        for call in (store.sessions, lambda: exported(store, sick)):
            await _known(call)
        if name in VALUES or name == "blob_is_a_list":
            assert await exported(store, sick) > 0
        await _known(lambda: store.delete_session(sick))
        await _known(lambda: store.expire(4_000_000_000.0))
        if listed:
            assert well not in {row.id for row in await store.sessions()}
            assert not await store.delete_session(well)


async def _known(call: Callable[[], Awaitable[object]]) -> None:
    try:
        await call()
    except StoreError:
        return


@pytest.mark.slow
async def test_events_of_one_session_that_cannot_be_kept(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of others are kept all the same, and once."""
    rounds = 0
    flush = StoredEvents.flush

    async def counted(self: StoredEvents) -> None:
        nonlocal rounds
        await flush(self)
        rounds += 1

    monkeypatch.setattr(StoredEvents, "flush", counted)
    async with rig.proxy(patience=1000) as proxy:
        sick, well = rig.agent(proxy), rig.agent(proxy)
        await sick.say(session(1, 18))
        await rig.until_stored(proxy)

        async def kept() -> bool:
            return bool(await rig.command("KEYS", "foldgate:*:events:*"))

        await servers.wait_until(kept, what="its events are kept")
        await OTHERS["events_are_a_string"].do(rig)
        good = await well.say(session(2, 18))
        await sick.say([*session(1, 18), b.assistant("So."), b.user(b.prose(90_000, 7))])
        seen = rounds
        await servers.wait_until(lambda: rounds > seen + 5, what="it was tried some times")
        late = await well.say([*session(2, 18), b.assistant("So."), b.user(b.prose(90_000, 8))])
        seen = rounds
        await servers.wait_until(lambda: rounds > seen + 5, what="it was tried some times")
        async with rig.store() as store:
            lines = await store.events(good.session)
    checks.assert_fine([*sick.exchanges, *well.exchanges], rig.up)
    assert late.marks == ["reused", "clipped"]
    types = [line.partition('"type":"')[2].partition('"')[0] for line in lines]
    types = [type_ for type_ in types if type_ != "compaction_skipped"]
    assert types == ["compaction_started", "compaction_completed", "context_reduced"]
