"""Running summaries in the store: found by content, kept without anybody waiting for it.

They spare a retry, a restart or a longer history the calls that were made already. Without a
store folding goes on all the same.
"""

from collections.abc import Callable, Collection
from functools import partial

from proxy.compaction.checkpoint import Fold
from proxy.compactor.storage import CALL_SECONDS, NoAnswer, StoreCalls
from proxy.sessions.store import SessionStore
from proxy.transcript import Transcript


class StoredFolds:
    """Reads and writes the running summaries of one process's conversations."""

    def __init__(self, store: SessionStore, calls: StoreCalls, now: Callable[[], float]) -> None:
        """Take the store, the way to call it, and the clock (seconds since the epoch)."""
        self._store = store
        self._calls = calls
        self._now = now

    async def on_chain(self, transcript: Transcript, length: int) -> list[Fold]:
        """Return those that cover a prefix of the first `length` items, the shortest first."""
        load = partial(self._store.load_folds, transcript.anchor)
        found = await self._calls.ask(self._calls.reads, "folds", load)
        if isinstance(found, NoAnswer):
            return []
        items = transcript.items
        fitting = (
            f for f in found if 0 < f.covered <= length and items[f.covered - 1].digest == f.digest
        )
        return sorted(fitting, key=lambda fold: (fold.covered, fold.created))

    def keep(self, anchor: bytes, fold: Fold, version: int | None) -> None:
        """Store one, unless something of the anchor was deleted since `version`."""
        save = partial(self._store.save_fold, anchor, fold, self._now(), version)
        if self._calls.writes.allows():
            call = self._calls.attempt(self._calls.writes, "folds", save, CALL_SECONDS)
            _ = self._calls.start(call)

    def drop(self, anchor: bytes, keys: Collection[bytes]) -> None:
        """Delete those that a checkpoint has taken the place of."""
        drop = partial(self._store.drop_folds, anchor, keys)
        if keys and self._calls.writes.allows():
            call = self._calls.attempt(self._calls.writes, "folds", drop, CALL_SECONDS)
            _ = self._calls.start(call)
