"""Reading a whole session out of the SQLite store, one change at a time."""

import sqlite3
from collections.abc import Callable, Sequence

from proxy import codec
from proxy.errors import StateCorrupt
from proxy.sessions import state
from proxy.sessions.state import Archived, Change, ClipSet, Struggle
from proxy.telemetry import Event

Part = Callable[[], Change | None]
"""Reads one change; None when what it would hold is damaged or of a newer version."""


def parts(db: sqlite3.Connection, session: str) -> Sequence[Part]:
    """Return readers of everything a session has, in the order it is to be committed."""
    row = db.execute(
        "SELECT anchor, created, used FROM sessions WHERE id = ?", (session,)
    ).fetchone()
    if row is None:
        return ()
    anchor, created, used = row
    checkpoints = db.execute(
        "SELECT id, data, created FROM checkpoints WHERE session = ? ORDER BY created, rowid",
        (session,),
    ).fetchall()
    clip_sets = db.execute(
        "SELECT digest, checkpoint, data FROM clip_sets WHERE session = ? ORDER BY rowid",
        (session,),
    ).fetchall()
    archives = dict(
        db.execute(
            "SELECT archive_id, min(time) FROM archive WHERE session = ? GROUP BY archive_id",
            (session,),
        ).fetchall()
    )
    found: list[Part] = [lambda: Change(anchor, session, created)]
    found += [_archive_part(db, anchor, session, name, time) for name, time in archives.items()]
    found += [_checkpoint_part(anchor, session, data, time) for _, data, time in checkpoints]
    found += [_clips_part(anchor, session, created, row) for row in clip_sets]
    return [*found, lambda: _last(db, anchor, session, used)]


def _archive_part(
    db: sqlite3.Connection, anchor: bytes, session: str, archive_id: str, time: float
) -> Part:
    def read() -> Change:
        rows = db.execute(
            "SELECT position, data FROM archive JOIN blobs ON blobs.digest = archive.blob"
            " WHERE session = ? AND archive_id = ? ORDER BY position",
            (session, archive_id),
        )
        archive = []
        for position, data in rows:
            try:
                archive.append(Archived(position, state.unpack(data)))
            except StateCorrupt:
                continue
        return Change(anchor, session, time, archive=tuple(archive), archive_id=archive_id)

    return read


def _checkpoint_part(anchor: bytes, session: str, data: bytes, time: float) -> Part:
    def read() -> Change | None:
        try:
            checkpoint = state.load_checkpoint(data)
        except StateCorrupt:
            return None
        return None if checkpoint is None else Change(anchor, session, time, checkpoint)

    return read


def _clips_part(anchor: bytes, session: str, time: float, row: tuple[bytes, str, bytes]) -> Part:
    def read() -> Change | None:
        digest, checkpoint, data = row
        try:
            clips = state.load_clips(data)
        except StateCorrupt:
            return None
        if clips is None:
            return None
        return Change(anchor, session, time, clip_set=ClipSet(digest, checkpoint, session, clips))

    return read


def _last(db: sqlite3.Connection, anchor: bytes, session: str, used: float) -> Change:
    struggle = db.execute(
        "SELECT failures, cool_until, attempted, budget_tried FROM struggles WHERE anchor = ?",
        (anchor,),
    ).fetchone()
    lines = db.execute("SELECT data FROM events WHERE session = ? ORDER BY id", (session,))
    events = [Event.from_json(codec.loads(line)) for (line,) in lines]
    return Change(
        anchor,
        session,
        used,
        struggle=Struggle(*struggle) if struggle else None,
        events=tuple(event for event in events if event is not None),
    )
