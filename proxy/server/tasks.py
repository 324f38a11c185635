"""Background tasks, kept until they end."""

import asyncio
from collections.abc import Coroutine

_PATIENCE_SECONDS = 0.5


class Tasks:
    """A registry of running tasks; a task that nobody holds could be collected."""

    def __init__(self) -> None:
        """Begin with none."""
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Run `work` in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Cancel what still runs and wait for it."""
        while self._running:
            for task in list(self._running):
                task.cancel()
            # Again, if need be: a library may swallow a cancellation that comes while it tidies up.
            await asyncio.wait(self._running, timeout=_PATIENCE_SECONDS)
