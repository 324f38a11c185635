"""Whether what stands in Redis is whole, seen by a store of its own.

Damage is never repaired here. The listing of sessions may lag behind the state; only at the end
it is rebuilt, as the proxy does once a day, and then must be complete.
"""

import random
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from proxy.codec import Json, JsonObject, as_text
from proxy.compaction.checkpoint import Checkpoint
from proxy.errors import StateCorrupt
from proxy.sessions import redis_scripts as scripts
from proxy.sessions import state
from proxy.sessions.redis_client import RedisClient
from proxy.sessions.redis_keys import Keys, data, items, text, tuples
from proxy.sessions.redis_lua import Script
from proxy.sessions.redis_store import RedisStore, Retention
from proxy.sessions.sealing import Sealer
from proxy.sessions.store_url import parse_store_url
from proxy.telemetry import Event
from tests.chaos.lives import Life, Violations, marks

DAY = 86_400.0

_CONTENTS = Script.of("""
local packed = redis.call('HGET', KEYS[1], 'i')
local index, cuts = packed and cmsgpack.unpack(packed) or {}, {}
for n = 1, #index, 4 do
  for _, m in ipairs({n, n + 1, n + 3}) do cuts[#cuts + 1] = index[m] end
end
return {redis.call('HKEYS', KEYS[1]), cuts, redis.call('HGET', KEYS[1], 't')}
""")
"""All of an anchor at one moment: its fields; id, cut and session of each index entry; struggle."""

_SAID = {"span_items": "span_items", "model": "model"}
"""Fields of the event by the fields of the checkpoint they tell."""

_COUNTED = {
    "checkpoint_tokens": "tokens",
    "tokens_after": "tokens_after",
    "span_tokens": "span_tokens",
}
"""The same of those that the event tells as the model counts, all by one factor."""

_ROUNDED = 2.0


@dataclass(frozen=True, slots=True)
class Said:
    """What the proxies said about the checkpoints that they made."""

    events: Mapping[str, JsonObject]
    """Their events by checkpoint id."""

    @classmethod
    def of(cls, events: Iterable[JsonObject]) -> "Said":
        done = (event for event in events if event["type"] == "compaction_completed")
        return cls({as_text(event.get("checkpoint")): event for event in done})

    def stored(self, since: float = 0.0) -> set[str]:
        """Return what was said to be stored, from a time on."""
        return {
            id_
            for id_, event in self.events.items()
            if event.get("stored") is not False and _time(event) > since
        }


def _time(event: Json) -> float:
    read = Event.from_json(event)
    assert read is not None
    return read.time


@dataclass(frozen=True, slots=True)
class Place:
    """All of one anchor, at one moment."""

    anchor: bytes
    fields: set[bytes] = field(repr=False)
    index: Sequence[tuple[str, bytes, str]]
    """Id, cut digest and session."""
    struggle: bytes | None = field(repr=False)

    @property
    def checkpoints(self) -> set[str]:
        return {name[2:].decode() for name in self.fields if name.startswith(b"c:")}

    @property
    def sessions(self) -> set[str]:
        return {name[2:].decode() for name in self.fields if name.startswith(b"x:")}


class Audit:
    """Looks into the Redis of a fleet."""

    def __init__(self, url: str, violations: Violations) -> None:
        self._client = RedisClient(parse_store_url(url))
        self._store = RedisStore(
            parse_store_url(url), Retention(30 * DAY, 7 * DAY), sealer=Sealer()
        )
        self._keys = Keys("foldgate")
        self._violations = violations
        self._name = "audit"

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, violations: Violations) -> AsyncIterator["Audit"]:
        audit = cls(url, violations)
        try:
            yield audit
        finally:
            await audit._store.close()
            await audit._client.close()

    async def places(self) -> list[Place]:
        found = {key async for key in self._client.keys(self._keys.states)}
        return [await self._place(self._keys.anchor_of(key)) for key in sorted(found)]

    async def sample(self, said: Said, since: float, rng: random.Random, size: int = 20) -> None:
        """Look for all that was said to be stored, and closer at some of it."""
        places = await self.places()
        self.missing(places, said, since)
        for place in places:
            self._shape(place)
        for place in rng.sample(places, min(size, len(places))):
            await self._checkpoints(place, said)

    async def whole(self, said: Said, since: float) -> dict[str, int]:
        """Look at everything; returns how much there is.

        Args:
            said: what the proxies said; taken before anything is looked at.
            since: when Redis last began with nothing; 0 when it never lost anything.
        """
        places = await self.places()
        self.missing(places, said, since)
        listed = await self._list_all(places)
        archived = bare = 0
        for place in places:
            self._shape(place)
            found = await self._checkpoints(place, said)
            held = await self._archives(place, found, since)
            archived += sum(map(len, held.values()))
            bare += len(found.keys() - held)
        return {
            "anchors": len(places),
            "sessions": sum(len(place.sessions) for place in places),
            "sessions that were not listed": listed,
            "checkpoints": sum(len(place.checkpoints) for place in places),
            "checkpoints without an archive": bare,
            "archived items": archived,
        }

    def missing(self, places: Iterable[Place], said: Said, since: float) -> None:
        """Report what was said to be stored and is not there."""
        there = {id_ for place in places for id_ in place.checkpoints}
        for id_ in sorted(said.stored(since) - there):
            self._violations.add("d", f"not there: {said.events[id_]}")

    async def _place(self, anchor: bytes) -> Place:
        reply = items(await self._client.run(_CONTENTS, [self._keys.state(anchor)]))
        fields, cuts, struggle = reply
        index = [(text(id_), data(cut), text(session)) for id_, cut, session in tuples(cuts, 3)]
        body = struggle if isinstance(struggle, bytes) else None
        return Place(anchor, {data(name) for name in items(fields)}, index, body)

    def _shape(self, place: Place) -> None:
        """Index and checkpoints name each other; each session of one has a row."""
        indexed = {id_ for id_, _, _ in place.index}
        if indexed != place.checkpoints:
            text_ = f"{self._of(place)}: only in the index {indexed - place.checkpoints}, "
            self._violations.add("c", f"{text_}only outside {place.checkpoints - indexed}")
        if len(indexed) != len(place.index):
            self._violations.add("c", f"{self._of(place)}: an id twice in the index")
        rowless = {session for _, _, session in place.index} - place.sessions
        if rowless:
            self._violations.add("c", f"{self._of(place)}: no row for sessions {rowless}")
        if place.struggle is not None:
            try:
                state.load_struggle(Sealer().open(place.struggle, b""))
            except StateCorrupt:
                self._violations.add("c", f"{self._of(place)}: a damaged struggle")

    async def _checkpoints(self, place: Place, said: Said) -> dict[str, Checkpoint]:
        """Every checkpoint can be read and is what was said when it was made."""
        found = {}
        if (await self._store.find(place.anchor, ())).corrupt:
            self._violations.add("c", f"{self._of(place)}: damaged clips")
        for id_, cut, session in place.index:
            name = f"{self._of(place)}: checkpoint {id_}"
            checkpoint = await self._store.load_checkpoint(place.anchor, id_)
            if checkpoint is None:
                self._violations.add("c", f"{name} cannot be read")
                continue
            found[id_] = checkpoint
            if (checkpoint.id, checkpoint.cut_digest, checkpoint.session) != (id_, cut, session):
                self._violations.add("c", f"{name} is in another's place")
            event = said.events.get(id_)
            if event is not None and _differences(checkpoint, event):
                self._violations.add("c", f"{name}: {_differences(checkpoint, event)}")
        return found

    async def _list_all(self, places: Iterable[Place]) -> int:
        """Have the listing repaired; returns how many sessions were not in it before."""
        sessions = {session for place in places for session in place.sessions}
        before = await self._unlisted(sessions)
        await self._client.call("DEL", self._keys.repaired)
        await self._store.expire(time.time())
        for session in await self._unlisted(sessions):
            self._violations.add("c", f"session {session} is not listed after a repair")
        return len(before)

    async def _unlisted(self, sessions: set[str]) -> set[str]:
        listed = {
            text(name) for name in items(await self._client.call("HKEYS", self._keys.anchors))
        }
        return sessions - listed

    async def _archives(
        self, place: Place, found: Mapping[str, Checkpoint], since: float
    ) -> dict[str, set[int]]:
        """Every archive that a session names is whole, and every checkpoint has what it needs."""
        held = dict[str, set[int]]()
        for session in sorted(place.sessions):
            row = items(
                await self._client.run(scripts.SESSION, [self._keys.state(place.anchor)], [session])
            )
            seen = set[int]()
            for id_ in map(text, row[3:]):
                archived = await self._store.archived(session, id_)
                key = self._keys.entries(place.anchor, session, id_)
                entries = await self._client.call("HLEN", key)
                if not archived or entries != len(archived):
                    text_ = f"session {session} names archive {id_}: {entries!r} entries"
                    self._violations.add("c", f"{text_}, {len(archived)} items")
                held[id_] = {item.index for item in archived}
                seen |= self._of_one_life(f"archive {id_}", archived)
            if len(seen) > 1:
                self._violations.add("c", f"session {session} has items of {seen}")
        for id_, checkpoint in found.items():
            expected = _replaced_anew(checkpoint, found)
            if expected is None or (id_ not in held and checkpoint.created <= since):
                # Lost with everything before `since`; a proxy that knew it stored it again.
                continue
            # What was stored again after a loss brings what its parents had replaced, too.
            if not held.get(id_, set()) >= expected:
                text_ = f"checkpoint {id_} needs items {sorted(expected)}"
                self._violations.add(
                    "c", f"{text_}, its archive has {sorted(held.get(id_, set()))}"
                )
        return held

    def _of_one_life(self, name: str, archived: Iterable[state.Archived]) -> set[int]:
        """Every item is its client's own, at its own position; returns whose they are."""
        archived = list(archived)
        seen = {number for item in archived for number in marks(item.raw)}
        if len(seen) == 1:
            own = Life(*seen).items
            wrong = [i.index for i in archived if own[i.index : i.index + 1] != [i.raw]]
            if wrong:
                self._violations.add("c", f"{name}: items {wrong} are not the client's")
        elif archived:
            self._violations.add("c", f"{name}: items of {seen}")
        return seen

    def _of(self, place: Place) -> str:
        return f"anchor {place.anchor.hex()[:8]}"


def _differences(checkpoint: Checkpoint, event: JsonObject) -> list[str]:
    told = [(name, event.get(name), getattr(checkpoint, own)) for name, own in _SAID.items()]
    told.append(("session", event.get("session"), checkpoint.session))
    differences = [f"{name} was {was}, is {now}" for name, was, now in told if was != now]
    before = event.get("tokens_before")
    if not isinstance(before, int) or not checkpoint.tokens_before:
        return [*differences, f"tokens_before was {before}, is {checkpoint.tokens_before}"]
    factor = before / checkpoint.tokens_before
    for name, own in _COUNTED.items():
        was, now = event.get(name), factor * getattr(checkpoint, own)
        # The factor is known as exactly as a rounded number tells it.
        if not isinstance(was, int) or abs(was - now) > _ROUNDED * (1 + now / before):
            differences.append(f"{name} was {was}, is {now:.1f}")
    return differences


def _replaced(checkpoint: Checkpoint) -> Iterator[int]:
    stay = {*checkpoint.kept, *checkpoint.front, *checkpoint.pinned}
    return (index for index in range(checkpoint.cut_length) if index not in stay)


def _replaced_anew(checkpoint: Checkpoint, known: Mapping[str, Checkpoint]) -> set[int] | None:
    """Return the items that it is the first to replace; None when that cannot be told."""
    if checkpoint.parent is None:
        return {*_replaced(checkpoint)}
    parent = known.get(checkpoint.parent)
    return None if parent is None else {*_replaced(checkpoint)} - {*_replaced(parent)}
