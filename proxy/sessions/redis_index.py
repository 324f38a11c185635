"""The listing of all sessions in Redis. It may lag behind the state and is repaired from it."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from proxy.errors import StoreUnavailable
from proxy.sessions.redis_client import RedisClient
from proxy.sessions.redis_keys import Keys, data, items, text

REPAIR_SECONDS = 86_400
BATCH = 200

SessionsOf = Callable[[bytes], Awaitable[list[tuple[str, float]]]]


class RedisIndex:
    """Sessions by last use, and the anchor of each."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        """Take the connection and the names."""
        self._client = client
        self._keys = keys
        self._unlisted: dict[str, tuple[bytes, float]] = {}

    async def note(self, session: str, anchor: bytes, used: float) -> None:
        """List a session as used at a time, unless it is listed as used later.

        The state is committed already: a failure here is made good by `repair`.
        """
        self._unlisted[session] = (anchor, used)
        try:
            await self._list(session)
        except StoreUnavailable:
            return

    async def remove(self, session: str) -> None:
        """Take a session out."""
        self._unlisted.pop(session, None)
        await self._client.pipeline(
            [("ZREM", self._keys.used, session), ("HDEL", self._keys.anchors, session)]
        )

    async def anchor_of(self, session: str) -> bytes:
        """Return the anchor of a session; empty when it is not listed."""
        if session in self._unlisted:
            return self._unlisted[session][0]
        found = await self._client.call("HGET", self._keys.anchors, session)
        return found if isinstance(found, bytes) else b""

    async def newest(self, limit: int) -> list[tuple[str, bytes]]:
        """Return sessions and their anchors, the most recently used first."""
        if limit < 1:
            return []
        reply = await self._client.call("ZREVRANGE", self._keys.used, 0, limit - 1)
        return await self._with_anchors([text(member) for member in items(reply)])

    async def unlisted(self, sessions: Sequence[str]) -> int:
        """Count those of some sessions that are not listed."""
        if not sessions:
            return 0
        anchors, used = await self._client.pipeline(
            [("HMGET", self._keys.anchors, *sessions), ("ZMSCORE", self._keys.used, *sessions)]
        )
        return sum(None in pair for pair in zip(items(anchors), items(used), strict=True))

    async def older_than(self, time: float) -> AsyncIterator[tuple[str, bytes]]:
        """Yield sessions that are listed as used before a time; remove each, or list it anew."""
        while True:
            reply = await self._client.call(
                "ZRANGEBYSCORE", self._keys.used, "-inf", f"({time!r}", "LIMIT", 0, BATCH
            )
            sessions = [text(member) for member in items(reply)]
            for session, anchor in await self._with_anchors(sessions):
                yield session, anchor
            if len(sessions) < BATCH:
                return

    async def repair(self, sessions_of: SessionsOf) -> None:
        """List what is missing; all keys are walked at most once a day, by one process."""
        for session in list(self._unlisted):
            await self._list(session)
        first = await self._client.call("SET", self._keys.repaired, "1", "NX", "EX", REPAIR_SECONDS)
        if first:
            await self.rebuild(sessions_of)

    async def rebuild(self, sessions_of: SessionsOf) -> int:
        """Walk all state keys and list their sessions; return how many there are."""
        count = 0
        async for key in self._client.keys(self._keys.states):
            anchor = self._keys.anchor_of(key)
            for session, used in await sessions_of(anchor) if anchor else ():
                await self.note(session, anchor, used)
                count += 1
        return count

    async def _list(self, session: str) -> None:
        anchor, used = self._unlisted[session]
        await self._client.pipeline(
            [
                ("HSET", self._keys.anchors, session, anchor),
                ("ZADD", self._keys.used, "GT", repr(used), session),
            ]
        )
        self._unlisted.pop(session, None)

    async def _with_anchors(self, sessions: list[str]) -> list[tuple[str, bytes]]:
        if not sessions:
            return []
        anchors = items(await self._client.call("HMGET", self._keys.anchors, *sessions))
        return [
            (session, data(anchor) if anchor is not None else b"")
            for session, anchor in zip(sessions, anchors, strict=True)
        ]
