"""Whose turn it is to make a compaction, among all processes that share the store.

Within a process the flights see to it that one compaction is made once; between processes a
lease does. Whoever does not get it waits and uses what the holder made. When the holder dies its
lease lapses, and the first to ask takes over.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.compaction.plan import Compact
from proxy.compaction.policy import Window
from proxy.compactor.entries import Found
from proxy.compactor.memory import LEASE_SECONDS, SessionMemory
from proxy.compactor.requests import PreparedRequest
from proxy.compactor.runs import JOINED, CompactionRuns, Landed
from proxy.sessions.state import Lease

RENEW_SECONDS = LEASE_SECONDS * 0.3
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.5


class Turns:
    """Lets one process at a time make a compaction."""

    def __init__(self, memory: SessionMemory, runs: CompactionRuns) -> None:
        """Take what knows the leases and what makes compactions."""
        self._memory = memory
        self._runs = runs

    async def run(
        self, request: PreparedRequest, window: Window, compact: Compact, found: Found
    ) -> Landed:
        """Make a compaction, or wait for the process that makes it.

        `JOINED` says that the state changed meanwhile: the request is to be planned anew.
        """
        transcript = request.parsed.transcript
        cut_digest = transcript.items[compact.cut.length - 1].digest
        clock = asyncio.get_running_loop().time
        deadline = clock() + request.handling.rules.deadline_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            lease = await self._memory.acquire(transcript.anchor, cut_digest)
            if isinstance(lease, Lease):
                return await self._under(lease, request, window, compact, found)
            if lease == "held" and clock() >= deadline:
                if request.handling.rules.fallback != "extractive":
                    return Landed("failed", "busy")
                lease = "down"
            if lease == "down":
                # Nobody can say who else is at it: many summaries of one span would be worse than
                # an extract. A store of our own has nobody else.
                alone = not self._memory.shared
                return await self._runs.run(request, window, compact, found, summarise=alone)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE_SECONDS, pause * 1.5)

    async def _under(
        self,
        lease: Lease,
        request: PreparedRequest,
        window: Window,
        compact: Compact,
        found: Found,
    ) -> Landed:
        async with self._kept(lease):
            # What this process remembers may be older than what another one has just made.
            now = await self._memory.refresh(request.parsed.transcript)
            if _differs(now, found):
                return JOINED
            return await self._runs.run(request, window, compact, now, lease=lease)

    @asynccontextmanager
    async def _kept(self, lease: Lease) -> AsyncIterator[None]:
        renewals = asyncio.get_running_loop().create_task(self._renew(lease))
        try:
            yield
        finally:
            renewals.cancel()
            # Harmless after a commit, which has given it back.
            self._memory.release(lease)

    async def _renew(self, lease: Lease) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await self._memory.renew(lease)


def _differs(now: Found, before: Found) -> bool:
    ids = [found.checkpoint.id if found.checkpoint else "" for found in (now, before)]
    return ids[0] != ids[1] or now.struggle != before.struggle
