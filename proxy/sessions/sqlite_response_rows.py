"""The rows of recorded responses in the SQLite store; the caller's transaction makes them whole.

A row of `responses` is a node: it adds items to the first items of another node. Its key is what
the response is known by. A response that was forgotten, or recorded anew, leaves its node
without a key for as long as others build on it, with the items that they need and no more.
Nodes have rising ids, each above that of its base.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace

from proxy.sessions.responses import RecordedResponse
from proxy.sessions.sqlite_schema import drop_blobs

Blob = tuple[bytes, int, bytes]
"""Digest, size and packed form of an item."""

PAGE = 200

_LINE = """
    WITH RECURSIVE line (id, base, shared, upto) AS (
        SELECT id, base, shared, total FROM responses WHERE id = ?1
        UNION ALL
        SELECT node.id, node.base, node.shared, min(line.upto, line.shared)
        FROM line JOIN responses AS node ON node.id = line.base AND node.id < line.id
        WHERE line.shared > ?2
    )
"""
"""The nodes that a node's items stand in, from the item at ?2 on: each has those below `upto`."""

_WITHIN = "position >= ?2 AND position < upto"


@dataclass(frozen=True, slots=True)
class Written:
    """A response as it is stored, from its item at `shared` on."""

    key: bytes
    anchor: bytes
    base: bytes
    shared: int
    time: float
    packed: Sequence[bytes | None]
    """Its items; None for one that is gone."""
    names: Sequence[tuple[bytes, int]] = ()


@dataclass(frozen=True, slots=True)
class _Node:
    id: int
    key: bytes | None
    anchor: bytes
    base: int | None
    shared: int
    total: int
    time: float


def _node(db: sqlite3.Connection, where: str, value: bytes | int | None) -> _Node | None:
    row = db.execute(
        f"SELECT id, key, anchor, base, shared, total, time FROM responses WHERE {where} = ?",
        (value,),
    ).fetchone()
    return _Node(*row) if row else None


def insert(db: sqlite3.Connection, response: RecordedResponse, blobs: Sequence[Blob]) -> bool:
    """Record a response; False when its base is not there."""
    base = None
    if response.base or response.shared:
        base = _node(db, "key", response.base)
        if base is None or base.anchor != response.anchor or response.shared > base.total:
            return False
        # What it shares may be what its base shares itself: then it does not need that base.
        while base is not None and response.shared <= base.shared:
            base = _node(db, "id", base.base) if response.shared else None
    # One that was damaged is mended.
    db.executemany(
        "INSERT INTO blobs VALUES (?, ?, ?) ON CONFLICT (digest) DO UPDATE"
        " SET data = excluded.data WHERE data <> excluded.data",
        blobs,
    )
    before = _node(db, "key", response.key)
    if before is not None and _is_equal(db, before, response, base, blobs):
        db.execute("UPDATE responses SET time = ? WHERE id = ?", (response.time, before.id))
        _name(db, before.id, response)
        return True
    if before is not None:
        db.execute("UPDATE responses SET key = NULL WHERE id = ?", (before.id,))
    _insert_node(db, response, base, blobs)
    if before is not None:
        _release(db, before.id)
    return True


def _is_equal(
    db: sqlite3.Connection,
    node: _Node,
    response: RecordedResponse,
    base: _Node | None,
    blobs: Sequence[Blob],
) -> bool:
    wanted = (response.anchor, base.id if base else None, response.shared)
    if (node.anchor, node.base, node.shared) != wanted:
        return False
    rows = db.execute(
        "SELECT blob FROM response_items WHERE response = ? ORDER BY position", (node.id,)
    )
    return [row[0] for row in rows] == [blob[0] for blob in blobs]


def _insert_node(
    db: sqlite3.Connection, response: RecordedResponse, base: _Node | None, blobs: Sequence[Blob]
) -> None:
    shared, total = response.shared, response.shared + len(blobs)
    node = db.execute(
        "INSERT INTO responses (key, anchor, base, shared, total, time) VALUES (?, ?, ?, ?, ?, ?)",
        (response.key, response.anchor, base.id if base else None, shared, total, response.time),
    ).lastrowid
    db.executemany(
        "INSERT INTO response_items VALUES (?, ?, ?)",
        ((node, shared + place, blob[0]) for place, blob in enumerate(blobs)),
    )
    _name(db, node, response)


def _name(db: sqlite3.Connection, node: int | None, response: RecordedResponse) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO item_names VALUES (?, ?, ?)",
        ((key, node, response.shared + place) for key, place in response.names),
    )


def _release(db: sqlite3.Connection, id_: int | None) -> None:
    """Delete of a node, and of those it builds on, what no response needs any more."""
    while id_ is not None:
        node = _node(db, "id", id_)
        if node is None or node.key is not None:
            return
        needed = db.execute("SELECT max(shared) FROM responses WHERE base = ?", (id_,)).fetchone()
        kept = needed[0] or 0
        blobs = db.execute(
            "SELECT blob FROM response_items WHERE response = ? AND position >= ?", (id_, kept)
        ).fetchall()
        for table in ("response_items", "item_names"):
            db.execute(f"DELETE FROM {table} WHERE response = ? AND position >= ?", (id_, kept))
        drop_blobs(db, (row[0] for row in blobs))
        if kept:
            return
        db.execute("DELETE FROM responses WHERE id = ?", (id_,))
        id_ = node.base


def forget(db: sqlite3.Connection, key: bytes) -> bool:
    """Delete a response; False when unknown."""
    node = _node(db, "key", key)
    if node is None:
        return False
    db.execute("UPDATE responses SET key = NULL WHERE id = ?", (node.id,))
    _release(db, node.id)
    return True


def drop_anchor(db: sqlite3.Connection, anchor: bytes) -> tuple[int, int]:
    """Delete all responses of an anchor; return how many there were and how many bytes went."""
    count = db.execute("SELECT count(key) FROM responses WHERE anchor = ?", (anchor,)).fetchone()
    own = "response IN (SELECT id FROM responses WHERE anchor = ?)"
    blobs = db.execute(f"SELECT DISTINCT blob FROM response_items WHERE {own}", (anchor,))
    digests = [row[0] for row in blobs]
    for table in ("response_items", "item_names"):
        db.execute(f"DELETE FROM {table} WHERE {own}", (anchor,))
    db.execute("DELETE FROM responses WHERE anchor = ?", (anchor,))
    return int(count[0]), drop_blobs(db, digests)


def has(db: sqlite3.Connection, key: bytes) -> bool:
    """Tell whether a response is there."""
    return db.execute("SELECT 1 FROM responses WHERE key = ?", (key,)).fetchone() is not None


def read_whole(db: sqlite3.Connection, key: bytes) -> Written | None:
    """Return a response from its first item on; None when it is not there or not whole."""
    node = _node(db, "key", key)
    return None if node is None else _read(db, node, b"", 0)


def read_own(db: sqlite3.Connection, key: bytes) -> Written | None:
    """Return a response from its first item on that its base has not; None when not whole.

    Its base is the nearest response that it builds on and that is still known.
    """
    node = _node(db, "key", key)
    if node is None:
        return None
    base, shared, above = b"", node.shared, node
    while above.base is not None:
        below = _node(db, "id", above.base)
        if below is None or below.id >= above.id:
            return None
        if below.key is not None:
            base = below.key
            break
        shared, above = min(shared, below.shared), below
    found = _read(db, node, base, shared)
    return found and replace(found, names=_names(db, node, shared))


def _read(db: sqlite3.Connection, node: _Node, base: bytes, first: int) -> Written | None:
    rows = db.execute(
        f"{_LINE} SELECT data FROM line JOIN response_items ON response = line.id AND {_WITHIN}"
        " LEFT JOIN blobs ON digest = blob ORDER BY position",
        (node.id, first),
    ).fetchall()
    if len(rows) != node.total - first:
        return None
    packed = [row[0] for row in rows]
    return Written(node.key or b"", node.anchor, base, first, node.time, packed)


def _names(db: sqlite3.Connection, node: _Node, first: int) -> Sequence[tuple[bytes, int]]:
    return db.execute(
        f"{_LINE} SELECT key, position - ?2 FROM line"
        f" JOIN item_names ON response = line.id AND {_WITHIN} ORDER BY position",
        (node.id, first),
    ).fetchall()


def item(db: sqlite3.Connection, key: bytes) -> bytes | None:
    """Return the packed form of the newest item of a key."""
    row = db.execute(
        "SELECT data FROM item_names AS name JOIN response_items AS item"
        " ON item.response = name.response AND item.position = name.position"
        " JOIN blobs ON digest = blob WHERE key = ? ORDER BY name.response DESC LIMIT 1",
        (key,),
    ).fetchone()
    return row[0] if row else None


def keys_after(db: sqlite3.Connection, id_: int) -> Sequence[tuple[int, bytes]]:
    """Return some responses behind a node, with their own, in that order."""
    return db.execute(
        "SELECT id, key FROM responses WHERE id > ? AND key IS NOT NULL ORDER BY id LIMIT ?",
        (id_, PAGE),
    ).fetchall()
