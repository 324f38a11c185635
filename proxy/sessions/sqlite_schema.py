"""The tables of the SQLite store, how they are brought up to date, and how a change is written."""

import os
import sqlite3
import sys
import time
from collections.abc import Iterable, Sequence

from proxy import codec
from proxy.errors import LeaseLost, StateCorrupt, StoreTooNew
from proxy.sessions import state
from proxy.sessions.state import Change, ClipSet, Lease
from proxy.telemetry import Event

SCHEMA_VERSION = 4
WITH_RESPONSES = 3
"""The first version that has recorded responses."""

BUSY_SECONDS = 2.0

_MIGRATIONS = (
    """
    CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY, anchor BLOB NOT NULL, created REAL NOT NULL, used REAL NOT NULL
    );
    CREATE INDEX sessions_used ON sessions (used);
    CREATE TABLE checkpoints (
        id TEXT PRIMARY KEY, session TEXT NOT NULL, anchor BLOB NOT NULL, cut_digest BLOB NOT NULL,
        created REAL NOT NULL, data BLOB NOT NULL
    );
    CREATE INDEX checkpoints_anchor ON checkpoints (anchor, created);
    CREATE INDEX checkpoints_session ON checkpoints (session);
    CREATE TABLE clip_sets (
        anchor BLOB NOT NULL, digest BLOB NOT NULL, checkpoint TEXT NOT NULL,
        session TEXT NOT NULL, data BLOB NOT NULL, PRIMARY KEY (anchor, digest, checkpoint)
    );
    CREATE INDEX clip_sets_session ON clip_sets (session);
    CREATE TABLE struggles (
        anchor BLOB PRIMARY KEY, failures INTEGER NOT NULL, cool_until REAL NOT NULL,
        attempted BLOB NOT NULL, budget_tried BLOB NOT NULL, time REAL NOT NULL
    );
    CREATE TABLE blobs (digest BLOB PRIMARY KEY, size INTEGER NOT NULL, data BLOB NOT NULL);
    CREATE TABLE archive (
        session TEXT NOT NULL, archive_id TEXT NOT NULL, position INTEGER NOT NULL,
        blob BLOB NOT NULL, time REAL NOT NULL, PRIMARY KEY (session, archive_id, position)
    );
    CREATE INDEX archive_blob ON archive (blob);
    CREATE TABLE events (
        id INTEGER PRIMARY KEY, session TEXT NOT NULL, time REAL NOT NULL, data TEXT NOT NULL
    );
    CREATE INDEX events_session ON events (session, id);
    """,
    """
    CREATE TABLE leases (
        anchor BLOB NOT NULL, cut_digest BLOB NOT NULL, token INTEGER NOT NULL, until REAL NOT NULL,
        process INTEGER NOT NULL, PRIMARY KEY (anchor, cut_digest)
    );
    CREATE TABLE versions (anchor BLOB PRIMARY KEY, version INTEGER NOT NULL, time REAL NOT NULL);
    """,
    """
    CREATE TABLE responses (
        id INTEGER PRIMARY KEY, key BLOB UNIQUE, anchor BLOB NOT NULL, base INTEGER,
        shared INTEGER NOT NULL, total INTEGER NOT NULL, time REAL NOT NULL
    );
    CREATE INDEX responses_anchor ON responses (anchor, time);
    CREATE INDEX responses_base ON responses (base);
    CREATE TABLE response_items (
        response INTEGER NOT NULL, position INTEGER NOT NULL, blob BLOB NOT NULL,
        PRIMARY KEY (response, position)
    ) WITHOUT ROWID;
    CREATE INDEX response_items_blob ON response_items (blob);
    CREATE TABLE item_names (
        key BLOB NOT NULL, response INTEGER NOT NULL, position INTEGER NOT NULL,
        PRIMARY KEY (key, response)
    ) WITHOUT ROWID;
    CREATE INDEX item_names_response ON item_names (response, position);
    """,
    """
    CREATE TABLE folds (
        id INTEGER PRIMARY KEY, anchor BLOB NOT NULL, key BLOB NOT NULL, time REAL NOT NULL,
        data BLOB NOT NULL, UNIQUE (anchor, key)
    );
    """,
)


def refuse_newer(db: sqlite3.Connection) -> None:
    """Raise `StoreTooNew` when a newer version wrote the file."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA_VERSION:
        raise StoreTooNew(
            f"the store has format {version}, this program knows up to {SCHEMA_VERSION}: "
            "use a newer foldgate or another --store"
        )


def _log_ahead(db: sqlite3.Connection) -> None:
    # SQLite does not wait by itself when two processes switch a new file at once.
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return


def migrate(db: sqlite3.Connection) -> None:
    """Bring the file up to date; safe when several processes do it at once."""
    _log_ahead(db)
    db.execute("PRAGMA synchronous = FULL")
    if db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    # Asked again under the lock: another process may have been first.
    refuse_newer(db)
    version = db.execute("PRAGMA user_version").fetchone()[0]
    for script in _MIGRATIONS[version:]:
        for statement in script.split(";"):
            db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    db.execute("COMMIT")


def apply(
    db: sqlite3.Connection, change: Change, blobs: Sequence[tuple[bytes, int, bytes, int]]
) -> None:
    """Write a change; the caller's transaction makes it whole or absent."""
    if change.lease is not None and not end_lease(db, change.lease):
        raise LeaseLost("another process took the compaction over")
    if change.version is not None and version_of(db, change.anchor) > change.version:
        # A deleted session does not come back by what was known of it before.
        raise LeaseLost("the session was deleted")
    if change.session:
        db.execute(
            "INSERT INTO sessions VALUES (?, ?, ?, ?)"
            " ON CONFLICT (id) DO UPDATE SET used = max(used, excluded.used)",
            (change.session, change.anchor, change.time, change.time),
        )
    checkpoint = change.checkpoint
    if checkpoint is not None:
        db.execute(
            "INSERT OR IGNORE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?)",
            (
                checkpoint.id,
                checkpoint.session,
                change.anchor,
                checkpoint.cut_digest,
                checkpoint.created,
                state.dump_checkpoint(checkpoint),
            ),
        )
    clips = change.clip_set
    if clips is not None and not _newer_clips(db, change.anchor, clips):
        db.execute(
            "INSERT OR REPLACE INTO clip_sets VALUES (?, ?, ?, ?, ?)",
            (
                change.anchor,
                clips.digest,
                clips.checkpoint,
                clips.session,
                state.dump_clips(clips.clips),
            ),
        )
        db.execute(
            "DELETE FROM clip_sets WHERE anchor = ?1 AND rowid NOT IN (SELECT rowid FROM clip_sets"
            " WHERE anchor = ?1 ORDER BY rowid DESC LIMIT ?2)",
            (change.anchor, state.MAX_CLIP_SETS),
        )
    struggle = change.struggle
    if struggle is not None:
        db.execute(
            "INSERT OR REPLACE INTO struggles VALUES (?, ?, ?, ?, ?, ?)",
            (
                change.anchor,
                struggle.failures,
                struggle.cool_until,
                struggle.attempted,
                struggle.budget_tried,
                change.time,
            ),
        )
    db.executemany("INSERT OR IGNORE INTO blobs VALUES (?, ?, ?)", (blob[:3] for blob in blobs))
    db.executemany(
        "INSERT OR IGNORE INTO archive VALUES (?, ?, ?, ?, ?)",
        ((change.session, change.archive_id, b[3], b[0], change.time) for b in blobs),
    )
    db.executemany(
        "INSERT INTO events (session, time, data) SELECT ?1, ?2, ?3 WHERE NOT EXISTS"
        " (SELECT 1 FROM events WHERE session = ?1 AND time = ?2 AND data = ?3)",
        _event_rows(change.events),
    )


def _newer_clips(db: sqlite3.Connection, anchor: bytes, clips: ClipSet) -> bool:
    # What a newer version wrote counts as absent for us, but is not ours to overwrite.
    row = db.execute(
        "SELECT data FROM clip_sets WHERE anchor = ? AND digest = ? AND checkpoint = ?",
        (anchor, clips.digest, clips.checkpoint),
    ).fetchone()
    try:
        return row is not None and state.load_clips(row[0]) is None
    except StateCorrupt:
        return False


def version_of(db: sqlite3.Connection, anchor: bytes) -> int:
    """Return how often something of an anchor was deleted."""
    row = db.execute("SELECT version FROM versions WHERE anchor = ?", (anchor,)).fetchone()
    return int(row[0]) if row else 0


def take_lease(
    db: sqlite3.Connection, anchor: bytes, cut_digest: bytes, now: float, until: float
) -> int | None:
    """Return the fencing token of a lease that is now ours; None while somebody else has it."""
    key = (anchor, cut_digest)
    row = db.execute(
        "SELECT token, until, process FROM leases WHERE anchor = ? AND cut_digest = ?", key
    ).fetchone()
    if row is not None and row[1] > now and _lives(row[2]):
        return None
    token = 1 if row is None else int(row[0]) + 1
    lease = (*key, token, until, os.getpid())
    db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?)", lease)
    return token


def _lives(process: int) -> bool:
    # Everybody who has the file open is on this machine, so nobody need wait for the dead.
    if sys.platform == "win32":
        # There signal 0 is Ctrl-C; the lease lapses by itself.
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def move_lease(db: sqlite3.Connection, lease: Lease, until: float) -> bool:
    """Let a lease end at another time; False when somebody else took it over."""
    changed = db.execute(
        "UPDATE leases SET until = ? WHERE anchor = ? AND cut_digest = ? AND token = ?",
        (until, lease.anchor, lease.cut_digest, lease.token),
    )
    return changed.rowcount == 1


def end_lease(db: sqlite3.Connection, lease: Lease) -> bool:
    """End a lease but keep its token; False when somebody else took it over."""
    # Its row goes only when it is long past, so a missing one was nobody else's.
    known = db.execute(
        "SELECT 1 FROM leases WHERE anchor = ? AND cut_digest = ?",
        (lease.anchor, lease.cut_digest),
    ).fetchone()
    return known is None or move_lease(db, lease, time.time())


def insert_events(db: sqlite3.Connection, events: Sequence[Event]) -> None:
    """Append events."""
    db.executemany("INSERT INTO events (session, time, data) VALUES (?, ?, ?)", _event_rows(events))


def _event_rows(events: Sequence[Event]) -> list[tuple[str, float, str]]:
    return [(e.session, e.time, codec.dumps(e.to_json()).decode()) for e in events if e.session]


def delete_sessions(db: sqlite3.Connection, sessions: Sequence[str], now: float) -> None:
    """Delete sessions and what only they reached."""
    for session in sessions:
        db.execute(
            "INSERT INTO versions SELECT anchor, 1, ?2 FROM sessions WHERE id = ?1"
            " ON CONFLICT (anchor) DO UPDATE SET version = version + 1, time = ?2",
            (session, now),
        )
        db.execute(
            "DELETE FROM folds WHERE anchor = (SELECT anchor FROM sessions WHERE id = ?)",
            (session,),
        )
        for table in ("checkpoints", "clip_sets", "archive", "events"):
            db.execute(f"DELETE FROM {table} WHERE session = ?", (session,))
        db.execute("DELETE FROM sessions WHERE id = ?", (session,))
    if sessions:
        drop_orphans(db)


_UNNAMED = (
    " NOT EXISTS (SELECT 1 FROM archive WHERE blob = digest)"
    " AND NOT EXISTS (SELECT 1 FROM response_items WHERE blob = digest)"
)


def drop_orphans(db: sqlite3.Connection) -> None:
    """Delete blobs that neither an archive entry nor a recorded response names."""
    db.execute(f"DELETE FROM blobs WHERE {_UNNAMED}")


def drop_blobs(db: sqlite3.Connection, digests: Iterable[bytes]) -> int:
    """Delete those of some blobs that nothing names any more; return how many bytes went."""
    freed = 0
    for digest in set(digests):
        row = db.execute(
            f"SELECT length(data) FROM blobs WHERE digest = ? AND {_UNNAMED}", (digest,)
        ).fetchone()
        if row is not None:
            db.execute("DELETE FROM blobs WHERE digest = ?", (digest,))
            freed += int(row[0])
    return freed
