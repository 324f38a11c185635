"""The suite that every store of recorded responses must pass.

An adapter subclasses `ResponseStoreContract` and gives the `harness` fixture. Random trees of
responses are checked against a model that remembers each response with all its items.
"""

import asyncio
import hashlib
import random
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proxy.server.stores import OpenableStore
from proxy.sessions.responses import RecordedResponse, ResponseStore
from proxy.sessions.state import Change, Unreadable
from tests.contract.session_store_contract import (
    ANCHOR,
    DAY,
    GENEROUS,
    NOW,
    OTHER,
    StoreHarness,
    archive_of,
    noise,
)


class ResponseHarness(StoreHarness):
    """What the suite needs of an adapter besides the ports."""

    @abstractmethod
    async def open(
        self, *, retention_seconds: float = DAY, archive_bytes: int = GENEROUS
    ) -> OpenableStore:
        """Return one more opened store over the same data; the harness closes it."""

    @abstractmethod
    def another(self) -> "ResponseHarness":
        """Return a harness of the same kind without any data."""

    @abstractmethod
    async def close(self) -> None:
        """Close every store that was opened."""

    @abstractmethod
    async def stored_items(self) -> int:
        """Count the stored items of responses."""

    @abstractmethod
    async def spoil_item(self, anchor: bytes, raw: bytes, how: str) -> None:
        """Damage a stored item of a response."""


def name(text: str) -> bytes:
    """A key as the proxy makes it."""
    return hashlib.sha256(text.encode()).digest()


def items_of(text: str) -> tuple[bytes, ...]:
    """An item for each letter."""
    return tuple(b'{"type":"message","content":"%b"}' % letter.encode() for letter in text)


def response(
    id_: str,
    text: str,
    base: str = "",
    shared: int = 0,
    *,
    anchor: bytes = ANCHOR,
    time: float = NOW,
    names: Mapping[str, int] | None = None,
) -> RecordedResponse:
    """A response whose items are written as letters."""
    key, below = name(id_), name(base) if base else b""
    named = tuple((name(item), place) for item, place in (names or {}).items())
    return RecordedResponse(key, anchor, below, shared, items_of(text), named, time)


async def record(store: ResponseStore, *responses: RecordedResponse) -> None:
    for one in responses:
        assert await store.save(one) is True


async def texts(store: ResponseStore, *ids: str) -> list[str | None]:
    """Responses as letters."""
    letters = {item: chr(n) for n in range(32, 127) for item in items_of(chr(n))}
    found: list[str | None] = []
    for id_ in ids:
        loaded = await store.load(name(id_))
        if loaded is None:
            found.append(None)
        else:
            assert (loaded.key, loaded.base, loaded.shared) == (name(id_), b"", 0)
            assert loaded.names == ()
            found.append("".join(letters[item] for item in loaded.items))
    return found


async def exported(
    store: ResponseStore, notes: list[Unreadable] | None = None
) -> list[RecordedResponse]:
    note = (lambda _: None) if notes is None else notes.append
    return [one async for one in store.all_responses(note)]


async def chain(store: ResponseStore, length: int, *, anchor: bytes = ANCHOR) -> tuple[bytes, ...]:
    """Record a conversation; each response adds a question and an answer."""
    items: list[bytes] = []
    for n in range(length):
        own = tuple(b'{"role":"%b","content":"%d"}' % (who, n) for who in (b"user", b"assistant"))
        below = name(f"r{n - 1}") if n else b""
        one = RecordedResponse(name(f"r{n}"), anchor, below, len(items), own, time=NOW + n)
        assert await store.save(one) is True
        items += own
    return tuple(items)


class ResponseStoreContract:
    """The laws of `ResponseStore`."""

    @pytest.fixture
    async def responses(self, harness: ResponseHarness) -> ResponseStore:
        return (await harness.open()).responses

    # --- saving and loading ---

    async def test_an_unknown_response_is_none(self, responses: ResponseStore) -> None:
        assert await responses.load(name("r")) is None
        assert await responses.has(name("r")) is False
        assert await responses.load_items([]) == {}
        assert await responses.load_items([name("i"), name("j")]) == {}
        assert await responses.forget(name("r")) is False
        assert await exported(responses) == []
        assert await responses.expire(NOW) == 0

    async def test_a_response_comes_back_with_the_same_bytes(
        self, responses: ResponseStore
    ) -> None:
        raws = (
            b'{"a": 1.0, "a": 2 }',
            b"{}",
            b'"\xc3\xa9\\u0000"',
            b"\x00\xff not JSON",
            b"",
            b"{}",
        )
        one = RecordedResponse(name("r"), ANCHOR, b"", 0, raws, ((name("i"), 1),), NOW)
        await record(responses, one)
        assert await responses.load(name("r")) == replace(one, names=())
        await record(responses, replace(one, key=name("empty"), items=(), names=()))
        empty = await responses.load(name("empty"))
        assert empty is not None
        assert empty.items == ()

    async def test_a_response_builds_on_the_first_items_of_another(
        self, responses: ResponseStore
    ) -> None:
        await record(
            responses,
            response("r1", "abc"),
            response("r2", "de", "r1", 3),
            response("r3", "fg", "r2", 5),
            response("left", "x", "r3", 4),
            response("right", "y", "r3", 1),
            response("same", "", "r3", 7),
            response("fresh", "z", "r3", 0),
            response("last", "!", "left", 5),
        )
        assert await texts(responses, "r1", "r2", "r3") == ["abc", "abcde", "abcdefg"]
        assert await texts(responses, "left", "right", "same") == ["abcdx", "ay", "abcdefg"]
        assert await texts(responses, "fresh", "last") == ["z", "abcdx!"]

    async def test_without_its_base_nothing_is_recorded(
        self, harness: ResponseHarness, responses: ResponseStore
    ) -> None:
        await record(responses, response("r1", "ab"), response("other", "ab", anchor=OTHER))
        before = await harness.stored_items()
        for refused in (
            response("r", "xyz", "unknown", 1),
            response("r", "xyz", "unknown", 0),
            response("r", "xyz", "other", 2),
            response("r", "xyz", "r1", 3),
            response("r", "xyz", "r", 1),
            response("r", "xyz", "", 1),
            replace(response("r", "xyz", "r1", 2), anchor=OTHER),
        ):
            named = replace(refused, names=((name("i"), 0),))
            assert await responses.save(named) is False
        assert await texts(responses, "r") == [None]
        assert await responses.load_items([name("i")]) == {}
        assert await harness.stored_items() == before
        assert len(await exported(responses)) == 2

    async def test_the_same_again_is_harmless(
        self, harness: ResponseHarness, responses: ResponseStore
    ) -> None:
        tree = [
            response("r1", "abc", names={"a": 0}),
            response("r2", "d", "r1", 3, names={"d": 0}),
            response("r3", "e", "r2", 2),
        ]
        await record(responses, *tree)
        once, stored = await exported(responses), await harness.stored_items()
        await record(responses, *tree)
        await record((await harness.open()).responses, *reversed(tree))
        assert await exported(responses) == once
        assert await harness.stored_items() == stored
        assert await texts(responses, "r1", "r2", "r3") == ["abc", "abcd", "abe"]

    async def test_the_newest_of_a_key_counts_and_others_keep_what_they_have(
        self, harness: ResponseHarness, responses: ResponseStore
    ) -> None:
        await record(
            responses,
            response("r1", "abc"),
            response("r2", "d", "r1", 2),
            response("r1", "xy"),
            response("r3", "e", "r1", 2),
            # On what it replaces itself.
            response("r3", "f", "r3", 3),
        )
        assert await texts(responses, "r1", "r2", "r3") == ["xy", "abd", "xyef"]
        # Nobody needs the c any more.
        assert await harness.stored_items() == len("abdxyef")
        await record(responses, response("r2", "", "r1", 2))
        assert await texts(responses, "r1", "r2", "r3") == ["xy", "xy", "xyef"]
        assert await harness.stored_items() == len("xyef")

    async def test_a_response_that_is_recorded_under_another_anchor_moves(
        self, harness: ResponseHarness, responses: ResponseStore
    ) -> None:
        await record(
            responses,
            response("r1", "ab", names={"i": 0}),
            response("r2", "c", "r1", 1),
            response("r1", "xy", anchor=OTHER),
        )
        assert await responses.save(response("r3", "z", "r1", 1)) is False
        await record(responses, response("r3", "z", "r1", 1, anchor=OTHER))
        assert await texts(responses, "r1", "r2", "r3") == ["xy", "ac", "xz"]
        loaded = await responses.load(name("r1"))
        assert loaded is not None
        assert loaded.anchor == OTHER
        assert await harness.stored_items() == len("acxyz")

    async def test_items_are_stored_once(
        self, harness: ResponseHarness, responses: ResponseStore
    ) -> None:
        await record(
            responses,
            response("r1", "aab"),
            response("r2", "ab", "r1", 3),
            response("r3", "abc"),
            response("r4", "c", "r3", 3),
        )
        assert await harness.stored_items() == 3
        assert await texts(responses, "r1", "r2", "r4") == ["aab", "aabab", "abcc"]

    async def test_large_items(self, harness: ResponseHarness, responses: ResponseStore) -> None:
        raws = (noise(3_000_000, 1), b"small", noise(300_000, 2), b" " * 2_000_000)
        one = RecordedResponse(name("r1"), ANCHOR, b"", 0, raws, ((name("i"), 0),), NOW)
        two = RecordedResponse(name("r2"), ANCHOR, name("r1"), 2, raws[2:], time=NOW)
        assert await responses.save(two) is False
        assert await harness.stored_items() == 0
        await record(responses, one, two)
        for id_ in ("r1", "r2"):
            loaded = await (await harness.open()).responses.load(name(id_))
            assert loaded is not None
            assert loaded.items == raws
        assert await responses.load_items([name("i")]) == {name("i"): raws[0]}
        stored = await harness.stored_items()
        await record(responses, replace(one, key=name("r3")))
        assert await harness.stored_items() == stored
        for id_ in ("r1", "r2", "r3"):
            assert await responses.forget(name(id_)) is True
        assert await harness.stored_items() == 0

    async def test_a_long_conversation(self, responses: ResponseStore) -> None:
        items = await chain(responses, 60)
        loaded = await responses.load(name("r59"))
        assert loaded is not None
        assert (loaded.items, loaded.time) == (items, NOW + 59)
        middle = await responses.load(name("r30"))
        assert middle is not None
        assert middle.items == items[:62]

    # --- items by name ---

    async def test_items_are_known_by_their_names(self, responses: ResponseStore) -> None:
        a, b, c, d = items_of("abcd")
        await record(
            responses,
            response("r1", "abc", names={"one": 0, "three": 2}),
            response("r2", "d", "r1", 3, names={"four": 0}),
            response("else", "b", anchor=OTHER, names={"else": 0}),
        )
        keys = [name(id_) for id_ in ("one", "two", "three", "four", "else")]
        assert await responses.load_items(keys) == {
            keys[0]: a, keys[2]: c, keys[3]: d, keys[4]: b
        }  # fmt: skip
        assert await responses.load_items(keys[3:4] * 2) == {keys[3]: d}
        # The newest counts; what was named before stays.
        await record(
            responses,
            response("r3", "xa", names={"four": 1}),
            response("r1", "abc", names={"two": 1}),
        )
        assert await responses.load_items(keys[:4]) == {
            keys[0]: a, keys[1]: b, keys[2]: c, keys[3]: a
        }  # fmt: skip

    # --- forgetting ---

    async def test_a_forgotten_response_leaves_what_others_need(
        self, harness: ResponseHarness, responses: ResponseStore
    ) -> None:
        await record(
            responses,
            response("r1", "abc", names={"a": 0, "c": 2}),
            response("r2", "def", "r1", 2, names={"d": 0, "f": 2}),
            response("r3", "g", "r2", 4),
            response("other", "c"),
        )
        assert await responses.has(name("r1")) is True
        assert await responses.forget(name("r1")) is True
        assert await responses.forget(name("r1")) is False
        assert [await responses.has(name(id_)) for id_ in ("r1", "r2", "r3")] == [False, True, True]
        assert await texts(responses, "r1", "r2", "r3") == [None, "abdef", "abdeg"]
        assert await responses.save(response("r4", "z", "r1", 1)) is False
        assert await harness.stored_items() == len("abdefgc")

        assert await responses.forget(name("r2")) is True
        assert await texts(responses, "r2", "r3") == [None, "abdeg"]
        assert await harness.stored_items() == len("abdegc")
        known = await responses.load_items([name(id_) for id_ in "adf"])
        assert sorted(known.values()) == [*items_of("ad")]

        assert await responses.forget(name("r3")) is True
        assert await harness.stored_items() == 1
        assert await responses.load_items([name(id_) for id_ in "adf"]) == {}
        assert await texts(responses, "other") == ["c"]
        assert [one.key for one in await exported(responses)] == [name("other")]

        await record(responses, response("r1", "new"))
        assert await texts(responses, "r1", "r2") == ["new", None]

    async def test_an_item_that_has_another_name_now_keeps_it(
        self, responses: ResponseStore
    ) -> None:
        """What goes with a forgotten response does not take away what came later."""
        await record(
            responses,
            response("r1", "a", names={"i": 0}),
            response("r2", "b", names={"i": 0}, anchor=OTHER),
        )
        await responses.forget(name("r1"))
        assert await responses.load_items([name("i")]) == {name("i"): items_of("b")[0]}

    async def test_what_shares_nothing_needs_nothing(
        self, harness: ResponseHarness, responses: ResponseStore
    ) -> None:
        """Items that a base has from its own base do not hold the former."""
        await record(
            responses,
            response("r1", "ab"),
            response("r2", "cd", "r1", 2),
            response("r3", "x", "r2", 1),
            response("r4", "y", "r2", 0),
        )
        await responses.forget(name("r2"))
        assert await harness.stored_items() == len("abxy")
        await responses.forget(name("r1"))
        assert await harness.stored_items() == len("axy")
        assert await texts(responses, "r3", "r4") == ["ax", "y"]

    async def test_forgetting_a_whole_conversation_leaves_nothing(
        self, harness: ResponseHarness, responses: ResponseStore
    ) -> None:
        await chain(responses, 30)
        order = list(range(30))
        random.Random(5).shuffle(order)
        for n in order[:-1]:
            assert await responses.forget(name(f"r{n}")) is True
        assert await harness.stored_items() == 2 * order[-1] + 2
        assert await responses.forget(name(f"r{order[-1]}")) is True
        assert await harness.stored_items() == 0
        assert await exported(responses) == []

    # --- retention and sessions ---

    async def test_the_responses_of_an_anchor_expire_together(
        self, harness: ResponseHarness, responses: ResponseStore
    ) -> None:
        await record(
            responses,
            response("r1", "ab", names={"i": 0}),
            response("r2", "c", "r1", 2, time=NOW + 50),
            response("other", "xy", anchor=OTHER, time=NOW + 20),
            response("gone", "z", "other", 2, anchor=OTHER, time=NOW + 10),
        )
        await responses.forget(name("gone"))
        assert await responses.expire(NOW + DAY + 10) == 0
        assert await responses.expire(NOW + DAY + 30) == 1
        assert await texts(responses, "r1", "r2", "other") == ["ab", "abc", None]
        assert await responses.load_items([name("i")]) != {}
        # One that is recorded now keeps them all.
        await record(responses, response("r3", "d", "r2", 3, time=NOW + 100))
        assert await responses.expire(NOW + DAY + 90) == 0
        assert await responses.expire(NOW + DAY + 110) == 3
        assert await texts(responses, "r1", "r2", "r3") == [None, None, None]
        assert await responses.load_items([name("i")]) == {}
        assert await harness.stored_items() == 0
        assert await responses.expire(NOW + 2 * DAY) == 0
        assert await responses.save(response("r4", "e", "r3", 1)) is False

    async def test_they_expire_with_the_sessions_too(self, harness: ResponseHarness) -> None:
        store = await harness.open()
        await record(
            store.responses, response("r1", "a"), response("r2", "b", anchor=OTHER, time=NOW + 50)
        )
        await store.commit(Change(OTHER, "s1", NOW))
        assert await store.expire(NOW + DAY + 10) == 1
        # A session that was long not used does not take along what was recorded since.
        assert await texts(store.responses, "r1", "r2") == [None, "b"]

    async def test_they_go_with_the_last_session_of_their_anchor(
        self, harness: ResponseHarness
    ) -> None:
        store = await harness.open()
        for session, anchor in (("s1", ANCHOR), ("s2", ANCHOR), ("s3", OTHER)):
            await store.commit(
                Change(anchor, session, NOW, archive=archive_of(b"x"), archive_id="a")
            )
        await record(
            store.responses,
            response("r1", "ab", names={"i": 0}),
            response("r2", "c", "r1", 2),
            response("other", "a", anchor=OTHER),
        )
        assert await store.delete_session("s1") is True
        assert await texts(store.responses, "r1", "r2") == ["ab", "abc"]
        assert await (await harness.open()).delete_session("s2") is True
        assert await texts(store.responses, "r1", "r2", "other") == [None, None, "a"]
        assert await store.responses.load_items([name("i")]) == {}
        assert await store.responses.save(response("r3", "d", "r1", 1)) is False
        assert await harness.stored_items() == 1
        assert await store.delete_session("s3") is True
        assert await harness.stored_items() == 0
        assert await exported(store.responses) == []

    # --- telling all ---

    async def test_all_are_told_each_after_its_base(
        self, harness: ResponseHarness, responses: ResponseStore
    ) -> None:
        tree = [
            response("r1", "abc", names={"a": 0, "c": 2}),
            response("r2", "de", "r1", 3, names={"d": 0}),
            response("r3", "fg", "r2", 4, names={"g": 1}, time=NOW + 1),
            response("r4", "h", "r3", 2),
            response("other", "xy", anchor=OTHER),
        ]
        await record(responses, *tree)
        assert await self._copied(harness, responses) == [*"acdg"]
        # Those in between are not known any more, but needed.
        for id_ in ("r2", "r1"):
            await responses.forget(name(id_))
        assert await self._copied(harness, responses) == [*"acdg"]
        await record(responses, response("r3", "!", "r3", 5), response("r4", "?", "r3", 6))
        await self._copied(harness, responses)

    async def _copied(self, harness: ResponseHarness, source: ResponseStore) -> list[str]:
        """Copy all to another store and compare; return the names known there."""
        told = await exported(source)
        seen = {b""}
        for one in told:
            assert one.base in seen
            seen.add(one.key)
        assert len(seen) == len(told) + 1
        async with another(harness) as target:
            await record(target, *told)
            for one in told:
                assert await target.load(one.key) == await source.load(one.key)
            names = [*"acdefg"]
            keys = [name(id_) for id_ in names]
            known = await target.load_items(keys)
            assert known == await source.load_items(keys)
            return [id_ for id_ in names if name(id_) in known]

    # --- wholeness ---

    async def test_many_tasks_record_at_once(
        self, harness: ResponseHarness, responses: ResponseStore
    ) -> None:
        stores = [responses, (await harness.open()).responses]
        await record(responses, response("root", "ab"))

        async def branch(n: int) -> None:
            store = stores[n % 2]
            letter = chr(ord("c") + n)
            await record(
                store,
                response(f"x{n}", letter, "root", 2, names={f"i{n}": 0}),
                response(f"y{n}", "z", f"x{n}", 3),
                response("same", "ab"),
            )
            if n % 3 == 0:
                assert await store.forget(name(f"x{n}")) is True

        await asyncio.gather(*(branch(n) for n in range(12)))

        for n in range(12):
            letter = chr(ord("c") + n)
            expected = [None if n % 3 == 0 else f"ab{letter}", f"ab{letter}z"]
            assert await texts(stores[(n + 1) % 2], f"x{n}", f"y{n}") == expected
        assert await texts(responses, "root", "same") == ["ab", "ab"]
        assert await harness.stored_items() == 2 + 12 + 1

    async def test_a_store_that_is_opened_again_has_them_all(
        self, harness: ResponseHarness
    ) -> None:
        store = await harness.open()
        await record(store.responses, response("r1", "ab"), response("r2", "c", "r1", 1))
        await store.close()
        again = (await harness.open()).responses
        assert await texts(again, "r1", "r2") == ["ab", "ac"]
        await record(again, response("r3", "d", "r2", 2))
        assert await texts(again, "r3") == ["acd"]

    # --- damage ---

    @pytest.mark.parametrize("how", ["cut", "flipped", "empty"])
    async def test_a_damaged_item_is_never_believed(
        self, harness: ResponseHarness, responses: ResponseStore, how: str
    ) -> None:
        await record(
            responses,
            response("r1", "ab", names={"a": 0, "b": 1}),
            response("r2", "c", "r1", 2),
            response("r3", "d", "r1", 1),
            response("r4", "e", "r2", 3),
        )
        await harness.spoil_item(ANCHOR, items_of("b")[0], how)
        again = (await harness.open()).responses
        assert await texts(again, "r1", "r2", "r3", "r4") == [None, None, "ad", None]
        assert await again.load_items([name("a"), name("b")]) == {name("a"): items_of("a")[0]}
        notes: list[Unreadable] = []
        told = await exported(again, notes)
        assert notes == [Unreadable("damaged")]
        # What builds on it goes too, even where it does not share it: its base is not told.
        assert told == []
        # It is known as before, so others may build on it, and it is mended by itself.
        await record(again, response("r5", "f", "r4", 1))
        assert await texts(again, "r5") == ["af"]
        await record(again, response("r6", "b"))
        assert await texts(again, "r1", "r4") == ["ab", "abce"]

    async def test_a_damaged_item_does_not_keep_responses_from_going(
        self, harness: ResponseHarness, responses: ResponseStore
    ) -> None:
        await record(responses, response("r1", "ab"), response("r2", "c", "r1", 2))
        await harness.spoil_item(ANCHOR, items_of("a")[0], "cut")
        assert await responses.forget(name("r1")) is True
        assert await responses.forget(name("r2")) is True
        assert await harness.stored_items() == 0

    # --- whatever is done ---

    @given(st.data())
    # A store is slower than the pure functions that the profiles are made for.
    @settings(max_examples=settings().max_examples // 5, suppress_health_check=[*HealthCheck])
    async def test_whatever_is_done(self, harness: ResponseHarness, data: st.DataObject) -> None:
        steps = data.draw(st.lists(_STEPS, min_size=1, max_size=12))
        own = harness.another()
        try:
            stores = [(await own.open()).responses for _ in range(2)]
            model = Model()
            for n, step in enumerate(steps):
                await model.do(stores[n % 2], step, n)
            await model.check(stores[0])
            assert await own.stored_items() == model.stored_items
            told = await exported(stores[1])
            async with another(harness) as target:
                await record(target, *told)
                await model.check(target)
            for id_ in sorted(model.known):
                assert await stores[1].forget(id_) is True
            assert await own.stored_items() == 0
        finally:
            await own.close()


@asynccontextmanager
async def another(harness: ResponseHarness) -> AsyncIterator[ResponseStore]:
    """A store of the same kind without any data."""
    own = harness.another()
    try:
        yield (await own.open()).responses
    finally:
        await own.close()


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do: to forget a response, or to record one."""

    id: int
    forgets: bool
    base: int | None
    share: float
    letters: str
    anchor: int


_STEPS = st.builds(
    Step,
    id=st.integers(0, 5),
    forgets=st.sampled_from([False, False, False, True]),
    base=st.none() | st.integers(0, 5),
    share=st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.0]),
    letters=st.text("abcd", max_size=3),
    anchor=st.sampled_from([0, 0, 0, 1]),
)


@dataclass(slots=True)
class Model:
    """What must be known."""

    known: dict[bytes, tuple[bytes, tuple[bytes, ...]]] = field(default_factory=dict)
    """Anchor and items of each response."""
    names: dict[bytes, tuple[bytes, bytes]] = field(default_factory=dict)
    """Anchor and item of each name that there ever was."""
    newest: dict[bytes, list[bytes]] = field(default_factory=dict)
    """Names that each response was recorded with."""

    async def do(self, store: ResponseStore, step: Step, number: int) -> None:
        key = name(f"r{step.id}")
        if step.forgets:
            assert await store.forget(key) is (key in self.known)
            self.known.pop(key, None)
            self.newest.pop(key, None)
            return
        anchor = (ANCHOR, OTHER)[step.anchor]
        own = tuple(b"%d:%b" % (step.anchor, item) for item in items_of(step.letters))
        base, below = b"", tuple[bytes, ...]()
        there, shared = True, 0
        if step.base is not None:
            base = name(f"r{step.base}")
            of, below = self.known.get(base, (b"", ()))
            there, shared = of == anchor, int(step.share * len(below))
        named = tuple((name(f"{number}.{place}"), place) for place in range(len(own)))
        one = RecordedResponse(key, anchor, base, shared, own, named, NOW + number)
        assert await store.save(one) is there
        if there:
            self.known[key] = (anchor, below[:shared] + own)
            self.names.update({id_: (anchor, own[place]) for id_, place in named})
            self.newest[key] = [id_ for id_, _ in named]

    async def check(self, store: ResponseStore) -> None:
        for n in range(6):
            key = name(f"r{n}")
            loaded = await store.load(key)
            found = loaded and (loaded.anchor, loaded.items)
            assert found == self.known.get(key)
        items = await store.load_items([*self.names])
        for id_, (anchor, raw) in self.names.items():
            # Those of one that was recorded anew may be known as long as somebody has the item.
            assert items.get(id_, raw) == raw
            assert id_ not in items or raw in self._of(anchor)
        assert {id_ for ids in self.newest.values() for id_ in ids} <= set(items)

    @property
    def stored_items(self) -> int:
        return len({raw for _, items in self.known.values() for raw in items})

    def _of(self, anchor: bytes) -> set[bytes]:
        return {raw for of, items in self.known.values() if of == anchor for raw in items}
