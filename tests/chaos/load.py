"""Growing agent sessions against a few proxy processes, every request of them checked.

A client sends each request of its session to any living proxy. When that one dies it asks
another, as an SDK does; a reply other than 200 is a violation. What arrives upstream is checked
whether its client lived to see the reply or not.
"""

import asyncio
import itertools
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Self

import aiohttp
from multidict import CIMultiDict

from proxy.codec import JsonObject, dumps, loads
from tests import builders as b
from tests.e2e import checks
from tests.e2e.checks import REQUEST_ID, Exchange
from tests.e2e.running import Served
from tests.upstream import CHAT_PATH, Recorded, ScriptedUpstream
from tests.upstream_rules import plausible_checkpoint

WINDOW = 4096
SETTINGS = {
    "FOLDGATE_COMPACTION__THRESHOLD": "0.67",
    "FOLDGATE_COMPACTION__MAX_OUTPUT_TOKENS": "512",
    # A fleet must be able to start while its store is away.
    "FOLDGATE_TENANCY__KEY": "the same for all",
}
ANSWER_SECONDS = 30.0
MAX_TOLD = 40
"""Violations that are told in full; the others are counted."""

_MARK = re.compile(rb"mark(\d+)n\d{5}z|job(\d+)q")


def marks(data: bytes) -> set[int]:
    """Return the sessions whose marks occur in something."""
    return {int(one or other) for one, other in _MARK.findall(data)}


class Violations(list[str]):
    """What must not have happened; `total` counts those that are not listed, too."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return self.kinds.total()

    def add(self, kind: str, text: str) -> None:
        self.kinds[kind] += 1
        if len(self) < MAX_TOLD:
            self.append(f"({kind}) {time.strftime('%H:%M:%S')} {text}")


class Life:
    """One session from its task to its end: all of it follows from its number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._rng = random.Random(f"life {number}")
        self.steps = self._rng.randrange(18, 60)
        self.result_chars = self._rng.randrange(700, 1500)
        self.stream = number % 3 == 0
        self.task = f"{b.TASK} This is job{number}q."

    @cached_property
    def messages(self) -> list[JsonObject]:
        """The task and its tool calls; every other session has the user speak in between."""
        said = b.tool_session(
            self.steps, task=self.task, result_chars=self.result_chars, seed=self.number
        )
        if self.number % 2:
            for step in range(self.steps - 2, 4, -self._rng.randrange(6, 12)):
                # Two messages of instructions and task, then two for each step.
                turn = [b.assistant(f"Step {step} is done."), b.user(f"Go on with part {step}.")]
                said[2 + 2 * step : 2 + 2 * step] = turn
        return said

    @cached_property
    def items(self) -> list[bytes]:
        """Every message but the instructions, as it is sent."""
        return [dumps(message) for message in self.messages[1:]]

    def requests(self) -> Iterator[bytes]:
        for step in checks.steps(self.messages):
            yield b.chat_body(step, stream=True) if self.stream else b.chat_body(step)


class Proxy:
    """One process of the fleet, until its end."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.dead = False
        """Set just before it is killed."""


class Fleet:
    """Several proxies on one store; each can be killed and started again."""

    def __init__(self, upstream: str, folder: Path, store: str, count: int) -> None:
        self._upstream = upstream
        self._folder = folder
        self._store = store
        self._ended: list[Proxy] = []
        self._changed = asyncio.Event()
        self._stack = AsyncExitStack()
        self.places: list[Proxy | None] = [None] * count
        self.deaths = 0

    @property
    def living(self) -> list[Proxy]:
        return [proxy for proxy in self.places if proxy is not None and not proxy.dead]

    @property
    def events(self) -> Iterator[JsonObject]:
        """Everything that any process ever said, by process."""
        for proxy in [*self._ended, *(p for p in self.places if p is not None)]:
            yield from proxy.served.events

    async def __aenter__(self) -> Self:
        try:
            await asyncio.gather(*map(self.start, range(len(self.places))))
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for proxy in self.living:
            proxy.dead = True
        await self._stack.aclose()

    async def start(self, place: int) -> None:
        args = ["--store", self._store]
        served = Served(self._upstream, self._folder, args=args, env=SETTINGS)
        self.places[place] = Proxy(await self._stack.enter_async_context(served))
        self._notify()

    async def kill(self, place: int) -> None:
        proxy = self.places[place]
        assert proxy is not None
        proxy.dead = True
        self.deaths += 1
        await proxy.served.kill()
        self.places[place] = None
        self._ended.append(proxy)

    async def any(self, rng: random.Random) -> Proxy:
        """Return a living proxy, waiting for one if need be."""
        while not self.living:
            await self._changed.wait()
        return rng.choice(self.living)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass
class Prompts:
    """How the prompt of one session changed from request to request."""

    life: Life
    troubles: int
    """How many kills there had been when it began."""
    last: Sequence[bytes] = ()
    record: str = ""
    records: set[str] = field(default_factory=set)
    changes: Counter[str] = field(default_factory=Counter)

    def take(self, exchange: Exchange) -> str:
        """Note a request; says how its prompt departs from the one before, if it does."""
        new = checks.raw_messages(exchange.arrived)
        record = checks.record_id(checks.record_of(exchange))
        kept = new[: len(self.last)] == self.last
        change = "" if kept else "new"
        if not kept and record in self.records | {""}:
            change = "same" if record == self.record else "back"
        if change and "clipped" in exchange.marks:
            change = "clipped"
        if change:
            self.changes[change] += 1
        self.last, self.record = new, record
        self.records |= {record} if record else set()
        return change


class Load:
    """Sessions that go on until `stop` is set."""

    def __init__(
        self,
        up: ScriptedUpstream,
        fleet: Fleet,
        violations: Violations,
        *,
        seed: int,
        pause_seconds: tuple[float, float],
    ) -> None:
        self.stop = asyncio.Event()
        self.violations = violations
        self.troubles = 0
        """Kills so far, of whatever; each may cost a session one more rewrite."""
        self.counts: Counter[str] = Counter()
        self.seconds: list[tuple[float, float]] = []
        """When each answered request began, and how long it took."""
        self.summary_asked = asyncio.Event()
        self._up = up
        self._fleet = fleet
        self._rng = random.Random(f"load {seed}")
        self._pause = pause_seconds
        self._lives = itertools.count(1)
        self._numbers = itertools.count(1)
        self._sent: dict[str, tuple[Life, bytes]] = {}
        self._arrived: dict[str, Recorded] = {}
        self._refused = 0
        checks.make_strict(up, WINDOW)
        up.summary_text = self._summarise

    async def run(self, sessions: int) -> None:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(sessions):
                group.create_task(self._client(http))
        self._collect()

    async def _client(self, http: aiohttp.ClientSession) -> None:
        while not self.stop.is_set():
            prompts = Prompts(Life(next(self._lives)), self.troubles)
            self.counts["sessions"] += 1
            for body in prompts.life.requests():
                exchange = await self._answered(http, prompts.life, body)
                if exchange.status == 200 and exchange.forwarded is not None:
                    self._follow(prompts, exchange)
                if self.stop.is_set():
                    break
                await asyncio.sleep(self._rng.uniform(*self._pause))
            self._judge(prompts)

    async def _answered(self, http: aiohttp.ClientSession, life: Life, body: bytes) -> Exchange:
        """Send a request until a proxy lives long enough to answer it."""
        while True:
            proxy = await self._fleet.any(self._rng)
            number = str(next(self._numbers))
            self._sent[number] = (life, body)
            self.counts["requests"] += 1
            began = time.monotonic()
            try:
                exchange = await self._post(http, proxy, number, body)
            except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
                self._collect()
                if not proxy.dead:
                    took = time.monotonic() - began
                    text = f"{type(error).__name__} from a living proxy after {took:.1f} s"
                    self.violations.add("a", text)
                self.counts["died with their proxy"] += proxy.dead
                await asyncio.sleep(0.05)
                continue
            self.seconds.append((began, time.monotonic() - began))
            self.counts["answered"] += 1
            if exchange.status == 200 and (not life.stream or b"[DONE]" in exchange.reply):
                return exchange
            self.violations.add("a", f"job{life.number}: {exchange.status} {exchange.reply[:300]!r}")
            return exchange

    async def _post(
        self, http: aiohttp.ClientSession, proxy: Proxy, number: str, body: bytes
    ) -> Exchange:
        headers = {"content-type": "application/json", REQUEST_ID: number}
        url, limit = proxy.served.url + CHAT_PATH, aiohttp.ClientTimeout(ANSWER_SECONDS)
        async with http.post(url, data=body, headers=headers, timeout=limit) as reply:
            content = await reply.read()
            self._collect()
            arrived = self._arrived.pop(number, None)
            return Exchange(body, reply.status, reply.headers, content, arrived)

    def _summarise(self, record: Recorded) -> str:
        self.summary_asked.set()
        self.summary_asked = asyncio.Event()
        return plausible_checkpoint(record.messages)

    def _collect(self) -> None:
        """Check what arrived upstream since the last call, and let go of it."""
        records, self._up.requests = self._up.requests, []
        for record in records:
            if record.is_summary:
                self.counts["summaries"] += 1
                if len(marks(record.body)) > 1:
                    self.violations.add("b", f"a summary of {marks(record.body)}")
            elif record.is_chat:
                number = record.headers[REQUEST_ID]
                self._check(*self._sent.pop(number), record)
                self._arrived[number] = record
        while len(self._arrived) > 1000:
            # Their clients never saw a reply.
            self._arrived.pop(next(iter(self._arrived)))
        for refusal in self._up.rejections[self._refused :]:
            self.violations.add("a", f"upstream: {refusal}")
        self._refused = len(self._up.rejections)

    def _check(self, life: Life, sent: bytes, record: Recorded) -> None:
        name = f"job{life.number}"
        if record.body != sent:
            self.counts["rewritten"] += 1
            headers: CIMultiDict[str] = CIMultiDict()
            try:
                checks.assert_faithful(Exchange(sent, 200, headers, b"", record))
            except AssertionError as error:
                self.violations.add("b", f"{name}: {str(error)[:300]}")
        if life.task.encode() not in record.body:
            self.violations.add("b", f"{name}: without its task: {record.body[:300]!r}")
        if marks(record.body) != {life.number}:
            self.violations.add("b", f"{name}: with marks of {marks(record.body)}")

    def _follow(self, prompts: Prompts, exchange: Exchange) -> None:
        self.counts.update(f"marked {mark}" for mark in exchange.marks)
        change = prompts.take(exchange)
        if change == "same":
            self.violations.add("e", f"job{prompts.life.number}: other bytes, same checkpoint")
        if change:
            self.counts[f"prompts changed: {change}"] += 1

    def _judge(self, prompts: Prompts) -> None:
        self.counts["checkpoints seen"] += len(prompts.records)
        back, allowed = prompts.changes["back"], self.troubles - prompts.troubles
        if back > allowed:
            text = f"job{prompts.life.number}: back to an older checkpoint {back} times"
            self.violations.add("e", f"{text} in {allowed} kills; {dict(prompts.changes)}")


async def ready(http: aiohttp.ClientSession, proxy: Proxy) -> JsonObject:
    """Return a proxy's own page on its store; empty when it does not answer."""
    try:
        async with http.get(proxy.served.url + "/_foldgate/ready") as reply:
            value = loads(await reply.read())
    except (aiohttp.ClientError, OSError):
        return {}
    return value if isinstance(value, dict) else {}


async def settled(fleet: Fleet, seconds: float, at_every_look: Callable[[], None] | None = None) -> bool:
    """Return once every proxy says that its store is well and nothing waits to be stored."""
    async with aiohttp.ClientSession() as http:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pages = [await ready(http, proxy) for proxy in fleet.living]
            if len(pages) == len(fleet.places) and all(
                (page.get("store"), page.get("pending_writes")) == ("ok", 0) for page in pages
            ):
                return True
            await asyncio.sleep(0.05)
    return False


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
