"""Recorded responses as one process sees them: in hand, in the store, and while it is away."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy import codec
from proxy.codec import Json, JsonObject
from proxy.compaction import fingerprint, measure
from proxy.compactor import chains, hand
from proxy.compactor.chains import Chains, Expansion
from proxy.compactor.storage import StoreCalls
from proxy.dialects.answers import Answer
from proxy.dialects.bodies import Annotators, ParsedRequest
from proxy.dialects.memo import PrefixMemo
from proxy.dialects.responses import Responses
from proxy.errors import StoreUnavailable
from proxy.sessions.responses import RecordedResponse
from proxy.sessions.sqlite_store import SqliteStore
from proxy.sessions.state import Note, ignore
from proxy.telemetry import Event
from tests import items as b

ORIGIN, OTHER = b"o" * 32, b"p" * 32
LIMIT = 1 << 20


class Sink(list[Event]):
    def emit(self, event: Event) -> None:
        self.append(event)


@dataclass
class Flaky:
    """A store that can be away."""

    store: SqliteStore
    down: bool = False
    saved: list[RecordedResponse] = field(default_factory=list)
    loads: int = 0
    checks: int = 0

    def _check(self) -> None:
        if self.down:
            raise StoreUnavailable("away", "unreachable")

    async def save(self, response: RecordedResponse) -> bool:
        self._check()
        self.saved.append(response)
        return await self.store.responses.save(response)

    async def load(self, key: bytes) -> RecordedResponse | None:
        self._check()
        self.loads += 1
        return await self.store.responses.load(key)

    async def has(self, key: bytes) -> bool:
        self._check()
        self.checks += 1
        return await self.store.responses.has(key)

    async def load_items(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        self._check()
        return dict(await self.store.responses.load_items(keys))

    async def forget(self, key: bytes) -> bool:
        self._check()
        return await self.store.responses.forget(key)

    async def expire(self, now: float) -> int:
        raise AssertionError("the store expires by itself")

    def all_responses(self, note: Note = ignore) -> AsyncIterator[RecordedResponse]:
        raise AssertionError("only a migration asks for this")


@dataclass
class World:
    """A client, and the process that records for it."""

    store: Flaky
    sink: Sink = field(default_factory=Sink)
    time: float = 1000.0
    limit: int = LIMIT
    shared: bool = False

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.annotators = Annotators(measure.size_of, fingerprint.extend, measure.text_size)
        self.dialect = Responses(self.annotators, PrefixMemo(1 << 20))
        self.calls = StoreCalls(self.sink, lambda: self.time, 5.0)
        self.chains = Chains(
            self.store, self.calls, lambda: self.time, self.limit, shared=self.shared
        )

    def parse(self, items: Sequence[JsonObject], **fields: Json) -> ParsedRequest:
        request = self.dialect.parse(self.body(items, **fields), ORIGIN)
        assert request is not None
        return request

    @staticmethod
    def body(items: Sequence[JsonObject], **fields: Json) -> bytes:
        return codec.dumps({"model": "m", **fields, "input": [*items]})

    async def turn(
        self,
        name: str,
        items: Sequence[JsonObject],
        output: Sequence[JsonObject],
        after: str | None = None,
        origin: bytes = ORIGIN,
    ) -> None:
        """One request and its answer, recorded and stored."""
        fields: JsonObject = {"previous_response_id": after} if after else {}
        expansion = None
        if after:
            expansion = await self.chains.expand(self.parse(items, **fields), origin)
            assert expansion is not None
        answer = Answer(name, tuple(codec.dumps(item) for item in output))
        self.chains.record(self.dialect, self.body(items, **fields), origin, expansion, answer)
        await self.calls.settle()

    async def items_after(self, name: str, origin: bytes = ORIGIN) -> list[Json] | None:
        """What a request that continues a response would send, without its own item."""
        request = self.parse([b.user("and?")], previous_response_id=name)
        found = await self.chains.expand(request, origin)
        return None if found is None else [codec.loads(raw) for raw in found.items[:-1]]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    store = SqliteStore(tmp_path / "a.db", retention_seconds=1e6, archive_bytes=1 << 30)
    await store.open()
    yield World(Flaky(store))
    await store.close()


def said(name: str) -> JsonObject:
    return b.answer(f"answer {name}", f"msg_{name}")


async def grow(world: World, steps: int, start: str | None = None) -> list[JsonObject]:
    """A chain r0, r1, …; returns all its items."""
    items: list[JsonObject] = []
    after = start
    for number in range(steps):
        new, name = [b.user(f"question {number}")], f"r{number}"
        await world.turn(name, new, [said(name)], after)
        items += [*new, said(name)]
        after = name
    return items


async def test_a_chain_is_known_with_every_item(world: World) -> None:
    items = await grow(world, 5)
    for number in range(5):
        assert await world.items_after(f"r{number}") == items[: 2 * number + 2]
    assert world.store.loads == 0


async def test_a_chain_survives_the_process(world: World) -> None:
    items = await grow(world, 5)
    world.restart()
    assert await world.items_after("r3") == items[:8]
    assert await world.items_after("r3") == items[:8]
    assert world.store.loads == 1


async def test_each_item_is_handed_to_the_store_once(world: World) -> None:
    items = await grow(world, 6)
    handed = [codec.loads(raw) for response in world.store.saved for raw in response.items]
    assert handed == items


async def test_a_client_that_repeats_everything_is_stored_once(world: World) -> None:
    items: list[JsonObject] = []
    for number in range(6):
        items += [b.user(f"question {number}")]
        await world.turn(f"r{number}", items, [said(f"r{number}")])
        items += [said(f"r{number}")]
    handed = [codec.loads(raw) for response in world.store.saved for raw in response.items]
    assert handed == items
    assert await world.items_after("r5") == items


async def test_a_client_that_spells_the_answer_anew_keeps_its_spelling(world: World) -> None:
    first = b.user("question")
    await world.turn("r0", [first], [said("r0")])
    again: JsonObject = {"role": "assistant", "content": "answer r0"}
    await world.turn("r1", [first, again, b.user("and?")], [said("r1")])
    assert await world.items_after("r1") == [first, again, b.user("and?"), said("r1")]
    assert await world.items_after("r0") == [first, said("r0")]
    assert world.store.saved[1].shared == 1


async def test_branches_share_what_they_have_in_common(world: World) -> None:
    await grow(world, 3)
    await world.turn("left", [b.user("left")], [said("left")], "r1")
    await world.turn("right", [b.user("right")], [said("right")], "r1")
    for name, other in (("left", "right"), ("right", "left")):
        world.restart()
        items = await world.items_after(name)
        assert items is not None
        assert items[-2:] == [b.user(name), said(name)]
        assert b.user(other) not in items
        assert len(items) == 6


async def test_another_tenants_responses_and_items_are_not_known(world: World) -> None:
    await grow(world, 2)
    for _ in range(2):
        assert await world.items_after("r1", OTHER) is None
        reference: JsonObject = {"type": "item_reference", "id": "msg_r1"}
        request = world.parse([reference])
        assert await world.chains.expand(request, OTHER) is None
        assert await world.chains.expand(request, ORIGIN) is not None
        world.restart()


async def test_the_same_id_of_two_tenants_is_two_responses(world: World) -> None:
    await world.turn("r", [b.user("mine")], [said("a")])
    await world.turn("r", [b.user("theirs")], [said("b")], origin=OTHER)
    assert await world.items_after("r") == [b.user("mine"), said("a")]
    assert await world.items_after("r", OTHER) == [b.user("theirs"), said("b")]


async def test_an_id_that_comes_again_is_the_newer_response(world: World) -> None:
    await world.turn("r", [b.user("old")], [said("a")])
    await world.turn("r", [b.user("new")], [said("b")])
    for _ in range(2):
        assert await world.items_after("r") == [b.user("new"), said("b")]
        world.restart()


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False},
        {"previous_response_id": "gone"},
        {"conversation": "c"},
        {"input": 7},
    ],
)
async def test_what_is_not_recorded(world: World, fields: JsonObject) -> None:
    body = codec.dumps({"model": "m", "input": "hi", **fields})
    world.chains.record(world.dialect, body, ORIGIN, None, Answer("r", ()))
    await world.calls.settle()
    assert world.store.saved == []
    assert await world.items_after("r") is None


async def test_nothing_is_recorded_when_that_is_off(world: World) -> None:
    world.limit = 0
    world.restart()
    await world.turn("r", [b.user("hi")], [said("a")])
    assert world.store.saved == []
    assert await world.items_after("r") is None


async def test_the_limit_is_that_of_a_whole_conversation(world: World) -> None:
    world.limit = 600
    world.restart()
    await world.turn("r0", [b.user("x" * 200)], [said("r0")])
    assert await world.items_after("r0") is not None
    await world.turn("r1", [b.user("y" * 300)], [said("r1")], "r0")
    assert await world.items_after("r1") is None
    assert [response.base for response in world.store.saved] == [b""]


async def test_references_become_the_items_they_name(world: World) -> None:
    await world.turn("r", [b.user("q")], [b.reasoning("7"), said("r")])
    request_items: list[JsonObject] = [
        b.user("q"),
        {"type": "item_reference", "id": "rs_7"},
        {"id": "msg_r"},
        b.user("next"),
    ]
    for _ in range(2):
        request = world.parse(request_items)
        found = await world.chains.expand(request, ORIGIN)
        assert found is not None
        assert [codec.loads(raw) for raw in found.items] == [
            b.user("q"),
            b.reasoning("7"),
            said("r"),
            b.user("next"),
        ]
        assert codec.loads(found.body) == {
            "model": "m",
            "input": [codec.loads(raw) for raw in found.items],
        }
        world.restart()
    unknown = world.parse([{"id": "msg_r"}, {"id": "msg_gone"}])
    assert await world.chains.expand(unknown, ORIGIN) is None


async def test_a_forgotten_response_is_gone_but_not_what_follows(world: World) -> None:
    items = await grow(world, 4)
    world.chains.forget(ORIGIN, "r1")
    await world.calls.settle()
    for _ in range(2):
        assert await world.items_after("r1") is None
        assert await world.items_after("r3") == items
        world.restart()
    reference = world.parse([{"id": "msg_r1"}])
    world.chains.forget(ORIGIN, "r3")
    await world.calls.settle()
    assert await world.items_after("r3") is None
    assert await world.items_after("r2") == items[:6]
    assert await world.chains.expand(reference, ORIGIN) is not None, "others still have it"


# --- while the store is away ---


async def test_without_a_store_the_process_knows_what_it_saw(world: World) -> None:
    world.store.down = True
    items = await grow(world, 4)
    assert await world.items_after("r3") == items
    assert await world.items_after("unknown") is None
    world.store.down = False
    world.time += 2
    await world.chains.flush()
    world.restart()
    for number in range(4):
        assert await world.items_after(f"r{number}") == items[: 2 * number + 2]


async def test_an_unknown_response_is_not_asked_for_again_and_again_while_it_is_away(
    world: World,
) -> None:
    world.store.down = True
    for _ in range(5):
        assert await world.items_after("unknown") is None
    failures = [event for event in world.sink if event.type == "store_failed"]
    assert len(failures) == 1


async def test_what_waits_for_the_store_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "MAX_PENDING", 3)
    world.store.down = True
    for number in range(5):
        await world.turn(f"r{number}", [b.user(f"opening {number}")], [said("x")])
    dropped = [e for e in world.sink if e.fields.get("reason") == "pending_overflow"]
    assert len(dropped) == 2
    world.store.down = False
    world.time += 2
    await world.chains.flush()
    world.restart()
    known = [await world.items_after(f"r{number}") is not None for number in range(5)]
    assert known == [False, False, True, True, True]


async def test_what_was_built_on_a_lost_response_is_stored_whole(world: World) -> None:
    """A failover lost it, or it was forgotten by another process."""
    items = await grow(world, 3)
    for response in list(world.store.saved):
        await world.store.forget(response.key)
    await world.turn("r3", [b.user("next")], [said("r3")], "r2")
    world.restart()
    assert await world.items_after("r3") == [*items, b.user("next"), said("r3")]
    reference = world.parse([{"id": "msg_r3"}])
    assert await world.chains.expand(reference, ORIGIN) is not None


async def test_a_forgotten_response_that_waits_is_not_stored_later(world: World) -> None:
    world.store.down = True
    await world.turn("r0", [b.user("q")], [said("r0")])
    world.chains.forget(ORIGIN, "r0")
    await world.calls.settle()
    world.store.down = False
    world.time += 2
    await world.chains.flush()
    assert world.store.saved == []


# --- looking twice ---


async def test_an_upstream_that_cannot_help_is_worth_a_second_look(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may be storing the response just now."""
    monkeypatch.setattr(chains, "_SOON", (0.0, 0.001))
    monkeypatch.setattr(chains, "_INSIST", (0.0, 0.001, 0.001))
    world.shared = True
    world.restart()
    other = World(world.store)
    request = world.parse([b.user("and?")], previous_response_id="r0")
    asked = 0
    load = world.store.load

    async def late(key: bytes) -> RecordedResponse | None:
        nonlocal asked
        asked += 1
        if asked == 5:
            await other.turn("r0", [b.user("q")], [said("r0")])
        return await load(key)

    monkeypatch.setattr(world.store, "load", late)
    assert await world.chains.expand(request, ORIGIN) is None
    assert asked == 2
    assert await world.chains.expand(request, ORIGIN, insist=True) is not None
    assert asked == 5
    # Who has the store alone knows all that there is.
    alone = World(world.store)
    unknown = alone.parse([b.user("and?")], previous_response_id="r9")
    assert await alone.chains.expand(unknown, ORIGIN, insist=True) is None
    assert asked == 6


# --- what is in hand is bounded ---


async def test_long_unused_conversations_leave_the_hand(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand, "CONVERSATION_BYTES", 3000)
    for number in range(6):
        await world.turn(f"r{number}", [b.user(f"{number}" * 800)], [said("x")])
    assert await world.items_after("r5") is not None
    assert world.store.loads == 0
    assert await world.items_after("r0") is not None
    assert world.store.loads == 1


async def test_old_responses_of_a_conversation_leave_the_hand(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand, "MAX_RESPONSES", 3)
    items = await grow(world, 6)
    assert await world.items_after("r5") == items
    assert await world.items_after("r3") == items[:8]
    assert world.store.loads == 0
    assert await world.items_after("r0") == items[:2]
    assert world.store.loads == 1


async def test_items_to_refer_to_leave_the_hand(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand, "ITEM_BYTES", 400)
    await grow(world, 8)
    for number in (0, 7):
        request = world.parse([{"id": f"msg_r{number}"}])
        assert await world.chains.expand(request, ORIGIN) is not None


async def test_now_and_then_a_chain_is_listed_whole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "WHOLE_EVERY", 3)
    items = await grow(world, 30)
    whole = [saved for saved in world.store.saved if not saved.base]
    assert 2 < len(whole) < 25
    assert all(saved.shared == 0 for saved in whole)
    world.restart()
    assert await world.items_after("r29") == items


async def test_what_is_in_hand_is_counted_once(world: World) -> None:
    """A client that sends everything again, in other bytes objects each time."""
    items: list[JsonObject] = [b.user("x" * 50_000)]
    for number in range(20):
        await world.turn(f"r{number}", items, [said(f"r{number}")])
        items += [said(f"r{number}"), b.user("go on")]
        world.dialect = Responses(world.annotators, PrefixMemo(0))
    known = [world.chains._hand.response(r.key) for r in world.store.saved]
    distinct = {id(raw): len(raw) for k in known if k is not None for raw in k.items}
    assert sum(distinct.values()) <= world.chains._hand.held_bytes < 80_000


# --- several processes ---


async def test_a_deleted_response_is_believed_for_a_while_only(world: World) -> None:
    world.shared = True
    world.restart()
    items = await grow(world, 2)
    other = World(world.store, shared=True)
    other.chains.forget(ORIGIN, "r1")
    await other.calls.settle()
    assert await world.items_after("r1") == items
    world.time += 31
    assert await world.items_after("r1") is None
    assert await world.items_after("r0") == items[:2]
    checks = world.store.checks
    assert await world.items_after("r0") == items[:2]
    assert world.store.checks == checks, "it was looked at just now"


async def test_the_same_of_items_to_refer_to(world: World) -> None:
    world.shared = True
    world.restart()
    await grow(world, 1)
    other = World(world.store, shared=True)
    other.chains.forget(ORIGIN, "r0")
    await other.calls.settle()
    request = world.parse([{"id": "msg_r0"}])
    assert await world.chains.expand(request, ORIGIN) is not None
    world.time += 31
    assert await world.chains.expand(request, ORIGIN) is None


async def test_a_store_that_is_away_makes_nobody_forget(world: World) -> None:
    world.shared = True
    world.restart()
    items = await grow(world, 2)
    world.time += 31
    world.store.down = True
    assert await world.items_after("r1") == items
    request = world.parse([{"id": "msg_r1"}])
    assert await world.chains.expand(request, ORIGIN) is not None


async def test_what_another_process_records_late_is_continued_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request went on as it came; its answer is recorded once the rest is there."""
    monkeypatch.setattr(chains, "_INSIST", (0.0, *[0.01] * 200))
    world.shared = True
    world.restart()
    body = world.body([b.user("next")], previous_response_id="r0")
    answer = Answer("r1", (codec.dumps(said("r1")),))
    world.chains.record(world.dialect, body, ORIGIN, None, answer)
    other = World(world.store)
    await other.turn("r0", [b.user("q")], [said("r0")])
    await world.calls.settle()
    assert await world.items_after("r1") == [b.user("q"), said("r0"), b.user("next"), said("r1")]


# --- deleting, come what may ---


async def test_what_is_deleted_while_it_is_stored_is_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    save = world.store.save

    async def slow(response: RecordedResponse) -> bool:
        begun.set()
        await go_on.wait()
        return await save(response)

    monkeypatch.setattr(world.store, "save", slow)
    turn = asyncio.ensure_future(world.turn("r0", [b.user("q")], [said("r0")]))
    await begun.wait()
    world.chains.forget(ORIGIN, "r0")
    go_on.set()
    await turn
    for _ in range(2):
        assert await world.items_after("r0") is None
        world.restart()


async def test_a_deletion_waits_for_a_store_that_is_away(world: World) -> None:
    await grow(world, 2)
    world.store.down = True
    world.chains.forget(ORIGIN, "r1")
    await world.calls.settle()
    world.store.down = False
    world.time += 2
    assert await world.items_after("r1") is None
    await world.chains.flush()
    world.restart()
    assert await world.items_after("r1") is None
    assert await world.items_after("r0") is not None


async def test_an_id_that_is_used_again_after_it_was_deleted_counts(world: World) -> None:
    await world.turn("r", [b.user("old")], [said("a")])
    world.chains.forget(ORIGIN, "r")
    await world.calls.settle()
    await world.turn("r", [b.user("new")], [said("b")])
    for _ in range(2):
        assert await world.items_after("r") == [b.user("new"), said("b")]
        world.restart()


async def test_a_deletion_during_a_flush_disturbs_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.store.down = True
    for number in range(4):
        await world.turn(f"r{number}", [b.user(f"opening {number}")], [said("x")])
    world.store.down = False
    world.time += 2
    save = world.store.save

    async def deleting(response: RecordedResponse) -> bool:
        world.chains.forget(ORIGIN, "r3")
        return await save(response)

    monkeypatch.setattr(world.store, "save", deleting)
    await world.chains.flush()
    await world.calls.settle()
    world.restart()
    known = [await world.items_after(f"r{number}") is not None for number in range(4)]
    assert known == [True, True, True, False]


async def test_a_store_that_is_still_away_is_asked_once_by_a_flush(world: World) -> None:
    world.store.down = True
    for number in range(10):
        await world.turn(f"r{number}", [b.user(f"opening {number}")], [said("x")])
    before = len(world.sink)
    await world.chains.flush()
    assert len(world.sink) == before + 1
    world.store.down = False
    await world.chains.flush()
    world.restart()
    assert await world.items_after("r0") is not None
    assert await world.items_after("r9") is not None


async def test_what_waits_is_bounded_by_its_size_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chains, "PENDING_BYTES", 2500)
    world.store.down = True
    for number in range(4):
        await world.turn(f"r{number}", [b.user(f"{number}" * 900)], [said("x")])
    dropped = [e for e in world.sink if e.fields.get("reason") == "pending_overflow"]
    assert len(dropped) == 2


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_tree_of_requests_gives_each_its_own_past(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    asyncio.run(_any_tree(tmp_path_factory.mktemp("tree"), data))


async def _any_tree(folder: Path, data: st.DataObject) -> None:
    store = SqliteStore(folder / "a.db", retention_seconds=1e6, archive_bytes=1 << 30)
    await store.open()
    try:
        world = World(Flaky(store))
        past: dict[str, list[JsonObject]] = {}
        for number in range(data.draw(st.integers(1, 14))):
            name = f"r{number}"
            after = data.draw(st.sampled_from([None, *past]))
            new = [b.user(data.draw(st.sampled_from(["hi", "go on", "stop"])))]
            how = data.draw(st.sampled_from(["chained", "whole", "restarted"]))
            if how == "restarted":
                world.restart()
            before = past[after] if after else []
            if how == "whole":
                await world.turn(name, [*before, *new], [said(name)])
            else:
                await world.turn(name, new, [said(name)], after)
            past[name] = [*before, *new, said(name)]
        world.restart()
        for name, items in past.items():
            assert await world.items_after(name) == items
    finally:
        await store.close()


def test_an_expansion_shows_none_of_what_it_says() -> None:
    assert "secret" not in repr(Expansion({"a": b"secret"}, (b"secret",), b""))
