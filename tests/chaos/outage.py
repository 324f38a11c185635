"""Take Redis away under load, give it back, and see what requests notice of it.

    python -m tests.chaos.outage --seconds 60 --scenario down

    down      the server is killed, and started again after that long
    hang      it is stopped, so that connections stay open and silent
    failover  a replica takes over: the master is killed; later both change places in order
    slots     a cluster moves all slots of one node to another, as far as it gets in that long

Beside the sessions small requests are sent that need no compaction; how long they take before,
during and after is the result. Everything that `kills` checks is checked here, too.
"""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from proxy.codec import Json, JsonObject
from tests.chaos.audit import Audit, Said
from tests.chaos.kills import AOF, count_events, finish, progress, to_the_end
from tests.chaos.lives import Violations
from tests.chaos.load import Fleet, Load, percentile, settled
from tests.redis_servers import RedisCluster, RedisSentinel, RedisServer, wait_until
from tests.upstream import ScriptedUpstream

PROXIES = 2
WARM_PROBES = 20
BEFORE_SECONDS = 8.0
AFTER_SECONDS = 10.0
PROBE_PAUSE_SECONDS = 0.04
MOVERS = 4
"""Slots that are moved at the same time."""

ASK_SECONDS = 0.01
"""How long a slot stays half moved."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to do."""

    scenario: str
    seconds: float = 60.0
    sessions: int = 16
    seed: int = 0


class Scenario:
    """A deployment of Redis, and what happens to it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.notes: dict[str, float] = {}
        self.lost_at = 0.0
        """Before this, seconds since the epoch, what was said to be stored may be lost."""

    async def trouble(self, seconds: float) -> None:
        """Make trouble for that long; all is well again when it returns."""
        raise NotImplementedError


class Down(Scenario):
    def __init__(self, server: RedisServer) -> None:
        super().__init__(server.url)
        self._server = server

    async def trouble(self, seconds: float) -> None:
        await self._server.kill()
        await asyncio.sleep(seconds)
        await self._server.start()


class Hang(Down):
    async def trouble(self, seconds: float) -> None:
        self._server.pause()
        await asyncio.sleep(seconds)
        self._server.resume()


class Failover(Scenario):
    def __init__(self, group: RedisSentinel) -> None:
        super().__init__(group.url)
        self._group = group

    async def trouble(self, seconds: float) -> None:
        group, began = self._group, time.monotonic()
        await group.kill_master()
        await group.wait_promoted()
        self.notes["seconds from the kill to the promotion"] = time.monotonic() - began
        self.lost_at = time.time()
        await asyncio.sleep(seconds / 2)
        await group.replica.start()
        await group.replica.command("REPLICAOF", "127.0.0.1", group.master.port)
        began = time.monotonic()
        await wait_until(self._changed_places, 30.0, "the sentinel accepts the new replica")
        self.notes["seconds for an orderly failover"] = time.monotonic() - began
        self.lost_at = time.time()
        await asyncio.sleep(seconds / 2)

    async def _changed_places(self) -> bool:
        # Refused with an error, which means "not yet", until the replica is known as good.
        await self._group.failover()
        return True


class Slots(Scenario):
    def __init__(self, cluster: RedisCluster, seed: int) -> None:
        super().__init__(cluster.url)
        self._cluster = cluster
        count = len(cluster.nodes)
        self._slots = list(range(16384 // count))
        random.Random(seed).shuffle(self._slots)

    async def trouble(self, seconds: float) -> None:
        self.notes["slots of the node"] = len(self._slots)
        waiting, deadline = iter(self._slots), time.monotonic() + seconds
        moved = Counter[str]()
        async with asyncio.TaskGroup() as group:
            for _ in range(MOVERS):
                group.create_task(self._move(waiting, deadline, moved))
        self.notes["slots moved"] = moved.total()
        await self._cluster.wait_ok()

    async def _move(self, waiting: Iterator[int], deadline: float, moved: Counter[str]) -> None:
        for slot in waiting:
            if time.monotonic() > deadline:
                return
            await self._cluster.move_slots([slot], 0, 1, lambda: asyncio.sleep(ASK_SECONDS))
            moved["slots"] += 1


async def _deploy(options: Options, folder: Path, stack: AsyncExitStack) -> Scenario:
    match options.scenario:
        case "down" | "hang":
            server = await stack.enter_async_context(RedisServer(folder, args=AOF))
            return Down(server) if options.scenario == "down" else Hang(server)
        case "failover":
            return Failover(await stack.enter_async_context(RedisSentinel(folder)))
        case _:
            cluster = await stack.enter_async_context(RedisCluster(folder))
            return Slots(cluster, options.seed)


SCENARIOS = ("down", "hang", "failover", "slots")


@dataclass(slots=True)
class Probes:
    """How long small requests took: when each began, its seconds."""

    first: list[tuple[float, float]] = field(default_factory=list)
    """Of conversations that nobody knows, so the store is asked."""
    second: list[tuple[float, float]] = field(default_factory=list)

    async def run(self, load: Load, http: aiohttp.ClientSession, place: int) -> None:
        while not load.stop.is_set():
            life = load.new_life()
            for body, took in zip(life.requests(), (self.first, self.second), strict=False):
                began = time.monotonic()
                await load.ask(http, life, place, body)
                took.append((began, time.monotonic() - began))
                await asyncio.sleep(PROBE_PAUSE_SECONDS)

    def normal_after(self, since: float, usual: float) -> float:
        """Return after how many seconds no more than 5 % of a second's probes took long."""
        both = sorted([*self.first, *self.second])
        for step in range(int(AFTER_SECONDS * 4)):
            start = since + step / 4
            second = [took for began, took in both if start <= began < start + 1]
            if percentile(second, 0.95) <= 2 * usual:
                return step / 4
        return float("inf")


@dataclass(slots=True)
class Report:
    """What came of it."""

    options: Options
    violations: Violations
    phases: dict[str, JsonObject] = field(default_factory=dict)
    notes: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    store: dict[str, int] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> JsonObject:
        return {
            "scenario": self.options.scenario,
            "seconds": self.options.seconds,
            "sessions": self.options.sessions,
            "seed": self.options.seed,
            "notes": {name: round(value, 2) for name, value in self.notes.items()},
            **self.phases,
            "counts": dict(sorted(self.counts.items())),
            "store": dict(self.store),
            "events": dict(sorted(self.events.items())),
            "violations": dict(self.violations.kinds),
            "told": [*self.violations],
        }


async def run(options: Options, say: Callable[[str], None]) -> Report:
    """Do it all; whatever was started is gone afterwards."""
    report = Report(options, Violations())
    async with asyncio.timeout(options.seconds + 150), AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outage-")))
        scenario = await _deploy(options, folder / "redis", stack)
        up = await stack.enter_async_context(ScriptedUpstream())
        fleet = Fleet(up.base_url, folder, scenario.url, PROXIES)
        await stack.enter_async_context(fleet)
        load = Load(up, fleet, report.violations, seed=options.seed, pause_seconds=(0.1, 0.5))
        await _loaded(report, scenario, fleet, load, say)
        async with Audit.open(scenario.url, report.violations) as audit:
            report.store = await audit.whole(Said.of(fleet.events), scenario.lost_at)
        report.counts, report.events = load.counts, count_events(fleet)
        report.notes |= scenario.notes
    return report


async def _loaded(
    report: Report, scenario: Scenario, fleet: Fleet, load: Load, say: Callable[[str], None]
) -> None:
    """Put the load on, let it happen, and measure."""
    probes = Probes()
    async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as group:
        group.create_task(load.run(report.options.sessions))
        for place in range(PROXIES):
            group.create_task(probes.run(load, http, place))
        # The first requests are those of cold processes.
        await wait_until(lambda: len(probes.first) >= WARM_PROBES, what="the processes are warm")
        start = time.monotonic()
        await asyncio.sleep(BEFORE_SECONDS)
        say(f"{report.options.scenario} begins")
        load.trouble()
        begin = time.monotonic()
        await scenario.trouble(report.options.seconds)
        end = time.monotonic()
        load.trouble()
        say(f"well again; {load.violations.total} violations")
        if not await settled(fleet, AFTER_SECONDS * 2):
            report.violations.add("a", f"not settled {AFTER_SECONDS * 2:g} s after the return")
        report.notes["seconds until all proxies call the store ok"] = time.monotonic() - end
        await asyncio.sleep(max(0.0, end + AFTER_SECONDS - time.monotonic()))
        load.stop.set()
    after = time.monotonic()
    for name, first, last in (
        ("before", start, begin),
        ("during", begin, end),
        ("after", end, after),
    ):
        report.phases[name] = _phase(probes, load, first, last)
    both = [*probes.first, *probes.second]
    usual = percentile([took for began, took in both if start <= began < begin], 0.95)
    report.notes["seconds until small requests take their usual time"] = probes.normal_after(
        end, usual
    )


def _phase(probes: Probes, load: Load, first: float, last: float) -> JsonObject:
    """Tell how long requests took, in milliseconds: median, 99th percentile, longest."""
    kinds: Mapping[str, list[tuple[float, float]]] = {
        "small, unknown": probes.first,
        "small, known": probes.second,
        "all": load.seconds,
    }
    told: JsonObject = {}
    for name, times in kinds.items():
        took = [seconds * 1000 for began, seconds in times if first <= began < last]
        shares: list[Json] = [round(percentile(took, share), 1) for share in (0.5, 0.99, 1.0)]
        told[name] = [len(took), *shares]
    return told


def main() -> int:
    first, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.outage",
        description=first,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scenario", choices=SCENARIOS, default="down")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="write the summary as JSON")
    args = parser.parse_args()
    options = Options(args.scenario, args.seconds, args.sessions, args.seed)

    async def work() -> JsonObject:
        return (await run(options, progress)).to_json()

    return finish(asyncio.run(to_the_end(work())), as_json=bool(args.json))


if __name__ == "__main__":
    sys.exit(main())
