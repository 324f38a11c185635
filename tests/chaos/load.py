"""Growing agent sessions against a few proxy processes, every request of them checked.

A client has a proxy of its own and asks another one while that is dead; with `roam` it asks any
proxy now and then. A request that dies with its proxy is sent again, as an SDK does; a reply other
than 200 is a violation. What arrives upstream is checked whether its client saw the reply or not.
"""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

import aiohttp
from multidict import CIMultiDict

from proxy.codec import JsonObject, loads
from proxy.compactor.memory import FRESH_SECONDS
from tests.chaos.lives import Life, Prompts, Violations, marks
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
MAX_KEPT = 1000


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

    async def pick(self, rng: random.Random, place: int | None = None) -> Proxy:
        """Return the proxy of a place, or else any living one, waiting for one if need be."""
        while not self.living:
            await self._changed.wait()
        proxy = None if place is None else self.places[place]
        return rng.choice(self.living) if proxy is None or proxy.dead else proxy

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


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
        roam: float = 0.0,
    ) -> None:
        self.stop = asyncio.Event()
        self.violations = violations
        self.troubles = 0
        """Kills and returns so far, of whatever; each may cost a session one more rewrite."""
        self.counts: Counter[str] = Counter()
        self.seconds: list[tuple[float, float]] = []
        """When each answered request began, and how long it took."""
        self.summary_asked = asyncio.Event()
        self._up = up
        self._fleet = fleet
        self._rng = random.Random(f"load {seed}")
        self._pause = pause_seconds
        self._roam = roam
        self._troubled_at = 0.0
        self._lives = itertools.count(1)
        self._numbers = itertools.count(1)
        self._sent: dict[str, tuple[Life, bytes]] = {}
        self._arrived: dict[str, Recorded] = {}
        self._refused = 0
        checks.make_strict(up, WINDOW)
        up.summary_text = self._summarise

    def trouble(self) -> None:
        """Note that something was killed, or is back."""
        self.troubles += 1
        self._troubled_at = time.monotonic()

    async def run(self, sessions: int) -> None:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
            asyncio.TaskGroup() as group,
        ):
            for number in range(sessions):
                group.create_task(self._client(http, number % len(self._fleet.places)))
        self._collect()

    async def _client(self, http: aiohttp.ClientSession, place: int) -> None:
        while not self.stop.is_set():
            # One that began within half a minute of trouble may have been made by both.
            late = time.monotonic() - self._troubled_at < FRESH_SECONDS
            prompts = Prompts(self.new_life(), self.troubles - late)
            self.counts["sessions"] += 1
            for body in prompts.life.requests():
                exchange = await self.ask(http, prompts.life, place, body)
                if exchange.status == 200 and exchange.forwarded is not None:
                    self._follow(prompts, exchange)
                if self.stop.is_set():
                    break
                await asyncio.sleep(self._rng.uniform(*self._pause))
            self._judge(prompts)

    def new_life(self) -> Life:
        return Life(next(self._lives))

    async def ask(
        self, http: aiohttp.ClientSession, life: Life, place: int, body: bytes
    ) -> Exchange:
        """Send a request until a proxy lives long enough to answer it."""
        while True:
            roams = self._rng.random() < self._roam
            proxy = await self._fleet.pick(self._rng, None if roams else place)
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
            self.violations.add(
                "a", f"job{life.number}: {exchange.status} {exchange.reply[:300]!r}"
            )
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
                self._check(*self._sent[number], record)
                self._arrived[number] = record
        for kept in (self._sent, self._arrived):
            # Those whose clients never saw a reply, and what may still arrive.
            while len(kept) > MAX_KEPT:
                kept.pop(next(iter(kept)))
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
        quiet = time.monotonic() - self._troubled_at
        if change == "same":
            self.violations.add("e", f"job{prompts.life.number}: other bytes, same checkpoint")
        if change == "back" and quiet > FRESH_SECONDS:
            text = f"job{prompts.life.number}: back to an older checkpoint, quiet for {quiet:.0f} s"
            self.violations.add("e", text)
        if change:
            self.counts[f"prompts changed: {change}"] += 1

    def _judge(self, prompts: Prompts) -> None:
        self.counts["checkpoints seen"] += len(prompts.records)
        back, allowed = prompts.changes["back"], self.troubles - prompts.troubles
        if back > allowed and not self._roam:
            text = f"job{prompts.life.number}: back to an older checkpoint {back} times"
            self.violations.add("e", f"{text}, {allowed} kills and returns")


async def ready(http: aiohttp.ClientSession, proxy: Proxy) -> JsonObject:
    """Return a proxy's own page on its store; empty when it does not answer."""
    try:
        async with http.get(proxy.served.url + "/_foldgate/ready") as reply:
            value = loads(await reply.read())
    except (aiohttp.ClientError, OSError):
        return {}
    return value if isinstance(value, dict) else {}


async def settled(
    fleet: Fleet, seconds: float, at_every_look: Callable[[], None] | None = None
) -> bool:
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
