"""Kill proxies and Redis at random moments under load, and see that nothing is ever wrong.

    python -m tests.chaos.kills --proxy-kills 25 --redis-kills 10

Sessions are so small that each is compacted several times. What must hold, by letter:

    a  every reply of a living proxy is 200, and the upstream finds nothing to refuse
    b  everything forwarded for a session is its client's own; nothing of another session
    c  what stands in the store is whole: index, checkpoints, session rows, archives
    d  what was said to be stored is there: always with an append-only file that is written
       before every answer, else since the last start of Redis
    e  a prompt changes only when a checkpoint was made (or was lost with its process)
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from proxy.codec import JsonObject, as_text, dumps
from tests.chaos.audit import Audit, Said
from tests.chaos.lives import Violations
from tests.chaos.load import Fleet, Load, percentile, settled
from tests.redis_servers import RedisServer
from tests.upstream import ScriptedUpstream

AOF = ("--appendonly", "yes", "--appendfsync", "always")
WARM_SECONDS = 1.5
SETTLE_SECONDS = 20.0
SECONDS_PER_KILL = 8.0
"""The whole run is given up after this much for each kill, and a minute."""


@dataclass(frozen=True, slots=True)
class Options:
    """What to do."""

    proxy_kills: int = 25
    redis_kills: int = 10
    sessions: int = 16
    proxies: int = 2
    aof: bool = True
    roam: float = 0.0
    seed: int = 0
    last_seconds: float = 15.0
    """How long the last requests may take; a lease of a dead proxy holds them for up to ten."""


@dataclass(slots=True)
class Report:
    """What came of it."""

    options: Options
    violations: Violations
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    milliseconds: dict[str, float] = field(default_factory=dict)
    store: dict[str, int] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> JsonObject:
        options = self.options
        return {
            "persistence": "aof" if options.aof else "none",
            "kills": {"proxy": options.proxy_kills, "redis": options.redis_kills},
            "sessions": options.sessions,
            "roam": options.roam,
            "seed": options.seed,
            "seconds": round(self.seconds, 1),
            "counts": dict(sorted(self.counts.items())),
            "milliseconds": {name: round(value, 1) for name, value in self.milliseconds.items()},
            "store": dict(self.store),
            "events": dict(sorted(self.events.items())),
            "violations": dict(self.violations.kinds),
            "told": [*self.violations],
        }


class Chaos:
    """One run."""

    def __init__(
        self,
        options: Options,
        fleet: Fleet,
        redis: RedisServer,
        load: Load,
        say: Callable[[str], None],
    ) -> None:
        self._options = options
        self._fleet = fleet
        self._redis = redis
        self._load = load
        self._say = say
        self._rng = random.Random(f"kills {options.seed}")
        self._up = asyncio.Event()
        self._up.set()
        self.began_with_nothing = 0.0
        """When Redis last did, in seconds since the epoch."""

    async def kill_all(self) -> None:
        """Kill as often as is asked for; everything runs again afterwards."""
        options = self._options
        kinds = ["proxy"] * options.proxy_kills + ["redis"] * options.redis_kills
        self._rng.shuffle(kinds)
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number, kind in enumerate(kinds, 1):
                await self._moment()
                back = await (self._proxy() if kind == "proxy" else self._server())
                group.create_task(back)
                rate = (time.monotonic() - began) / number
                told = f"{number}/{len(kinds)} kills ({kind}), {rate:.2f} s each, "
                told += f"{self._load.counts['answered']} requests answered, "
                self._say(f"{told}{self._load.violations.total} violations")

    async def _moment(self) -> None:
        """Wait for a moment: any at all, or one in the middle of a compaction."""
        await asyncio.sleep(self._rng.uniform(0.2, 1.2))
        aimed, after = self._rng.random() < 0.6, self._rng.uniform(0.0, 0.04)
        if aimed:
            asked = self._load.summary_asked
            try:
                async with asyncio.timeout(1.0):
                    await asked.wait()
            except TimeoutError:
                return
            await asyncio.sleep(after)

    async def _proxy(self) -> Coroutine[None, None, None]:
        await self._fleet.pick(self._rng)
        places = [n for n, p in enumerate(self._fleet.places) if p in self._fleet.living]
        place = self._rng.choice(places)
        self._load.trouble()
        await self._fleet.kill(place)
        return self._fleet.start(place)

    async def _server(self) -> Coroutine[None, None, None]:
        await self._up.wait()
        self._up.clear()
        self._load.trouble()
        said = Said.of(self._fleet.events)
        await self._redis.kill()
        return self._server_back(said, self._rng.uniform(0.0, 1.0))

    async def _server_back(self, said: Said, after: float) -> None:
        await asyncio.sleep(after)
        await self._redis.start()
        if not self._options.aof:
            self.began_with_nothing = time.time()
            said = Said({})
        async with Audit.open(self._redis.url, self._load.violations) as audit:
            await audit.sample(said, self.began_with_nothing, self._rng)
        self._load.trouble()
        self._up.set()


async def run(options: Options, say: Callable[[str], None]) -> Report:
    """Do it all; whatever was started is gone afterwards."""
    report = Report(options, Violations())
    limit = 60.0 + SECONDS_PER_KILL * (options.proxy_kills + options.redis_kills)
    began = time.monotonic()
    async with asyncio.timeout(limit), AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kills-")))
        up = await stack.enter_async_context(ScriptedUpstream())
        redis = RedisServer(folder / "redis", args=AOF if options.aof else ())
        await stack.enter_async_context(redis)
        fleet = Fleet(up.base_url, folder, redis.url, options.proxies)
        await stack.enter_async_context(fleet)
        load = Load(
            up,
            fleet,
            report.violations,
            seed=options.seed,
            pause_seconds=(0.05, 0.3),
            roam=options.roam,
        )
        chaos = Chaos(options, fleet, redis, load, say)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(load.run(options.sessions))
            await asyncio.sleep(WARM_SECONDS)
            await chaos.kill_all()
            if not await settled(fleet, SETTLE_SECONDS):
                report.violations.add("a", f"not settled {SETTLE_SECONDS:g} s after the last kill")
            load.stop.set()
            await asyncio.wait({running}, timeout=options.last_seconds)
            running.cancel()
        said = Said.of(fleet.events)
        async with Audit.open(redis.url, report.violations) as audit:
            report.store = await audit.whole(said, chaos.began_with_nothing)
        report.counts = load.counts
        took = [seconds * 1000 for _, seconds in load.seconds]
        report.milliseconds = {
            f"p{share:g}": percentile(took, share / 100) for share in (50, 95, 99, 100)
        }
        report.events = count_events(fleet)
    report.seconds = time.monotonic() - began
    return report


def count_events(fleet: Fleet) -> Counter[str]:
    """Count what the proxies said, by what it was about."""
    found = Counter[str]()
    for event in fleet.events:
        words = [as_text(event.get(name)) for name in ("type", "operation", "reason", "detail")]
        flags = ["extractive"] if event.get("extractive") else []
        flags += ["unstored"] if event.get("stored") is False else []
        found[" ".join(filter(None, [*words, *flags]))] += 1
    return found


def tell(report: JsonObject) -> str:
    """Write a report for people."""
    lines = []
    for name, value in report.items():
        if isinstance(value, dict):
            lines.append(f"{name}:")
            lines += [f"    {key:<44} {member}" for key, member in value.items()]
        elif isinstance(value, list):
            lines += [str(member) for member in value]
        else:
            lines.append(f"{name}: {value}")
    return "\n".join(lines)


def progress(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")


async def to_the_end(work: Coroutine[None, None, JsonObject]) -> JsonObject:
    """Run something that ends in order on SIGTERM too; Ctrl-C does that anyway."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work


def finish(report: JsonObject, *, as_json: bool) -> int:
    """Write the report; returns the exit code."""
    sys.stdout.write((dumps(report).decode() if as_json else tell(report)) + "\n")
    return 1 if report["violations"] else 0


def main() -> int:
    first, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.kills",
        description=first,
        epilog=rest,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = Options()
    parser.add_argument("--proxy-kills", type=int, default=default.proxy_kills)
    parser.add_argument("--redis-kills", type=int, default=default.redis_kills)
    parser.add_argument("--sessions", type=int, default=default.sessions)
    parser.add_argument("--proxies", type=int, default=default.proxies)
    parser.add_argument("--aof", action=argparse.BooleanOptionalAction, default=True)
    text = "share of requests that go to any proxy instead of their session's own"
    parser.add_argument("--roam", type=float, default=default.roam, help=text)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--json", action="store_true", help="write the summary as JSON")
    args = parser.parse_args()
    options = Options(
        proxy_kills=args.proxy_kills,
        redis_kills=args.redis_kills,
        sessions=args.sessions,
        proxies=args.proxies,
        aof=args.aof,
        roam=args.roam,
        seed=args.seed,
    )

    async def work() -> JsonObject:
        return (await run(options, progress)).to_json()

    return finish(asyncio.run(to_the_end(work())), as_json=bool(args.json))


if __name__ == "__main__":
    sys.exit(main())
