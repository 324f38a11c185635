"""Reading a whole session out of the SQLite store, one change at a time."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from proxy import codec
from proxy.sessions import state
from proxy.sessions.state import Archived, Change, ClipSet, Note, Struggle, readable
from proxy.telemetry import Event

Part = Callable[[], Change | None]
"""Reads one change; None when what it would hold cannot be read."""

PAGE = 500


def sessions_after(db: sqlite3.Connection, row: int) -> Sequence[tuple[int, str]]:
    """Return some sessions behind a row number, with their own, in that order."""
    return db.execute(
        "SELECT rowid, id FROM sessions WHERE rowid > ? ORDER BY rowid LIMIT ?", (row, PAGE)
    ).fetchall()


def parts(db: sqlite3.Connection, session: str, note: Note) -> Sequence[Part]:
    """Return readers of everything a session has, in the order it is to be committed."""
    row = db.execute(
        "SELECT anchor, created, used FROM sessions WHERE id = ?", (session,)
    ).fetchone()
    if row is None:
        return ()
    anchor, created, used = row
    checkpoints = db.execute(
        "SELECT data, created FROM checkpoints WHERE session = ? ORDER BY created, rowid",
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
    found += [
        _archive_part(db, Change(anchor, session, time, archive_id=name), note)
        for name, time in archives.items()
    ]
    found += [
        _checkpoint_part(Change(anchor, session, time), data, note) for data, time in checkpoints
    ]
    found += [_clips_part(Change(anchor, session, created), row, note) for row in clip_sets]
    return [*found, lambda: _last(db, anchor, session, used)]


def _archive_part(db: sqlite3.Connection, change: Change, note: Note) -> Part:
    def read() -> Change:
        rows = db.execute(
            "SELECT position, data FROM archive JOIN blobs ON blobs.digest = archive.blob"
            " WHERE session = ? AND archive_id = ? ORDER BY position",
            (change.session, change.archive_id),
        )
        archive = []
        for position, data in rows:
            raw = readable(partial(state.unpack, data), note)
            if raw is not None:
                archive.append(Archived(position, raw))
        return replace(change, archive=tuple(archive))

    return read


def _checkpoint_part(change: Change, data: bytes, note: Note) -> Part:
    def read() -> Change | None:
        checkpoint = readable(partial(state.load_checkpoint, data), note)
        return None if checkpoint is None else replace(change, checkpoint=checkpoint)

    return read


def _clips_part(change: Change, row: tuple[bytes, str, bytes], note: Note) -> Part:
    def read() -> Change | None:
        digest, checkpoint, data = row
        clips = readable(partial(state.load_clips, data), note)
        if clips is None:
            return None
        return replace(change, clip_set=ClipSet(digest, checkpoint, change.session, clips))

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
