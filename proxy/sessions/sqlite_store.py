"""Session state in one SQLite file: nothing to install, survives restarts.

Write-ahead log, full synchronisation, one transaction per commit: a crash at any instant leaves
the old state or the new one.
"""

import hashlib
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Collection, Sequence
from functools import partial
from pathlib import Path

from proxy.compaction.checkpoint import Checkpoint, Fold
from proxy.errors import StateCorrupt
from proxy.sessions import sqlite_export, sqlite_folds, state
from proxy.sessions.sqlite_file import SqliteFile
from proxy.sessions.sqlite_response_rows import drop_anchor
from proxy.sessions.sqlite_responses import SqliteResponses
from proxy.sessions.sqlite_retention import expire_responses, expire_sessions, shrink
from proxy.sessions.sqlite_schema import (
    BUSY_SECONDS,
    apply,
    delete_sessions,
    end_lease,
    insert_events,
    move_lease,
    take_lease,
    version_of,
)
from proxy.sessions.state import (
    AnchorState,
    Archived,
    Change,
    ClipSet,
    Lease,
    Note,
    SessionRow,
    Struggle,
    ignore,
)
from proxy.telemetry import Event

MAX_CUTS = 512
"""Cuts of one anchor that are looked at, the newest ones."""


class SqliteStore:
    """A `SessionStore` in one file."""

    def __init__(self, path: Path, *, retention_seconds: float, archive_bytes: int) -> None:
        """Use the file at `path`; nothing is opened before `open`."""
        self._file = SqliteFile(path)
        self._retention_seconds = retention_seconds
        self._archive_bytes = archive_bytes
        self.responses = SqliteResponses(self._file, retention_seconds, archive_bytes)

    async def open(self) -> None:
        """Open or create the file, readable by its owner alone, and bring it up to date.

        Raises:
            StoreTooNew: when a newer version wrote it; the file is not touched.
            StoreUnavailable: when it cannot be opened or is not a store.
        """
        await self._file.run(lambda: self._file.connect(BUSY_SECONDS))

    async def find(
        self, anchor: bytes, chain: Sequence[bytes], known: Collection[str] = ()
    ) -> AnchorState:
        """See `SessionStore.find`."""
        return await self._file.run(lambda: self._find(anchor, chain, known))

    async def load_checkpoint(self, anchor: bytes, checkpoint_id: str) -> Checkpoint | None:
        """See `SessionStore.load_checkpoint`."""
        return await self._file.run(lambda: self._checkpoint(anchor, checkpoint_id))

    async def commit(self, change: Change) -> None:
        """See `SessionStore.commit`."""
        await self._file.run(lambda: self._commit(change))

    async def save_fold(
        self, anchor: bytes, fold: Fold, time: float, version: int | None = None
    ) -> None:
        """See `SessionStore.save_fold`."""
        # Packing needs no lock.
        data = state.dump_fold(fold)
        await self._file.run(
            lambda: self._file.write(
                lambda db: sqlite_folds.insert(db, anchor, fold.key, data, time, version)
            )
        )

    async def load_folds(self, anchor: bytes) -> list[Fold]:
        """See `SessionStore.load_folds`."""
        return await self._file.run(lambda: sqlite_folds.select(self._file.db(), anchor))

    async def drop_folds(self, anchor: bytes, keys: Collection[bytes]) -> None:
        """See `SessionStore.drop_folds`."""
        await self._file.run(
            lambda: self._file.write(lambda db: sqlite_folds.delete(db, anchor, keys))
        )

    async def acquire_lease(self, anchor: bytes, cut_digest: bytes, seconds: float) -> Lease | None:
        """See `SessionStore.acquire_lease`."""

        def take(db: sqlite3.Connection) -> Lease | None:
            now = time.time()
            token = take_lease(db, anchor, cut_digest, now, now + seconds)
            return None if token is None else Lease(anchor, cut_digest, token)

        return await self._file.run(lambda: self._file.write(take))

    async def renew_lease(self, lease: Lease, seconds: float) -> bool:
        """See `SessionStore.renew_lease`."""
        return await self._file.run(
            lambda: self._file.write(lambda db: move_lease(db, lease, time.time() + seconds))
        )

    async def release_lease(self, lease: Lease) -> None:
        """See `SessionStore.release_lease`."""
        await self._file.run(lambda: self._file.write(lambda db: end_lease(db, lease)))

    async def touch(self, anchor: bytes, session: str, time: float) -> None:
        """See `SessionStore.touch`."""
        await self._file.run(
            lambda: self._file.write(
                lambda db: db.execute(
                    "UPDATE sessions SET used = max(used, ?) WHERE id = ? AND anchor = ?",
                    (time, session, anchor),
                )
            )
        )

    async def append_events(self, events: Sequence[Event]) -> None:
        """See `SessionStore.append_events`."""
        kept = [event for event in events if event.session]
        if kept:
            await self._file.run(lambda: self._file.write(lambda db: insert_events(db, kept)))

    async def events(self, session: str) -> list[str]:
        """See `SessionStore.events`."""
        rows = await self._file.run(
            lambda: (
                self._file.db()
                .execute("SELECT data FROM events WHERE session = ? ORDER BY id", (session,))
                .fetchall()
            )
        )
        return [row[0] for row in rows]

    async def archived(self, session: str, archive_id: str) -> list[Archived]:
        """See `SessionStore.archived`."""
        rows = await self._file.run(
            lambda: (
                self._file.db()
                .execute(
                    "SELECT position, data FROM archive JOIN blobs ON blobs.digest = archive.blob"
                    " WHERE session = ? AND archive_id = ? ORDER BY position",
                    (session, archive_id),
                )
                .fetchall()
            )
        )
        return [Archived(position, state.unpack(data)) for position, data in rows]

    async def sessions(self, limit: int = 100) -> list[SessionRow]:
        """See `SessionStore.sessions`."""
        rows = await self._file.run(
            lambda: (
                self._file.db()
                .execute(
                    "SELECT id, created, used,"
                    " (SELECT count(*) FROM checkpoints WHERE session = sessions.id)"
                    " FROM sessions ORDER BY used DESC LIMIT ?",
                    (limit,),
                )
                .fetchall()
            )
        )
        return [SessionRow(*row) for row in rows]

    async def all_sessions(self) -> AsyncIterator[str]:
        """See `SessionStore.all_sessions`."""
        page, last = partial(sqlite_export.sessions_after, self._file.db()), 0
        while rows := await self._file.run(partial(page, last)):
            for _, session in rows:
                yield session
            last = rows[-1][0]

    async def delete_session(self, session: str) -> bool:
        """See `SessionStore.delete_session`."""

        def delete(db: sqlite3.Connection) -> bool:
            known = db.execute("SELECT anchor FROM sessions WHERE id = ?", (session,)).fetchone()
            delete_sessions(db, [session], time.time())
            if known is None:
                return False
            db.execute(
                "DELETE FROM struggles WHERE anchor = ?1"
                " AND NOT EXISTS (SELECT 1 FROM sessions WHERE anchor = ?1)",
                known,
            )
            if not db.execute("SELECT 1 FROM sessions WHERE anchor = ?", known).fetchone():
                drop_anchor(db, known[0])
            return True

        return await self._file.run(lambda: self._file.write(delete))

    async def expire(self, now: float) -> int:
        """See `SessionStore.expire`."""
        return await self._file.run(lambda: self._file.write(lambda db: self._expire(db, now)))

    async def secret(self, name: str) -> bytes:
        """See `SessionStore.secret`."""

        def draw(db: sqlite3.Connection) -> bytes:
            db.execute(
                "INSERT OR IGNORE INTO secrets VALUES (?, ?)", (name, secrets.token_bytes(32))
            )
            row = db.execute("SELECT value FROM secrets WHERE name = ?", (name,)).fetchone()
            return bytes(row[0])

        return await self._file.run(lambda: self._file.write(draw))

    async def known_secret(self, name: str) -> bytes | None:
        """See `SessionStore.known_secret`."""
        query = "SELECT value FROM secrets WHERE name = ?"
        row = await self._file.run(lambda: self._file.db().execute(query, (name,)).fetchone())
        return bytes(row[0]) if row else None

    async def adopt_secret(self, name: str, value: bytes) -> bytes:
        """See `SessionStore.adopt_secret`."""

        def adopt(db: sqlite3.Connection) -> None:
            db.execute("INSERT OR IGNORE INTO secrets VALUES (?, ?)", (name, value))

        await self._file.run(lambda: self._file.write(adopt))
        return await self.secret(name)

    async def export(self, session: str, note: Note = ignore) -> AsyncIterator[Change]:
        """See `SessionStore.export`."""
        for part in await self._file.run(
            lambda: sqlite_export.parts(self._file.db(), session, note)
        ):
            change = await self._file.run(part)
            if change is not None:
                yield change

    async def close(self) -> None:
        """See `SessionStore.close`."""
        await self._file.close()

    def _find(self, anchor: bytes, chain: Sequence[bytes], in_hand: Collection[str]) -> AnchorState:
        db = self._file.db()
        rows = db.execute(
            "SELECT cut_digest, id FROM checkpoints WHERE anchor = ?"
            " ORDER BY created DESC, rowid DESC LIMIT ?",
            (anchor, MAX_CUTS),
        ).fetchall()
        known: dict[bytes, list[str]] = {}
        for digest, checkpoint_id in rows:
            known.setdefault(digest, []).append(checkpoint_id)
        unreadable = set[str]()
        deepest = None
        for checkpoint_id in (i for digest in reversed(chain) for i in known.get(digest, ())):
            if checkpoint_id in in_hand:
                break
            deepest = self._checkpoint(anchor, checkpoint_id)
            if deepest is not None:
                break
            unreadable.add(checkpoint_id)
        # The newest of each cut that can be read, as far as they were tried.
        cuts = {d: i for d, i in reversed(rows) if i not in unreadable}
        loaded = {} if deepest is None else {deepest.id: deepest}
        clip_sets, damaged = self._clip_sets(anchor)
        corrupt = len(unreadable) + damaged
        return AnchorState(
            cuts,
            clip_sets,
            self._struggle(anchor),
            loaded,
            corrupt,
            version=version_of(db, anchor),
        )

    def _clip_sets(self, anchor: bytes) -> tuple[list[ClipSet], int]:
        sets, damaged = [], 0
        for digest, checkpoint, session, data in self._file.db().execute(
            "SELECT digest, checkpoint, session, data FROM clip_sets WHERE anchor = ?", (anchor,)
        ):
            try:
                clips = state.load_clips(data)
            except StateCorrupt:
                damaged += 1
                continue
            if clips is not None:
                sets.append(ClipSet(digest, checkpoint, session, clips))
        return sets, damaged

    def _struggle(self, anchor: bytes) -> Struggle:
        row = self._file.db().execute(
            "SELECT failures, cool_until, attempted, budget_tried FROM struggles WHERE anchor = ?",
            (anchor,),
        )
        found = row.fetchone()
        return Struggle(*found) if found else Struggle()

    def _checkpoint(self, anchor: bytes, checkpoint_id: str) -> Checkpoint | None:
        found = (
            self._file.db()
            .execute(
                "SELECT data FROM checkpoints WHERE id = ? AND anchor = ?", (checkpoint_id, anchor)
            )
            .fetchone()
        )
        try:
            return state.load_checkpoint(found[0]) if found else None
        except StateCorrupt:
            return None

    def _commit(self, change: Change) -> None:
        # Packing is the slow part and needs no lock.
        blobs = [
            (hashlib.sha256(item.raw).digest(), len(item.raw), state.pack(item.raw), item.index)
            for item in change.archive
        ]
        self._file.write(lambda db: apply(db, change, blobs))

    def _expire(self, db: sqlite3.Connection, now: float) -> int:
        gone = expire_sessions(db, now, self._retention_seconds)
        expire_responses(db, now - self._retention_seconds)
        shrink(db, self._archive_bytes)
        return gone
