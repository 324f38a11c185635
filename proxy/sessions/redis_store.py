"""Session state in Redis: one memory for many replicas.

A lookup and a commit are one scripted call on one key each, so a reader sees the old state or
the new one whatever dies when. Archived items are written before the commit that names them.
The listing of all sessions stands elsewhere and may lag; it is repaired by scanning.
"""

import secrets
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from proxy import codec
from proxy.compaction.checkpoint import Checkpoint, Fold
from proxy.errors import LeaseLost, StateCorrupt, StoreUnavailable
from proxy.sessions import redis_events
from proxy.sessions import redis_scripts as scripts
from proxy.sessions.redis_archive import RedisArchive
from proxy.sessions.redis_client import RedisClient
from proxy.sessions.redis_cluster import Argument, Reply
from proxy.sessions.redis_folds import RedisFolds
from proxy.sessions.redis_index import RedisIndex
from proxy.sessions.redis_keys import Keys, data, items, text, tuples
from proxy.sessions.redis_responses import RedisResponses
from proxy.sessions.redis_values import RedisValues
from proxy.sessions.sealing import Sealer
from proxy.sessions.state import (
    AnchorState,
    Archived,
    Change,
    Lease,
    Note,
    SessionRow,
    Struggle,
    Unreadable,
    ignore,
)
from proxy.sessions.store_url import StoreUrl
from proxy.telemetry import Event

MAX_CUTS = 512
"""Cuts of one anchor that are kept, the newest ones."""

KEEP_LEASE_SECONDS = 3600.0
"""How long an ended lease is remembered, to refuse whoever had it before."""

SLACK_SECONDS = 86_400.0
"""Keys live this much longer than sessions, which are deleted one by one when they are due."""

MAX_ANCHORS = 4096


@dataclass(frozen=True, slots=True)
class Retention:
    """How long things are kept, in seconds."""

    session: float
    archive: float


class RedisStore:
    """A `SessionStore` in Redis."""

    def __init__(
        self, url: StoreUrl, retention: Retention, *, prefix: str = "foldgate", sealer: Sealer
    ) -> None:
        """Use the servers at `url`; nothing is connected before a call."""
        self._client = RedisClient(url)
        self._keys = Keys(prefix)
        self._values = RedisValues(sealer)
        self._retention = retention
        self._life = int((retention.session + SLACK_SECONDS) * 1000)
        self._archive = RedisArchive(self._client, self._keys, sealer, retention.archive)
        self._folds = RedisFolds(self._client, self._keys, sealer, self._life)
        self._index = RedisIndex(self._client, self._keys)
        self.responses = RedisResponses(
            self._client, self._keys, sealer, retention=retention.session, life=self._life
        )
        self._anchors: OrderedDict[str, bytes] = OrderedDict()

    async def open(self) -> None:
        """Make sure that the server answers.

        Raises:
            StoreUnavailable: when it does not.
        """
        await self._client.call("GET", self._keys.repaired)

    async def find(
        self, anchor: bytes, chain: Sequence[bytes], known: Collection[str] = ()
    ) -> AnchorState:
        """See `SessionStore.find`."""
        width = len(chain[0]) if chain else 1
        arguments: list[Argument] = [b"".join(chain), width, *known]
        reply = items(await self._client.run(scripts.FIND, [self._keys.state(anchor)], arguments))
        if len(reply) != 6:
            raise StoreUnavailable("Redis: a lookup answered something else", "malformed_reply")
        version, struggle, cuts, deepest, body, sets = reply
        found = {data(cut): text(id_) for cut, id_ in tuples(cuts, 2)}
        damaged = Counter[Unreadable]()
        clip_sets = self._values.clip_sets(anchor, sets, lambda why: damaged.update([why]))
        state_ = AnchorState(
            found,
            clip_sets,
            self._values.struggle(anchor, struggle) or Struggle(),
            corrupt=sum(n for value, n in damaged.items() if value.why != "newer"),
            newer=damaged[Unreadable("newer")],
            version=int(data(version)),
        )
        wanted = text(deepest)
        if not wanted:
            return state_
        checkpoint = self._values.checkpoint(anchor, wanted, body)
        if checkpoint is not None:
            return replace(state_, checkpoints={wanted: checkpoint})
        return await self._without(anchor, chain, state_, tuples(cuts, 2))

    async def load_checkpoint(self, anchor: bytes, checkpoint_id: str) -> Checkpoint | None:
        """See `SessionStore.load_checkpoint`."""
        return await self._load(anchor, checkpoint_id)

    async def commit(self, change: Change) -> None:
        """See `SessionStore.commit`."""
        anchor, session = change.anchor, change.session
        if change.archive:
            await self._archive.write(anchor, session, change.archive_id, change.archive)
        keys = [self._keys.state(anchor)]
        lines: list[Argument] = [codec.dumps(e.to_json()) for e in change.events if e.session]
        if lines:
            keys.append(self._keys.events(anchor, session))
        told = self._values.commit_arguments(change, self._life, MAX_CUTS)
        arguments: list[Argument] = [*told, *lines]
        if await self._client.run(scripts.COMMIT, keys, arguments) != 1:
            raise LeaseLost("another process took the compaction over")
        if session:
            self._remember(session, anchor)
            await self._index.note(session, anchor, change.time)

    async def save_fold(
        self, anchor: bytes, fold: Fold, time: float, version: int | None = None
    ) -> None:
        """See `SessionStore.save_fold`."""
        await self._folds.save(anchor, fold, version)

    async def load_folds(self, anchor: bytes) -> list[Fold]:
        """See `SessionStore.load_folds`."""
        return await self._folds.load(anchor)

    async def drop_folds(self, anchor: bytes, keys: Collection[bytes]) -> None:
        """See `SessionStore.drop_folds`."""
        await self._folds.drop(anchor, keys)

    async def acquire_lease(self, anchor: bytes, cut_digest: bytes, seconds: float) -> Lease | None:
        """See `SessionStore.acquire_lease`."""
        # The owner lets a call that is sent again after a lost reply find its own lease.
        owner, keep = secrets.token_hex(8), int(KEEP_LEASE_SECONDS * 1000)
        token = await self._client.run(
            scripts.ACQUIRE,
            [self._keys.state(anchor)],
            [cut_digest, owner, int(seconds * 1000), keep, self._life],
        )
        return Lease(anchor, cut_digest, token) if isinstance(token, int) and token else None

    async def renew_lease(self, lease: Lease, seconds: float) -> bool:
        """See `SessionStore.renew_lease`."""
        keys = [self._keys.state(lease.anchor)]
        arguments: list[Argument] = [lease.cut_digest, lease.token]
        arguments += [int(seconds * 1000), self._life]
        return await self._client.run(scripts.MOVE_LEASE, keys, arguments) == 1

    async def release_lease(self, lease: Lease) -> None:
        """See `SessionStore.release_lease`."""
        await self.renew_lease(lease, 0.0)

    async def touch(self, anchor: bytes, session: str, time: float) -> None:
        """See `SessionStore.touch`."""
        keys = [self._keys.state(anchor)]
        if await self._client.run(scripts.TOUCH, keys, [session, repr(time), self._life]) == 1:
            await self._client.call("PEXPIRE", self._keys.events(anchor, session), self._life)
            await self._index.note(session, anchor, time)

    async def append_events(self, events: Sequence[Event]) -> None:
        """See `SessionStore.append_events`."""
        batches: dict[str, list[Argument]] = {}
        for event in events:
            if event.session:
                anchor = event.anchor or await self._anchor_of(event.session)
                key = self._keys.events(anchor, event.session)
                batches.setdefault(key, []).append(codec.dumps(event.to_json()))
        for key, lines in batches.items():
            # A damaged key keeps no events, and does not keep others from theirs.
            with suppress(StateCorrupt):
                await redis_events.append(self._client, key, lines, self._life)

    async def events(self, session: str) -> list[str]:
        """See `SessionStore.events`."""
        lines = []
        for key in self._event_keys(session, await self._anchor_of(session)):
            lines += await redis_events.read(self._client, key)
        return lines

    async def archived(self, session: str, archive_id: str) -> list[Archived]:
        """See `SessionStore.archived`."""
        anchor = await self._anchor_of(session)
        row = await self._row(anchor, session)
        if row is None or archive_id not in row[1]:
            return []
        return await self._archive.read(anchor, session, archive_id)

    async def sessions(self, limit: int = 100) -> list[SessionRow]:
        """See `SessionStore.sessions`."""
        rows = []
        for session, anchor in await self._index.newest(limit):
            # One that cannot be read does not hide the others.
            with suppress(StateCorrupt):
                found = await self._row(anchor, session)
                rows += [found[0]] if found is not None else []
        return sorted(rows, key=lambda row: -row.used)

    async def all_sessions(self) -> AsyncIterator[str]:
        """See `SessionStore.all_sessions`."""
        # The listing may lack some. A walk may tell a key twice.
        seen = set[bytes]()
        async for key in self._client.keys(self._keys.states):
            anchor = self._keys.anchor_of(key)
            if anchor and anchor not in seen:
                seen.add(anchor)
                for session in await self._names(anchor):
                    self._remember(session, anchor)
                    yield session

    async def delete_session(self, session: str) -> bool:
        """See `SessionStore.delete_session`."""
        anchor = await self._anchor_of(session)
        known = await self._forget(session, anchor, "")
        await self._client.pipeline([("UNLINK", key) for key in self._event_keys(session, anchor)])
        return known

    async def expire(self, now: float) -> int:
        """See `SessionStore.expire`."""
        await self._index.repair(self._sessions_of)
        limit, gone = now - self._retention.session, 0
        async for session, anchor in self._index.older_than(limit):
            if await self._forget(session, anchor, repr(limit)):
                gone += 1
                await self._client.call("UNLINK", self._keys.events(anchor, session))
        await self.responses.expire(now)
        return gone

    async def secret(self, name: str) -> bytes:
        """See `SessionStore.secret`."""
        return await self.adopt_secret(name, secrets.token_bytes(32))

    async def known_secret(self, name: str) -> bytes | None:
        """See `SessionStore.known_secret`."""
        found = await self._client.call("GET", self._keys.secret(name))
        return None if found is None else data(found)

    async def adopt_secret(self, name: str, value: bytes) -> bytes:
        """See `SessionStore.adopt_secret`."""
        key = self._keys.secret(name)
        await self._client.call("SET", key, value, "NX")
        return data(await self._client.call("GET", key))

    async def export(self, session: str, note: Note = ignore) -> AsyncIterator[Change]:
        """See `SessionStore.export`."""
        anchor = await self._anchor_of(session)
        row = await self._row(anchor, session)
        if row is None:
            return
        yield Change(anchor, session, row[0].created)
        for archive_id in row[1]:
            archive = tuple(await self._archive.read(anchor, session, archive_id, note))
            yield Change(anchor, session, row[0].created, archive=archive, archive_id=archive_id)
        contents = items(
            await self._client.run(scripts.CONTENTS, [self._keys.state(anchor)], [session])
        )
        for id_ in items(contents[0]):
            checkpoint = await self._load(anchor, text(id_), note)
            if checkpoint is not None:
                yield Change(anchor, session, row[0].created, checkpoint)
        sets = [part for d, c, body in tuples(contents[1], 3) for part in (d, c, b"", body)]
        for clips in self._values.clip_sets(anchor, sets, note):
            yield Change(anchor, session, row[0].created, clip_set=replace(clips, session=session))
        lines = [Event.from_json(codec.loads(line)) for line in await self.events(session)]
        yield Change(
            anchor,
            session,
            row[0].used,
            struggle=self._values.struggle(anchor, contents[2], note),
            events=tuple(event for event in lines if event is not None),
        )

    async def close(self) -> None:
        """See `SessionStore.close`."""
        await self._client.close()

    async def relist(self) -> int:
        """Make the listing of sessions whole; return how many there are."""
        return await self._index.rebuild(self._sessions_of)

    async def _load(self, anchor: bytes, id_: str, note: Note = ignore) -> Checkpoint | None:
        body = await self._client.call("HGET", self._keys.state(anchor), f"c:{id_}")
        return self._values.checkpoint(anchor, id_, body, note)

    async def _without(
        self,
        anchor: bytes,
        chain: Sequence[bytes],
        found: AnchorState,
        cuts: Iterator[Sequence[Reply]],
    ) -> AnchorState:
        """Find the deepest checkpoint that can be read when the first choice cannot."""
        ids: dict[bytes, list[str]] = {}
        order = [(data(cut), text(id_)) for cut, id_ in cuts]
        for cut, id_ in reversed(order):
            ids.setdefault(cut, []).append(id_)
        unreadable, loaded = set[str](), dict[str, Checkpoint]()
        notes: list[Unreadable] = []
        for id_ in (i for digest in reversed(chain) for i in ids.get(digest, ())):
            checkpoint = await self._load(anchor, id_, notes.append)
            if checkpoint is not None:
                loaded[id_] = checkpoint
                break
            unreadable.add(id_)
        readable = {cut: id_ for cut, id_ in order if id_ not in unreadable}
        newer = notes.count(Unreadable("newer"))
        return replace(
            found,
            cuts=readable,
            checkpoints=loaded,
            corrupt=found.corrupt + len(unreadable) - newer,
            newer=found.newer + newer,
        )

    async def _row(self, anchor: bytes, session: str) -> tuple[SessionRow, list[str]] | None:
        if not anchor:
            return None
        reply = await self._client.run(scripts.SESSION, [self._keys.state(anchor)], [session])
        row = [text(member) for member in items(reply)]
        if len(row) < 3:
            return None
        created, used, checkpoints = (float(member) for member in row[:3])
        return SessionRow(session, created, used, int(checkpoints)), row[3:]

    async def _names(self, anchor: bytes) -> list[str]:
        (reply,) = await self._client.pipeline([("HKEYS", self._keys.state(anchor))], lenient=True)
        return [text(f).removeprefix("x:") for f in items(reply) if data(f).startswith(b"x:")]

    async def _sessions_of(self, anchor: bytes) -> list[tuple[str, float]]:
        rows = [await self._row(anchor, session) for session in await self._names(anchor)]
        return [(row[0].id, row[0].used) for row in rows if row is not None]

    async def _forget(self, session: str, anchor: bytes, limit: str) -> bool:
        """Delete a session unless it was used since `limit`; False when there was none to go."""
        answer = ["unknown", ""]
        if anchor:
            key = self._keys.state(anchor)
            try:
                reply = await self._client.run(scripts.FORGET, [key], [session, limit])
                answer = [text(member) for member in items(reply)]
            except StateCorrupt:
                # Not ours to read, but in the place of what is to go.
                await self._client.call("UNLINK", key)
                answer = ["gone", "0"]
        word, told, *archive_ids = answer
        if word == "used":
            await self._index.note(session, anchor, float(told))
            return False
        for archive_id in archive_ids:
            # What is not ours expires by itself, if ever.
            with suppress(StateCorrupt):
                await self._archive.drop(anchor, session, archive_id)
        if word == "gone":
            await self._folds.forget(anchor)
        if word == "gone" and not limit and int(told) <= 0:
            await self.responses.drop(anchor)
        await self._index.remove(session)
        self._anchors.pop(session, None)
        return word == "gone"

    def _remember(self, session: str, anchor: bytes) -> None:
        self._anchors[session] = anchor
        if len(self._anchors) > MAX_ANCHORS:
            self._anchors.popitem(last=False)

    async def _anchor_of(self, session: str) -> bytes:
        """Return the anchor of a session; empty when nothing is known of it."""
        known = self._anchors.get(session)
        if known is None:
            known = await self._index.anchor_of(session)
            if known:
                self._remember(session, known)
        return known

    def _event_keys(self, session: str, anchor: bytes) -> list[str]:
        keys = [self._keys.events(b"", session)]
        return [*keys, self._keys.events(anchor, session)] if anchor else keys
