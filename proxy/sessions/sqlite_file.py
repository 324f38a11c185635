"""The file of the SQLite store: its connection, its thread and its transactions.

All statements run on one thread of their own; SQLite allows one writer anyway, and the event
loop never waits for a disk.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TypeVar

from proxy.errors import StoreUnavailable
from proxy.sessions.sqlite_schema import migrate, refuse_newer

_T = TypeVar("_T")


class SqliteFile:
    """One file; everything but `run` is to be called on its thread."""

    def __init__(self, path: Path) -> None:
        """Use the file at `path`; nothing is opened before `connect`."""
        self._path = path
        self._thread = ThreadPoolExecutor(1, "foldgate-sqlite")
        self._connection: sqlite3.Connection | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    async def run(self, work: Callable[[], _T]) -> _T:
        """Do something on the thread.

        Raises:
            StoreUnavailable: when SQLite or the disk refuses.
        """
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", type(error).__name__)
            raise StoreUnavailable(f"the SQLite store failed ({name})") from None
        except OSError as error:
            raise StoreUnavailable(f"the SQLite store failed ({error.strerror})") from None

    async def close(self) -> None:
        """Close the connection and end the thread."""
        await self.run(self._disconnect)
        self._thread.shutdown()

    def connect(self, busy_seconds: float) -> None:
        """Open or create the file and bring it up to date; locks are waited for that long."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path.touch(mode=0o600, exist_ok=True)
        # Even closing a writable connection would fold a newer version's log into its file.
        probe = sqlite3.connect(
            f"{self._path.absolute().as_uri()}?mode=ro", timeout=busy_seconds, uri=True
        )
        with closing(probe):
            refuse_newer(probe)
        db = sqlite3.connect(
            self._path, timeout=busy_seconds, isolation_level=None, check_same_thread=False
        )
        with ExitStack() as unless_ready:
            unless_ready.callback(db.close)
            migrate(db)
            unless_ready.pop_all()
        self._connection = db

    def db(self) -> sqlite3.Connection:
        """Return the connection."""
        if self._connection is None:
            raise StoreUnavailable("the SQLite store is not open")
        return self._connection

    def write(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Do something in a transaction: whole, or not at all when it fails."""
        return self._within("BEGIN IMMEDIATE", work)

    def read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Let several statements see one state, whatever other processes write meanwhile."""
        return self._within("BEGIN", work)

    def _within(self, begin: str, work: Callable[[sqlite3.Connection], _T]) -> _T:
        db = self.db()
        db.execute(begin)
        try:
            result = work(db)
            db.execute("COMMIT")
        finally:
            # Still open means that something above failed.
            if db.in_transaction:
                db.execute("ROLLBACK")
        return result

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
