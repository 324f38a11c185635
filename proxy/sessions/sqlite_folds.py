"""Running summaries in the SQLite store."""

import sqlite3
from collections.abc import Iterable

from proxy.compaction.checkpoint import Fold
from proxy.errors import StateCorrupt
from proxy.sessions import state
from proxy.sessions.sqlite_schema import version_of
from proxy.sessions.state import MAX_FOLDS


def insert(
    db: sqlite3.Connection, anchor: bytes, key: bytes, data: bytes, time: float, version: int | None
) -> None:
    """Keep a running summary; see `SessionStore.save_fold`."""
    if version is not None and version_of(db, anchor) > version:
        return
    row = db.execute("SELECT data FROM folds WHERE anchor = ? AND key = ?", (anchor, key))
    if any(_is_newer(known) for (known,) in row.fetchall()):
        return
    db.execute(
        "INSERT OR REPLACE INTO folds (anchor, key, time, data) VALUES (?, ?, ?, ?)",
        (anchor, key, time, data),
    )
    db.execute(
        "DELETE FROM folds WHERE anchor = ?1 AND id NOT IN"
        " (SELECT id FROM folds WHERE anchor = ?1 ORDER BY id DESC LIMIT ?2)",
        (anchor, MAX_FOLDS),
    )


def select(db: sqlite3.Connection, anchor: bytes) -> list[Fold]:
    """Return those that can be read."""
    rows = db.execute("SELECT data FROM folds WHERE anchor = ?", (anchor,)).fetchall()
    found = (_read(data) for (data,) in rows)
    return [fold for fold in found if fold is not None]


def delete(db: sqlite3.Connection, anchor: bytes, keys: Iterable[bytes]) -> None:
    """Delete some of an anchor."""
    db.executemany(
        "DELETE FROM folds WHERE anchor = ? AND key = ?", ((anchor, key) for key in keys)
    )


def _read(data: bytes) -> Fold | None:
    try:
        return state.load_fold(data)
    except StateCorrupt:
        return None


def _is_newer(data: bytes) -> bool:
    # What is damaged may be overwritten.
    try:
        return state.load_fold(data) is None
    except StateCorrupt:
        return False
