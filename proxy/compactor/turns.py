"""Whose turn it is to make a compaction, among all processes that share the store.

Within a process the flights see to it that one compaction is made once; between processes a
lease does. Whoever does not get it waits and uses what the holder made. When the holder dies its
lease lapses, and the first to ask takes over.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal

from proxy.compaction.plan import Compact
from proxy.compaction.policy import Window
from proxy.compactor.entries import Found
from proxy.compactor.memory import LEASE_SECONDS, SessionMemory
from proxy.compactor.requests import PreparedRequest, Unfinished
from proxy.compactor.runs import JOINED, CompactionRuns, Landed
from proxy.sessions.state import Lease

RENEW_SECONDS = LEASE_SECONDS * 0.3
FIRST_PAUSE_SECONDS = 0.02
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
        # The cut, so that requests that differ behind it share one compaction; and the whole
        # request, since processes that learned other token ratios may cut it elsewhere. Prefixes
        # are taken before what is longer, so nobody waits in a circle.
        cut = transcript.items[compact.cut.length - 1].digest
        keys = (cut, b"request:" + transcript.items[-1].digest)
        async with AsyncExitStack() as leases:
            lease = await self._take(transcript.anchor, keys, request, leases)
            if isinstance(lease, Lease):
                # What this process remembers may be older than what another one has just made.
                now = await self._memory.refresh(transcript)
                if now is not None and _differs(now, found):
                    return JOINED
                if now is not None:
                    return await self._runs.run(request, window, compact, now, lease=lease)
                lease = "down"
        if lease == "busy" and request.handling.rules.fallback != "extractive":
            return Landed("failed", "busy")
        # Nobody can say who else is at it: many summaries of one span would be worse than an
        # extract. A store of our own has nobody else.
        alone = lease == "down" and not self._memory.shared
        return await self._runs.run(request, window, compact, found, summarise=alone)

    async def finish(self, unfinished: Unfinished) -> Landed | None:
        """Make a compaction that nobody waits for; None when it is not to be made now.

        Another process's that is at it already, and whatever has changed since, goes before.
        Requests do not wait for it.
        """
        request, compact, found = unfinished.request, unfinished.compact, unfinished.found
        transcript = request.parsed.transcript
        cut = transcript.items[compact.cut.length - 1].digest
        # A key of its own: whoever waited for the checkpoint that this one is to replace has it by
        # then, and must not wait for the rest.
        lease = await self._memory.acquire(transcript.anchor, b"background:" + cut)
        if lease == "held" or (lease == "down" and self._memory.shared):
            return None
        if not isinstance(lease, Lease):
            return await self._runs.run(request, unfinished.window, compact, found)
        async with self._kept(lease):
            now = await self._memory.refresh(transcript)
            if now is None or _in_force(now) != _in_force(found):
                return None
            return await self._runs.run(request, unfinished.window, compact, now, lease=lease)

    async def _take(
        self,
        anchor: bytes,
        keys: Sequence[bytes],
        request: PreparedRequest,
        leases: AsyncExitStack,
    ) -> Lease | Literal["down", "busy"]:
        """Take a lease for each key, waiting for whoever has it; return the first key's.

        ``down`` says that the store does not answer, ``busy`` that the wait was too long.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + request.handling.rules.deadline_seconds
        first: Lease | None = None
        for key in keys:
            pause = FIRST_PAUSE_SECONDS
            while not isinstance(lease := await self._memory.acquire(anchor, key), Lease):
                if lease == "down":
                    return "down"
                if clock() >= deadline:
                    return "busy"
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE_SECONDS, pause * 1.5)
            await leases.enter_async_context(self._kept(lease))
            first = first or lease
        if first is None:
            raise AssertionError("there is at least one key")
        return first

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
    # Clips too: a request that fits with another process's clips needs no compaction.
    return (
        _in_force(now) != _in_force(before)
        or now.struggle != before.struggle
        or dict(now.clips) != dict(before.clips)
    )


def _in_force(found: Found) -> str:
    return found.checkpoint.id if found.checkpoint else ""
