"""Conversations that clients leave to the upstream: recorded, and written out when need be.

A response is recorded after it was relayed, with the items that led to it. A request that names
it is then seen whole: compacted when it no longer fits, and written out for upstreams that keep
nothing. What was recorded belongs to its tenant; nobody else's ids are ever found.
"""

import asyncio
import hashlib
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from proxy.compactor.hand import Hand, Known
from proxy.compactor.storage import COMMIT_SECONDS, FAILED, NoAnswer, StoreCalls
from proxy.dialects.answers import Answer
from proxy.dialects.bodies import Dialect, ParsedRequest
from proxy.dialects.continuations import item_id, resolved, written_out
from proxy.sessions.responses import RecordedResponse, ResponseStore
from proxy.transcript import Record

LOAD_SECONDS = 1.0
"""How long a request waits for a conversation that this process does not have in hand."""

LATE_SECONDS = 5.0
"""How long what waited may take to be stored; everything else that waits stands behind it."""

FRESH_SECONDS = 30.0
"""So long a response is believed to be there that another process may have deleted."""

MAX_PENDING = 256
PENDING_BYTES = 64 * 1024 * 1024
"""What waits for a store that is away, at most."""

MAX_GONE = 4096
"""Deleted responses that are remembered, so that none is stored late."""

WHOLE_EVERY = 128
"""Of so many responses one is listed whole, so that what is loaded never builds on too many."""

_T = TypeVar("_T")

_AT_ONCE: tuple[float, ...] = (0.0,)
_SOON = (0.0, 0.05, 0.15)
_INSIST = (0.0, 0.05, 0.15, 0.4)
"""Seconds before each look for what another process may be recording just now."""


class Expansion(Record, frozen=True):
    """A request that drew on recorded responses, with all that it draws on."""

    fields: Mapping[str, bytes]
    items: tuple[bytes, ...]
    base: bytes
    """Key of the response that it continues; empty for none."""
    kept: int = 0
    """How many of the items come from that one."""

    @property
    def body(self) -> bytes:
        """The whole request, without ``previous_response_id`` and references; made each time."""
        return written_out(self.fields, self.items)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What could not be stored or deleted."""

    key: bytes
    response: RecordedResponse | None = None
    items: tuple[bytes, ...] = field(default=(), repr=False)
    size: int = 0


class Chains:
    """The recorded responses, as one process sees them."""

    def __init__(
        self,
        store: ResponseStore,
        calls: StoreCalls,
        now: Callable[[], float],
        limit_bytes: int,
        *,
        shared: bool = False,
    ) -> None:
        """Take the store, the way to call it, and the clock (seconds since epoch).

        Args:
            store: where responses are kept.
            calls: bounds the calls, and knows when to leave the store alone.
            now: the clock.
            limit_bytes: a conversation of more bytes is not recorded; 0 records nothing.
            shared: whether other processes use the store too.
        """
        self.limit_bytes = limit_bytes
        self._store = store
        self._calls = calls
        self._now = now
        self._shared = shared
        self._hand = Hand()
        self._gone: OrderedDict[bytes, None] = OrderedDict()
        self._pending: deque[_Waiting] = deque()

    async def expand(
        self, request: ParsedRequest, origin: bytes, *, insist: bool = False
    ) -> Expansion | None:
        """Return a request with all that it draws on; None when part of it is not known here.

        Args:
            request: a request that draws on what is not in its body.
            origin: first digest of the tenant's conversations.
            insist: whether the upstream cannot help, so that looking again is worth the time.
        """
        continuation = request.continues
        if continuation is None or continuation.elsewhere or not self.limit_bytes:
            return None
        waits = _AT_ONCE
        if self._shared:
            waits = _INSIST if insist else _SOON
        before: tuple[bytes, ...] = ()
        base = b""
        if continuation.previous:
            base = _key(b"response", origin, continuation.previous)
            known = await self._response(base, waits)
            if known is None:
                return None
            before = known.items
        names = {name: _key(b"item", origin, name) for name in continuation.references}
        referred = await self._references(names, waits)
        transcript = request.transcript
        try:
            own = resolved((*transcript.instructions, *transcript.items), referred)
        except KeyError:
            return None
        return Expansion(request.fields, (*before, *own), base, len(before))

    def record(
        self,
        dialect: Dialect,
        body: bytes,
        origin: bytes,
        expansion: Expansion | None,
        answer: Answer,
    ) -> None:
        """Record a response that was relayed; it is known at once and stored a little later.

        What it continues may be recorded by another process just now; then it waits for that.

        Args:
            dialect: reads the request.
            body: the request as the client sent it, decoded.
            origin: as for `expand`.
            expansion: the request with all that it draws on, where that is known already.
            answer: the response.
        """
        request = dialect.parse(expansion.body if expansion else body, origin)
        if request is None or not request.stored or not self.limit_bytes:
            return
        if request.continues is not None:
            if not request.continues.elsewhere:
                _ = self._calls.start(self._record_late(dialect, body, origin, request, answer))
            return
        before = expansion.items if expansion is not None else tuple(request.raws)
        items = (*before, *answer.items)
        if sum(map(len, items)) > self.limit_bytes:
            return
        key = _key(b"response", origin, answer.id)
        base = expansion.base if expansion is not None else b""
        base = base or self._hand.latest(request.transcript.anchor)
        parent = self._hand.response(base) if base != key else None
        anchor = parent.anchor if parent is not None else request.transcript.anchor or key
        common = _common(parent.items, items) if parent is not None else 0
        if parent is not None:
            # The same bytes are kept once, whoever sent them again.
            items = (*parent.items[:common], *items[common:])
        now = self._now()
        self._gone.pop(key, None)
        self._hand.take(key, Known(anchor, items, now), items[common:])
        shared = common if int.from_bytes(key[:4], "big") % WHOLE_EVERY else 0
        names = self._names(origin, answer.items, len(before) - shared, now)
        response = RecordedResponse(
            key, anchor, base if shared else b"", shared, items[shared:], names, now
        )
        waiting = _Waiting(key, response, items, sum(map(len, items)))
        if self._calls.writes.allows():
            _ = self._calls.start(self._store_now(waiting))
        else:
            self._postpone(waiting)

    def forget(self, origin: bytes, response_id: str) -> None:
        """Delete a response, as the client asked the upstream to."""
        key = _key(b"response", origin, response_id)
        known = self._hand.drop(key)
        for raw in known.items if known is not None else ():
            self._hand.drop_item(_key(b"item", origin, item_id(raw)))
        self._gone[key] = None
        if len(self._gone) > MAX_GONE:
            self._gone.popitem(last=False)
        _ = self._calls.start(self._store_now(_Waiting(key)))

    async def flush(self) -> None:
        """Store what could not be stored before; called from time to time."""
        for waiting in list(self._pending):
            if await self._attempt(waiting, late=True) is FAILED:
                return
            if waiting in self._pending:
                self._pending.remove(waiting)

    async def _record_late(
        self, dialect: Dialect, body: bytes, origin: bytes, request: ParsedRequest, answer: Answer
    ) -> None:
        expansion = await self.expand(request, origin, insist=True)
        if expansion is not None:
            self.record(dialect, body, origin, expansion, answer)

    def _names(
        self, origin: bytes, put_out: Sequence[bytes], start: int, now: float
    ) -> tuple[tuple[bytes, int], ...]:
        names = []
        for place, raw in enumerate(put_out, start):
            name = item_id(raw)
            if name and place >= 0:
                key = _key(b"item", origin, name)
                names.append((key, place))
                self._hand.take_item(key, raw, now)
        return tuple(names)

    async def _response(self, key: bytes, waits: Sequence[float]) -> Known | None:
        for wait in waits:
            if wait:
                await asyncio.sleep(wait)
            if key in self._gone:
                return None
            known = self._hand.response(key)
            if known is not None and await self._is_there(key, known):
                return known
            found = await self._ask(partial(self._store.load, key))
            if isinstance(found, NoAnswer):
                return known
            if found is not None:
                known = Known(found.anchor, found.items, self._now())
                self._hand.take(key, known, known.items)
                return known
        return None

    async def _is_there(self, key: bytes, known: Known) -> bool:
        """Tell whether what is in hand may be used: another process may have deleted it."""
        now = self._now()
        if not self._shared or 0 <= now - known.checked_at < FRESH_SECONDS:
            return True
        there = await self._ask(partial(self._store.has, key))
        if there is False and not any(waiting.key == key for waiting in self._pending):
            self._hand.drop(key)
            return False
        known.checked_at = now
        return True

    async def _references(
        self, names: Mapping[str, bytes], waits: Sequence[float]
    ) -> Mapping[str, bytes]:
        found: dict[str, bytes] = {}
        for wait in waits if names else ():
            if wait:
                await asyncio.sleep(wait)
            now = self._now()
            since = now - FRESH_SECONDS if self._shared else 0.0
            for name, key in names.items():
                raw = self._hand.item(key, since)
                if raw is not None:
                    found[name] = raw
            missing = {key: name for name, key in names.items() if name not in found}
            if not missing:
                break
            loaded = await self._ask(partial(self._store.load_items, list(missing)))
            if isinstance(loaded, NoAnswer):
                # What is in hand has to do.
                old = {n: self._hand.item(key, 0.0) for key, n in missing.items()}
                return found | {name: raw for name, raw in old.items() if raw is not None}
            for key, raw in loaded.items():
                found[missing[key]] = raw
                self._hand.take_item(key, raw, now)
            if len(found) == len(names):
                break
        return found

    async def _ask(self, call: Callable[[], Awaitable[_T]]) -> _T | NoAnswer:
        return await self._calls.ask(self._calls.reads, "responses", call, LOAD_SECONDS)

    async def _store_now(self, waiting: _Waiting) -> None:
        if await self._attempt(waiting) is FAILED:
            self._postpone(waiting)

    async def _attempt(self, waiting: _Waiting, *, late: bool = False) -> NoAnswer | None:
        """Store or delete a response; tell whether that failed for now."""
        breaker = self._calls.late if late else self._calls.writes
        seconds = LATE_SECONDS if late else COMMIT_SECONDS
        call = partial(self._calls.attempt, breaker, "responses", seconds=seconds)
        response = waiting.response
        done: bool | NoAnswer = True
        if response is not None and waiting.key not in self._gone:
            done = await call(call=partial(self._store.save, response))
            if done is False:
                # What it builds on was forgotten, or is not stored yet.
                names = tuple((key, place + response.shared) for key, place in response.names)
                whole = replace(response, base=b"", shared=0, items=waiting.items, names=names)
                done = await call(call=partial(self._store.save, whole))
        if not isinstance(done, NoAnswer) and waiting.key in self._gone:
            done = await call(call=partial(self._store.forget, waiting.key))
        return done if isinstance(done, NoAnswer) else None

    def _postpone(self, waiting: _Waiting) -> None:
        self._pending.append(waiting)
        size = sum(one.size for one in self._pending)
        while len(self._pending) > MAX_PENDING or (size > PENDING_BYTES and len(self._pending) > 1):
            size -= self._pending.popleft().size
            self._calls.report("responses", "pending_overflow")


def _common(left: Sequence[bytes], right: Sequence[bytes]) -> int:
    """Return how many items both begin with."""
    shared = 0
    # Mostly the very same objects, which are compared without a look at their bytes.
    for ours, theirs in zip(left, right, strict=False):
        if ours is not theirs and ours != theirs:
            break
        shared += 1
    return shared


def _key(kind: bytes, origin: bytes, name: str) -> bytes:
    """Return the key of a response or an item, which only its tenant can name."""
    text = name.encode("utf-8", "replace")
    return hashlib.blake2b(b"%b\0%b\0%b" % (kind, origin, text), digest_size=32).digest()
