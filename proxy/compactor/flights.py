"""One piece of work for everybody who needs it at the same time.

The first to ask starts it; others wait for the same result. It goes on while anyone waits and
is cancelled when the last one leaves.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

_T = TypeVar("_T")


@dataclass(slots=True)
class _Flight(Generic[_T]):
    task: "asyncio.Task[_T]"
    waiters: int = 0


class Flights(Generic[_T]):
    """Work under way, by key."""

    def __init__(self) -> None:
        """Begin with none."""
        self._flights: dict[Hashable, _Flight[_T]] = {}

    async def join(self, key: Hashable, start: Callable[[], Coroutine[None, None, _T]]) -> _T:
        """Return the result of the work under `key`, starting it if nobody has.

        What the work raises, every waiter gets.
        """
        flight = self._flights.get(key)
        if flight is None:
            task = asyncio.get_running_loop().create_task(start())
            flight = self._flights[key] = _Flight(task)
            task.add_done_callback(lambda done: self._land(key, done))
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if flight.waiters == 0 and not flight.task.done():
                # Nobody is left: let go of the key at once, so that a newcomer starts afresh.
                self._land(key, flight.task)
                flight.task.cancel()

    def _land(self, key: Hashable, task: "asyncio.Task[_T]") -> None:
        flight = self._flights.get(key)
        if flight is not None and flight.task is task:
            del self._flights[key]

    async def close(self) -> None:
        """Cancel everything."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
