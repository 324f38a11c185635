"""One request on its way: what was decided, what was sent, and what came back."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from aiohttp import web
from msgspec.structs import replace

from proxy.compactor.compactor import Compactor
from proxy.compactor.requests import Inbound, Outcome
from proxy.dialects.answers import Answer
from proxy.dialects.bodies import Dialect
from proxy.server.relay import EarlyStream
from proxy.upstream.overflow_rules import OverflowRule
from proxy.upstream.routes import Route


@dataclass(slots=True)
class Exchange:
    """A request and what was decided about it."""

    request: web.Request
    inbound: Inbound
    outcome: Outcome
    early: EarlyStream
    headers: Callable[[Outcome], Mapping[str, str]]
    """Tells what was done in headers of the reply."""
    compactor: Compactor
    rules: Sequence[OverflowRule] = ()
    """The operator's own wordings of an overflow."""
    curable: bool = True
    """Whether anything may be done about an error; else it is the client's as it came."""

    @property
    def dialect(self) -> Dialect:
        """The API that the request speaks."""
        return self.inbound.dialect

    @property
    def route(self) -> Route:
        """Where it goes."""
        route = self.outcome.route
        if route is None:
            raise RuntimeError("only a handled request has a route")
        return route

    async def decide(self, *, overflowed: bool, target: float | None = None) -> Outcome:
        """Decide again: with time to find what the request draws on, or to make it smaller.

        Args:
            overflowed: it is to be made smaller, whatever the rules say.
            target: to which share of the trigger, if not that of the rules.
        """
        again = replace(self.inbound, insist=True, overflowed=overflowed, target=target)
        return await self.compactor.handle(again)

    def record(self, answer: Answer, outcome: Outcome) -> None:
        """Record the response to what was decided."""
        self.compactor.record(self.inbound, outcome, answer)


@dataclass(frozen=True, slots=True)
class Sent:
    """A body that was sent, or is to be."""

    body: bytes
    changed: bool
    """Whether it is not the client's bytes."""
    rewritten: bool = False
    """Whether it was compacted or clipped."""
