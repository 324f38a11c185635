"""One request on its way: what was decided, what was sent, and what came back."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from aiohttp import web

from proxy.compactor.requests import Outcome
from proxy.dialects.answers import Answer
from proxy.dialects.bodies import Dialect
from proxy.server.relay import EarlyStream
from proxy.upstream.overflow_rules import OverflowRule
from proxy.upstream.routes import Route


@dataclass(slots=True)
class Exchange:
    """A request and what was decided about it."""

    request: web.Request
    dialect: Dialect
    outcome: Outcome
    early: EarlyStream
    headers: Callable[[Outcome], Mapping[str, str]]
    """Tells what was done in headers of the reply."""
    decide: Callable[[bool], Awaitable[Outcome]]
    """Decides again: takes its time to find what the request draws on, or (True) makes it smaller
    whatever the rules say."""
    record: Callable[[Answer, Outcome], None]
    """Records the response to what was decided."""
    rules: Sequence[OverflowRule] = ()
    """The operator's own wordings of an overflow."""
    curable: bool = True
    """Whether anything may be done about an error; else it is the client's as it came."""

    @property
    def route(self) -> Route:
        """Where it goes."""
        route = self.outcome.route
        if route is None:
            raise RuntimeError("only a handled request has a route")
        return route


@dataclass(frozen=True, slots=True)
class Sent:
    """A body that was sent, or is to be."""

    body: bytes
    changed: bool
    """Whether it is not the client's bytes."""
    rewritten: bool = False
    """Whether it was compacted or clipped."""
