"""Keeping events with their sessions, behind the requests that caused them."""

import asyncio
from collections import deque

from proxy.errors import StoreError
from proxy.sessions.store import SessionStore
from proxy.telemetry import Event

MAX_WAITING = 1000


class StoredEvents:
    """A sink that stores events in the background; when it cannot, the oldest are dropped."""

    def __init__(self, store: SessionStore) -> None:
        """Take the store."""
        self._store = store
        self._waiting: deque[Event] = deque(maxlen=MAX_WAITING)
        self._arrived = asyncio.Event()
        self._storing = asyncio.Lock()
        self._under_way: tuple[list[Event], asyncio.Task[bool]] | None = None

    def emit(self, event: Event) -> None:
        """Take one event."""
        if event.session:
            self._waiting.append(event)
            self._arrived.set()

    async def run(self) -> None:
        """Store events as they arrive, until cancelled."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            await self.flush()

    async def flush(self) -> None:
        """Store what waits; on a failing store it goes on waiting."""
        async with self._storing:
            if self._under_way is None:
                batch = list(self._waiting)
                if not batch:
                    return
                work = asyncio.get_running_loop().create_task(self._append(batch))
                self._under_way = (batch, work)
            batch, work = self._under_way
            # Goes on when this is cancelled, at the shutdown; then the next flush waits for it, so
            # that nothing is stored twice.
            stored_all = await asyncio.shield(work)
            self._under_way = None
            if not stored_all:
                return
            # Some of them may have been pushed out by newer ones meanwhile.
            stored = set(map(id, batch))
            while self._waiting and id(self._waiting[0]) in stored:
                self._waiting.popleft()

    async def _append(self, batch: list[Event]) -> bool:
        try:
            await self._store.append_events(batch)
        except StoreError:
            return False
        return True
