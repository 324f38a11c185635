"""Recorded responses in Redis: those of an anchor in one hash, pointers to it elsewhere.

A response is stored and read by one scripted call on one key, so it is there whole or not at all
whatever dies when. Its items are written by that call too or, when they are large, before it;
what a crash leaves of them is not named by anything and goes with the hash. A pointer may say
less than the hash, never more than is there: what it leads to is looked up each time.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import groupby

from proxy.compaction.checkpoint import SCHEMA_VERSION
from proxy.errors import StateCorrupt, StoreUnavailable
from proxy.sessions import redis_response_scripts as scripts
from proxy.sessions.redis_client import RedisClient
from proxy.sessions.redis_cluster import Argument, Reply
from proxy.sessions.redis_keys import Keys, data, items, text, tuples
from proxy.sessions.redis_response_items import Piece, RedisResponseItems, Sealed, split
from proxy.sessions.responses import RecordedResponse
from proxy.sessions.sealing import Sealer
from proxy.sessions.state import Note, Unreadable, ignore

BATCH = 200
TRIES = 3


class RedisResponses:
    """A `ResponseStore` in the Redis of a `RedisStore`, which opens and closes it."""

    def __init__(
        self, client: RedisClient, keys: Keys, sealer: Sealer, *, retention: float, life: int
    ) -> None:
        """Take the connection, the names and the sealing.

        Responses are kept for `retention` seconds; `life` is that of keys in milliseconds.
        """
        self._client = client
        self._keys = keys
        self._sealer = sealer
        self._items = RedisResponseItems(client, keys, sealer)
        self._retention = retention
        self._life = life

    async def save(self, response: RecordedResponse) -> bool:
        """See `ResponseStore.save`."""
        sealed = await self._items.seal(response.anchor, response.items)
        try:
            reply = await self._save(response, sealed)
        except StateCorrupt:
            # Something that is not ours has the place of the hash.
            return False
        if reply is None:
            return False
        await self._point(response, sealed)
        await self._drop_names(response.anchor, reply)
        return True

    async def load(self, key: bytes) -> RecordedResponse | None:
        """See `ResponseStore.load`."""
        try:
            anchor = await self._anchor_of(key)
            reply: Sequence[Reply] = ()
            if anchor:
                reply = items(
                    await self._client.run(scripts.LOAD, [self._keys.responses(anchor)], [key])
                )
            if len(reply) != 3:
                return None
            time, count, parts = reply
            raws = await self._read(anchor, count, parts, ignore)
            if raws is None:
                return None
            return RecordedResponse(key, anchor, b"", 0, raws, time=float(data(time)))
        except StateCorrupt:
            return None

    async def has(self, key: bytes) -> bool:
        """See `ResponseStore.has`."""
        anchor = await self._anchor_of(key)
        if not anchor:
            return False
        return await self._client.call("HEXISTS", self._keys.responses(anchor), b"k:" + key) == 1

    async def load_items(self, keys: Sequence[bytes]) -> Mapping[bytes, bytes]:
        """See `ResponseStore.load_items`."""
        commands = [("GETEX", self._keys.item(key), "PX", self._life) for key in keys]
        pointers = list[tuple[bytes, bytes, bytes]]()
        for start in range(0, len(commands), BATCH):
            replies = await self._client.each(commands[start : start + BATCH], lenient=True)
            for key, reply in zip(keys[start:], replies, strict=False):
                if isinstance(reply, bytes):
                    pointers.append((*_place(reply), key))
        found = dict[bytes, bytes]()
        for anchor, group in groupby(sorted(pointers), key=lambda pointer: pointer[0]):
            own = [*group]
            try:
                raws = await self._items.read(anchor, [named for _, named, _ in own])
            except StateCorrupt:
                continue
            found.update({o[2]: raw for o, raw in zip(own, raws, strict=True) if raw is not None})
        return found

    async def forget(self, key: bytes) -> bool:
        """See `ResponseStore.forget`."""
        try:
            anchor = await self._anchor_of(key)
            if not anchor or not await self._forget(anchor, key):
                return False
        except StateCorrupt:
            return False
        await self._client.call("UNLINK", self._keys.response(key))
        return True

    async def expire(self, now: float) -> int:
        """See `ResponseStore.expire`."""
        limit, gone = now - self._retention, 0
        while True:
            # Each that is told is listed anew or not at all, so this comes to an end.
            reply = await self._client.call(
                "ZRANGEBYSCORE", self._keys.recorded, "-inf", f"({limit!r}", "LIMIT", 0, BATCH
            )
            anchors = [data(member) for member in items(reply)]
            for anchor in anchors:
                gone += await self._expire(anchor, limit)
            if len(anchors) < BATCH:
                return gone

    async def all_responses(self, note: Note = ignore) -> AsyncIterator[RecordedResponse]:
        """See `ResponseStore.all_responses`."""
        seen = set[bytes]()
        async for key in self._client.keys(self._keys.all_responses):
            anchor = self._keys.anchor_of(key)
            if anchor and anchor not in seen:
                seen.add(anchor)
                async for response in self._all_of(anchor, note):
                    yield response

    async def drop(self, anchor: bytes) -> None:
        """Delete the responses of an anchor; what points there expires by itself."""
        await self._client.call("UNLINK", self._keys.responses(anchor))
        await self._client.call("ZREM", self._keys.recorded, anchor)

    async def _save(self, response: RecordedResponse, sealed: Sealed) -> Sequence[Reply] | None:
        """Store a response; return the names that are gone by that, None when it is refused."""
        keys = [self._keys.responses(response.anchor)]
        *before, last = sealed.chunks()
        base = b"k:" + response.base
        # Asked first, before much is sent for nothing.
        if before and response.base and not await self._client.call("HEXISTS", keys[0], base):
            return None
        arguments = self._put_arguments(last)
        arguments += [response.key, response.base, response.shared, repr(response.time)]
        arguments += [len(sealed.named), b"".join(sealed.named)]
        for name in response.names:
            arguments += name
        for _ in range(TRIES):
            for chunk in before:
                await self._client.run(scripts.PUT, keys, self._put_arguments(chunk))
            reply = items(await self._client.run(scripts.SAVE, keys, arguments))
            word = text(reply[0]) if reply else ""
            if word == "saved":
                return items(reply[1])
            if word != "incomplete":
                return None
            # Somebody deleted what had the same items just now; they are sent again.
        raise StoreUnavailable("Redis: items vanish while a response is stored", "vanished")

    def _put_arguments(self, pieces: Sequence[Piece]) -> list[Argument]:
        """Return what every script that stores pieces takes first."""
        flat = [part for piece in pieces for part in piece]
        return [self._life, SCHEMA_VERSION, self._sealer.key_names, len(pieces), *flat]

    async def _point(self, response: RecordedResponse, sealed: Sealed) -> None:
        """Let a response, and those of its items that have names, be found."""
        anchor, life = response.anchor, self._life
        before = await self._client.run(
            scripts.POINT, [self._keys.response(response.key)], [anchor, life]
        )
        commands: list[Sequence[Argument]] = [
            ("SET", self._keys.item(name), _pointer(anchor, sealed.named[place]), "PX", life)
            for name, place in response.names
        ]
        commands.append(("ZADD", self._keys.recorded, "GT", repr(response.time), anchor))
        for start in range(0, len(commands), BATCH):
            await self._client.each(commands[start : start + BATCH])
        if isinstance(before, bytes) and before not in (b"", anchor):
            await self._forget(before, response.key)

    async def _forget(self, anchor: bytes, key: bytes) -> bool:
        reply = items(await self._client.run(scripts.FORGET, [self._keys.responses(anchor)], [key]))
        if not reply or text(reply[0]) != "gone":
            return False
        await self._drop_names(anchor, items(reply[1]))
        return True

    async def _drop_names(self, anchor: bytes, gone: Sequence[Reply]) -> None:
        """Delete pointers to items that are gone, unless they lead elsewhere by now."""
        names = [(self._keys.item(data(n)), _pointer(anchor, data(i))) for n, i in tuples(gone, 2)]
        for start in range(0, len(names), BATCH):
            part = names[start : start + BATCH]
            found = await self._client.each([("GET", name) for name, _ in part], lenient=True)
            pairs = zip(part, found, strict=True)
            own = [("UNLINK", name) for (name, pointer), there in pairs if there == pointer]
            await self._client.each(own)

    async def _expire(self, anchor: bytes, limit: float) -> int:
        """Delete the responses of an anchor unless one was recorded since; return how many."""
        keys = [self._keys.responses(anchor)]
        try:
            reply = items(await self._client.run(scripts.EXPIRE, keys, [repr(limit)]))
        except StateCorrupt:
            reply = (b"gone", b"0")
        word, told = (text(part) for part in reply)
        if word == "used":
            await self._client.call("ZADD", self._keys.recorded, "GT", told, anchor)
            return 0
        await self._client.call("ZREM", self._keys.recorded, anchor)
        return int(told)

    async def _all_of(self, anchor: bytes, note: Note) -> AsyncIterator[RecordedResponse]:
        """Yield the responses of an anchor, each after its base."""
        first, newest, left_out = 1, 1, set[bytes]()
        while first <= newest:
            try:
                reply = await self._client.run(
                    scripts.EXPORT, [self._keys.responses(anchor)], [first, first + BATCH - 1]
                )
            except StateCorrupt:
                note(Unreadable("damaged"))
                return
            number, *found = items(reply)
            newest = number if isinstance(number, int) else 0
            first += BATCH
            for facts in found:
                response = await self._exported(anchor, facts, left_out, note)
                if response is not None:
                    yield response

    async def _exported(
        self, anchor: bytes, facts: Reply, left_out: set[bytes], note: Note
    ) -> RecordedResponse | None:
        if isinstance(facts, bytes):
            note(Unreadable("newer" if facts == b"newer" else "damaged"))
            return None
        key, *rest = items(facts)
        if len(rest) == 6 and data(rest[0]) not in left_out:
            base, shared, time, count, parts, names = rest
            raws = await self._read(anchor, count, parts, note)
            if raws is not None and isinstance(shared, int):
                places = tuple((data(n), p) for n, p in tuples(names, 2) if isinstance(p, int))
                return RecordedResponse(
                    data(key), anchor, data(base), shared, raws, places, float(data(time))
                )
        left_out.add(data(key))
        return None

    async def _read(
        self, anchor: bytes, count: Reply, parts: Reply, note: Note
    ) -> tuple[bytes, ...] | None:
        """Return the items that a script told, last part first; None when any is unreadable."""
        named = split(b"".join(data(part) for part in reversed(items(parts))))
        found = await self._items.read(anchor, named, note)
        raws = tuple(raw for raw in found if raw is not None)
        return raws if len(raws) == len(found) == count else None

    async def _anchor_of(self, key: bytes) -> bytes:
        """Return the anchor of a response; empty when it is not known."""
        reply = await self._client.call("GETEX", self._keys.response(key), "PX", self._life)
        return reply if isinstance(reply, bytes) else b""


def _pointer(anchor: bytes, named: bytes) -> bytes:
    return bytes((len(anchor),)) + anchor + named


def _place(pointer: bytes) -> tuple[bytes, bytes]:
    """Return the anchor that a pointer says, and how the item is named there."""
    end = 1 + (pointer[0] if pointer else 0)
    return pointer[1:end], pointer[end:]
