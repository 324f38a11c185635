"""Whether a SQLite file serves well as a store, and what it holds. Nothing in it is changed."""

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

from proxy.codec import JsonObject
from proxy.errors import StoreTooNew
from proxy.sessions import state
from proxy.sessions.sqlite_schema import (
    BUSY_SECONDS,
    SCHEMA_VERSION,
    WITH_RESPONSES,
    refuse_newer,
)
from proxy.sessions.state import readable
from proxy.sessions.store_check import Contents, Finding, reachable, round_trip


class SqliteCheck:
    """Looks at a file."""

    def __init__(self, path: Path) -> None:
        """Take the path; the file need not be there."""
        self._path = path

    async def findings(self) -> AsyncGenerator[Finding, None]:
        """Yield what is found; ends early when the file cannot be used at all."""
        if not await asyncio.to_thread(self._path.is_file):
            fix = "none needed: `foldgate serve` makes it"
            yield Finding("reachable", "warn", "there is no such file yet", fix)
            return
        try:
            seconds = await round_trip(lambda: asyncio.to_thread(self._ask))
            yield reachable(seconds)
            for finding in await asyncio.to_thread(lambda: [*self._look()]):
                yield finding
        except (sqlite3.Error, OSError) as error:
            yield _failed("reachable", error)

    async def close(self) -> None:
        """Nothing stays open."""

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode={mode}",
            timeout=BUSY_SECONDS,
            uri=True,
            isolation_level=None,
        )

    def _ask(self) -> None:
        with closing(self._connect("ro")) as db:
            db.execute("PRAGMA user_version").fetchone()

    def _look(self) -> Iterator[Finding]:
        with closing(self._connect("ro")) as db:
            try:
                refuse_newer(db)
            except StoreTooNew as error:
                text, _, fix = str(error).partition(": ")
                yield Finding("server", "FAIL", text, fix)
                return
            version = db.execute("PRAGMA user_version").fetchone()[0]
            yield _format(version)
            yield Finding("mode", "ok", f"one file, {self._path.stat().st_size / 2**20:,.1f} MiB")
            if not version:
                return
            yield self._writable()
            yield self._private()
            damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if damage != "ok":
                fix = "restore a copy, or move the file away: sessions start anew"
                yield Finding("persistence", "FAIL", "the file is damaged", fix)
                return
            yield Finding("persistence", "ok", "every commit is on the disk; the file is whole")
            yield from _contents(db, version)

    def _writable(self) -> Finding:
        try:
            with closing(self._connect("rw")) as db:
                db.execute("BEGIN IMMEDIATE")
                db.execute("INSERT OR REPLACE INTO secrets VALUES ('probe', x'00')")
                db.execute("ROLLBACK")
        except sqlite3.Error as error:
            return _failed("writable", error)
        return Finding("writable", "ok", "yes")

    def _private(self) -> Finding:
        if self._path.stat().st_mode & 0o077:
            fix = f"chmod 600 '{self._path}'"
            return Finding("access", "warn", "others may read the file", fix)
        return Finding("access", "ok", "its owner's alone")


def _format(version: int) -> Finding:
    text = f"SQLite {sqlite3.sqlite_version}, format {version}"
    facts: JsonObject = {"server": "SQLite", "version": sqlite3.sqlite_version}
    if version < SCHEMA_VERSION:
        fix = f"none needed: the next start makes it format {SCHEMA_VERSION}"
        return Finding("server", "warn", text, fix, facts)
    return Finding("server", "ok", text, facts=facts)


def _contents(db: sqlite3.Connection, version: int) -> list[Finding]:
    contents = Contents(sessions=db.execute("SELECT count(*) FROM sessions").fetchone()[0])
    for (body,) in db.execute("SELECT data FROM checkpoints"):
        contents.checkpoints += 1
        readable(partial(state.load_checkpoint, body), contents.note)
    for (body,) in db.execute("SELECT data FROM clip_sets"):
        contents.clip_sets += 1
        readable(partial(state.load_clips, body), contents.note)
    if version >= WITH_RESPONSES:
        contents.responses = db.execute("SELECT count(key) FROM responses").fetchone()[0]
    listing = Finding("listing", "ok", "complete", facts={"unlisted": 0})
    return [*contents.findings(), listing]


def _failed(name: str, error: sqlite3.Error | OSError) -> Finding:
    if isinstance(error, OSError):
        return Finding(name, "FAIL", f"{error.strerror}", "see the path and its permissions")
    word = getattr(error, "sqlite_errorname", type(error).__name__)
    if word.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        fix = "end the program that holds it"
        return Finding(name, "FAIL", f"another program holds its lock ({word})", fix)
    if word.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        fix = "see the permissions of the file and its folder"
        return Finding(name, "FAIL", f"it cannot be written or opened ({word})", fix)
    return Finding(name, "FAIL", f"it is no store of Foldgate's ({word})", "name another file")
