"""What the SQLite store lets go: sessions and responses by their age, more by their size."""

import sqlite3
from collections.abc import Callable
from functools import partial

from proxy.sessions.sqlite_response_rows import drop_anchor
from proxy.sessions.sqlite_schema import delete_sessions, drop_blobs

_KEEP_LEASE_SECONDS = 86_400.0


def expire_sessions(db: sqlite3.Connection, now: float, retention_seconds: float) -> int:
    """Delete sessions that were not used for so long; return how many."""
    limit = now - retention_seconds
    rows = db.execute("SELECT id FROM sessions WHERE used < ?", (limit,)).fetchall()
    delete_sessions(db, [row[0] for row in rows], now)
    db.execute("DELETE FROM struggles WHERE time < ?", (limit,))
    # Of conversations that came to no session, too.
    db.execute("DELETE FROM folds WHERE time < ?", (limit,))
    db.execute("DELETE FROM versions WHERE time < ?", (limit,))
    db.execute("DELETE FROM leases WHERE until < ?", (now - _KEEP_LEASE_SECONDS,))
    db.execute(
        "DELETE FROM events WHERE time < ? AND session NOT IN (SELECT id FROM sessions)",
        (limit,),
    )
    return len(rows)


def expire_responses(db: sqlite3.Connection, limit: float) -> int:
    """Delete the responses of anchors that none was recorded for since `limit`; count them."""
    rows = db.execute(
        "SELECT anchor FROM responses GROUP BY anchor HAVING max(time) < ?", (limit,)
    ).fetchall()
    return sum(drop_anchor(db, row[0])[0] for row in rows)


def shrink(db: sqlite3.Connection, limit: int) -> int:
    """Delete the oldest of what is kept as blobs until they are small enough.

    A part of the archive goes whole, and so do the responses of an anchor. Returns how many
    responses went.
    """
    stored = db.execute("SELECT coalesce(sum(length(data)), 0) FROM blobs").fetchone()[0]
    if stored <= limit:
        return 0
    parts: list[tuple[float, Callable[[], tuple[int, int]]]] = [
        (time, partial(_drop_archive, db, session, archive_id))
        for session, archive_id, time in db.execute(
            "SELECT session, archive_id, min(time) FROM archive GROUP BY session, archive_id"
        ).fetchall()
    ]
    parts += [
        (time, partial(drop_anchor, db, anchor))
        for anchor, time in db.execute(
            "SELECT anchor, max(time) FROM responses GROUP BY anchor"
        ).fetchall()
    ]
    gone = 0
    for _, drop in sorted(parts, key=lambda part: part[0]):
        responses, freed = drop()
        gone, stored = gone + responses, stored - freed
        if stored <= limit:
            break
    return gone


def _drop_archive(db: sqlite3.Connection, session: str, archive_id: str) -> tuple[int, int]:
    values = (session, archive_id)
    blobs = db.execute("SELECT blob FROM archive WHERE session = ? AND archive_id = ?", values)
    digests = [row[0] for row in blobs]
    db.execute("DELETE FROM archive WHERE session = ? AND archive_id = ?", values)
    return 0, drop_blobs(db, digests)
