"""The window that holds for a request, of all that is known (design section 4).

The first that is known: the setting or what an error taught, whichever is less; the hint of a
request header; what the server says.
"""

from typing import Protocol

from proxy.compaction.policy import Window
from proxy.upstream.learned import LearnedWindows
from proxy.upstream.routes import Route

HINTED = "header"
"""Source of a window that a request named, as events tell it."""


class ServerWindows(Protocol):
    """Knows what settings and servers say."""

    def remembered(self, route: Route) -> Window | None:
        """Return what is known without waiting; None when nobody was asked yet."""
        ...

    async def window(self, route: Route) -> Window:
        """Return the window, asking the upstream for a bounded time if need be."""
        ...

    def ask_soon(self, route: Route) -> None:
        """Ask without waiting."""
        ...

    def refresh(self, route: Route) -> None:
        """Ask again without waiting, whatever is remembered."""
        ...

    async def refreshed(self, route: Route) -> Window:
        """Ask again, and return the answer within a bounded time."""
        ...


class EffectiveWindows:
    """Combines settings, lessons, hints and what servers say."""

    def __init__(self, servers: ServerWindows, learned: LearnedWindows) -> None:
        """Take what the servers say, and what errors taught."""
        self._servers = servers
        self._learned = learned

    def remembered(self, route: Route) -> Window | None:
        """Return what is known without waiting; None when nobody was asked yet."""
        # Asked first whatever else is known: that keeps what the server says up to date.
        told = self._servers.remembered(route)
        return self._known(route) or told

    async def window(self, route: Route) -> Window:
        """Return the window, asking the upstream for a bounded time if need be."""
        return self.remembered(route) or await self._servers.window(route)

    def ask_soon(self, route: Route) -> None:
        """Ask without waiting."""
        self._servers.ask_soon(route)

    def refresh(self, route: Route) -> None:
        """Ask again without waiting, whatever is remembered."""
        self._servers.refresh(route)

    async def refreshed(self, route: Route) -> Window:
        """Return what the server says now, asked for a bounded time."""
        return await self._servers.refreshed(route)

    def _known(self, route: Route) -> Window | None:
        learned = self._learned.window(route.base.url, route.model, route.tenant)
        if route.window is not None:
            if learned is not None and learned.tokens is not None:
                return learned if learned.tokens < route.window else None
            return None
        if learned is not None:
            return learned
        return Window(route.hint, HINTED) if route.hint is not None else None
