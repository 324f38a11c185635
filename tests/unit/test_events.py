"""Keeping events: in order, once, and whatever is cancelled meanwhile."""

import asyncio
from collections.abc import Sequence

from proxy.errors import StoreUnavailable
from proxy.server.events import StoredEvents
from proxy.sessions.store import SessionStore
from proxy.telemetry import Event


class Kept(SessionStore):
    """A store that keeps events only, when it is let."""

    def __init__(self) -> None:
        self.numbers: list[object] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.down = False

    async def append_events(self, events: Sequence[Event]) -> None:
        if self.down:
            raise StoreUnavailable("down")
        await self.gate.wait()
        self.numbers += [event.fields["n"] for event in events]


def event(number: int) -> Event:
    return Event("x", 1.0, "s1", {"n": number})


async def test_a_cancelled_flush_stores_nothing_twice() -> None:
    """As at a shutdown: the store has taken the events, but nobody waits for its answer."""
    store = Kept()  # type: ignore[abstract]
    kept = StoredEvents(store)
    store.gate.clear()
    kept.emit(event(1))
    flush = asyncio.get_running_loop().create_task(kept.flush())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    flush.cancel()
    await asyncio.wait({flush})
    kept.emit(event(2))
    store.gate.set()
    await kept.flush()
    await kept.flush()
    assert store.numbers == [1, 2]


async def test_what_a_failing_store_did_not_take_waits() -> None:
    store = Kept()  # type: ignore[abstract]
    kept = StoredEvents(store)
    store.down = True
    kept.emit(event(1))
    await kept.flush()
    kept.emit(event(2))
    store.down = False
    await kept.flush()
    assert store.numbers == [1, 2]
