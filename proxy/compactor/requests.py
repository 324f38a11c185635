"""What goes into the compactor and what comes out of it."""

import dataclasses
from collections.abc import Callable, Coroutine
from typing import Protocol, TypeVar

from msgspec import structs

from proxy.compaction.plan import Compact
from proxy.compaction.policy import Window
from proxy.compactor.chains import Expansion
from proxy.compactor.entries import Found
from proxy.compactor.ports import Rules
from proxy.dialects.bodies import Dialect, ParsedRequest
from proxy.dialects.continuations import Continuation
from proxy.transcript import Record
from proxy.upstream.reports import Measured
from proxy.upstream.routes import Route

_T = TypeVar("_T")


class Patience(Protocol):
    """How a client is kept waiting while a compaction runs."""

    async def __call__(self, work: Coroutine[None, None, _T], /) -> _T:
        """Await `work` and return its result."""
        ...


class Handling(Record, frozen=True):
    """Where a request goes and by which rules."""

    route: Route
    summary_route: Route
    rules: Rules

    def aiming_at(self, target: float) -> "Handling":
        """Return the same with another target: never a lower one than the rules'."""
        policy = self.rules.policy
        policy = dataclasses.replace(policy, target=max(target, policy.target))
        return structs.replace(self, rules=dataclasses.replace(self.rules, policy=policy))


class Inbound(Record, frozen=True):
    """A request as it came, with everything needed to handle it."""

    dialect: Dialect
    body: bytes
    """Decoded from any content encoding."""
    origin: bytes
    """First digest of the tenant's chain."""
    resolve: Callable[[str, str], Handling]
    """Chooses the handling by the request's model and the output-limit field it uses."""
    force: bool = False
    shadow: bool = False
    bypass: bool = False
    """Only routed, not looked at further."""
    patience: Patience | None = None
    insist: bool = False
    """The upstream refused what the request leaves to it: worth the time to look again."""
    overflowed: bool = False
    """The upstream refused it as too long: to be made smaller whatever the rules say."""
    joined: bool = False
    """The model's template refused it as it was laid out: to be laid out the other way."""
    target: float | None = None
    """Share of the trigger that it is made smaller to, when that is not the policy's."""


class PreparedRequest(Record, frozen=True):
    """A request, read, with the handling chosen for its model."""

    dialect: Dialect
    body: bytes
    """As the client sent it, decoded."""
    parsed: ParsedRequest
    """The whole request: written out where it drew on recorded responses."""
    handling: Handling
    force: bool
    shadow: bool
    patience: Patience | None
    continuation: Continuation | None = None
    """What the client left to a memory."""
    expansion: Expansion | None = None
    """The request written out, if so."""
    overflowed: bool = False
    """Whether it is forced because the upstream refused it as too long."""
    expanded: bool = False
    """Whether it must go upstream written out, however small it is."""
    joined: bool = False
    """Whether nothing may stand beside a checkpoint, whatever is known of the model."""


class Unfinished(Record, frozen=True):
    """A request whose checkpoint a model has not written, or not to its end."""

    request: PreparedRequest
    window: Window
    compact: Compact
    """The same compaction once more."""
    found: Found


class Outcome(Record, frozen=True):
    """What to send upstream, or the refusal, and what to tell the client."""

    body: bytes
    route: Route | None = None
    """None when the request is none of ours: it goes to the default upstream as it came."""
    rewritten: bool = False
    is_expanded: bool = False
    """Whether it differs from what came only in that it is written out."""
    session: str = ""
    marks: tuple[str, ...] = ()
    """Words of the ``x-foldgate-compaction`` header; empty means ``none``."""
    measured: Measured | None = None
    """What the upstream's usage report is compared with; None when nobody measured it."""
    before: int = 0
    after: int = 0
    """Tokens of what came and of what goes upstream, as the model is believed to count them."""
    refusal: str = ""
    """Message of the 400 to answer with instead of asking the upstream."""
    continuation: Continuation | None = None
    """What the client left to a memory."""
    expansion: Expansion | None = None
    """The request written out, when all of that is known here."""
    recorded: bool = False
    """Whether the response is to be recorded, so that others can continue it."""
    auto: bool = True
    """Whether an overflow may be cured."""
    unfinished: Unfinished | None = None
    """What is left to do about its checkpoint once the reply was relayed."""
