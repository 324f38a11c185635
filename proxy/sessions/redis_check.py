"""Whether a Redis serves well as a store, and what it holds.

What its user may not ask (INFO, CONFIG) is unknown, not wrong.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

from proxy.codec import JsonObject
from proxy.errors import StateCorrupt, StoreUnavailable
from proxy.sessions import redis_scripts as scripts
from proxy.sessions.redis_client import RedisClient
from proxy.sessions.redis_index import RedisIndex
from proxy.sessions.redis_keys import Keys, data, items, text, tuples
from proxy.sessions.redis_values import RedisValues
from proxy.sessions.sealing import Sealer
from proxy.sessions.state import Unreadable
from proxy.sessions.store_check import Contents, Finding, counted, reachable, round_trip
from proxy.sessions.store_url import StoreUrl

OLDEST = (6, 2)
SLOTS = 16384
BATCH = 32
FULL = 0.9

_EVICTING = frozenset({"volatile-lru", "volatile-lfu", "volatile-random"})
_FORBIDDEN = frozenset({"no_permission", "refused"})
_FIXES: Mapping[str, str] = {
    "unreachable": "start the server, or check host, port and TLS in store.url",
    "timeout": "see whether the server is overloaded or paused, wants TLS, or is behind a firewall",
    "read_only": "name the primary in store.url, or its sentinels: redis+sentinel://…",
    "cluster_down": "see CLUSTER INFO on its nodes",
    "loading": "wait until the server has read its data",
}

Info = Mapping[str, str]


class RedisCheck:
    """Looks at a Redis; the only thing it writes is a probe that is deleted again."""

    def __init__(
        self,
        url: StoreUrl,
        prefix: str,
        sealer: Sealer,
        timeout_ms: int,
        repair: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        """Take the place and what is needed to read it; `repair` makes the listing whole."""
        self._url = url
        self._client = RedisClient(url)
        self._keys = Keys(prefix)
        self._values = RedisValues(sealer)
        self._index = RedisIndex(self._client, self._keys)
        self._timeout_ms = timeout_ms
        self._repair = repair

    async def findings(self) -> AsyncGenerator[Finding, None]:
        """Yield what is found; ends early when the server cannot be used at all."""
        try:
            yield reachable(await round_trip(self._ask), self._timeout_ms)
        except StoreUnavailable as error:
            yield self._unreachable(error)
            return
        steps: list[tuple[str, Callable[[], Awaitable[Sequence[Finding]]]]] = [
            ("server", self._server),
            ("writable", self._writable),
            ("persistence", self._persistence),
            ("memory", self._memory),
            ("contents", self._contents),
        ]
        for name, step in steps:
            try:
                found = await step()
            except StoreUnavailable as error:
                found = [self._failed(name, error)]
            for finding in found:
                yield finding
            if name == "server" and any(finding.status == "FAIL" for finding in found):
                return

    async def close(self) -> None:
        """Close every connection."""
        await self._client.close()

    def _unreachable(self, error: StoreUnavailable) -> Finding:
        strange = {"refused", "unreachable"} if self._url.kind == "cluster" else {"refused"}
        if error.reason not in strange:
            return self._failed("reachable", error)
        text_, fix = (
            "what answers there is no Redis, or not to us",
            "see host and port in store.url",
        )
        if self._url.kind == "cluster":
            text_ = "no node of a cluster answers there"
            fix = "start the nodes, or see store.url; a single server is written redis://…"
        return Finding("reachable", "FAIL", text_, fix, {"reason": error.reason})

    def _failed(self, name: str, error: StoreUnavailable) -> Finding:
        """Say that something cannot be done."""
        text_, _, advice = str(error).partition("; ")
        fix = _FIXES.get(error.reason) or advice or "see the server's log"
        if self._url.kind == "cluster" and error.reason in {"unreachable", "timeout"}:
            fix = "start the nodes that do not answer (CLUSTER NODES names them), or see store.url"
        return Finding(name, "FAIL", text_, fix, {"reason": error.reason})

    async def _ask(self) -> None:
        try:
            await self._client.call("GET", self._keys.probe("read"))
        except StoreUnavailable as error:
            # A server of another mode answers, though not this; `_server` says which.
            if error.reason != "refused":
                raise
            await self._client.on_each("PING")

    async def _info(self, section: str) -> list[Info] | None:
        """Return a section of every server that takes writes; None when that is forbidden."""
        try:
            replies = await self._client.on_each("INFO", section)
        except StoreUnavailable as error:
            if error.reason in _FORBIDDEN:
                return None
            raise
        return [_parsed(reply) for reply in replies]

    async def _server(self) -> Sequence[Finding]:
        infos = await self._info("server")
        if not infos:
            unknown = "kind and version unknown: INFO is not allowed to this user"
            return [Finding("server", "ok", unknown), Finding("mode", "ok", self._mode(0))]
        return [_version(infos), await self._mode_of(infos)]

    async def _mode_of(self, infos: Sequence[Info]) -> Finding:
        mode = infos[0].get("redis_mode", "standalone")
        scheme = {"cluster": "redis+cluster", "sentinel": "redis+sentinel"}.get(mode)
        if scheme is not None and scheme != f"redis+{self._url.kind}":
            return Finding(
                "mode", "FAIL", f"this is a {mode} node", f"write {scheme}://… in store.url"
            )
        if self._url.kind == "cluster":
            return await self._cluster(len(infos))
        return Finding("mode", "ok", self._mode(1), facts={"mode": self._url.kind})

    def _mode(self, primaries: int) -> str:
        if self._url.kind == "sentinel":
            return f"sentinel, service {self._url.service}"
        if self._url.kind == "cluster":
            return f"cluster, {counted(primaries, 'primary node')}" if primaries else "cluster"
        return "single server"

    async def _cluster(self, primaries: int) -> Finding:
        text_ = self._mode(primaries)
        try:
            replies = await self._client.on_each("CLUSTER", "INFO")
        except StoreUnavailable as error:
            if error.reason not in _FORBIDDEN:
                raise
            return Finding("mode", "ok", text_, facts={"mode": "cluster"})
        for reply in replies:
            words = dict(line.partition(":")[::2] for line in text(reply).split())
            served = int(words.get("cluster_slots_ok", SLOTS))
            if words.get("cluster_state") != "ok" or served < SLOTS:
                return Finding(
                    "mode",
                    "FAIL",
                    f"{text_}; {served} of {SLOTS} slots are served",
                    "bring the missing nodes back; sessions in their slots are not found",
                )
        return Finding("mode", "ok", text_, facts={"mode": "cluster"})

    async def _writable(self) -> Sequence[Finding]:
        key = self._keys.probe(secrets.token_hex(8))
        if await self._client.run(scripts.PROBE, [key]) != 1:
            return [Finding("writable", "warn", "a key vanished at once", "see maxmemory")]
        return [Finding("writable", "ok", "yes")]

    async def _persistence(self) -> Sequence[Finding]:
        infos = await self._info("persistence")
        if not infos:
            return [Finding("persistence", "ok", "unknown: INFO is not allowed to this user")]
        failing = [
            word
            for word in ("rdb_last_bgsave_status", "aof_last_write_status")
            if any(info.get(word, "ok") != "ok" for info in infos)
        ]
        if failing:
            text_ = f"the last save failed ({', '.join(failing)})"
            return [Finding("persistence", "warn", text_, "see the server's log and its disk")]
        if all(info.get("aof_enabled") == "1" for info in infos):
            return [Finding("persistence", "ok", "append-only file")]
        snapshots = await self._snapshots()
        if snapshots is None:
            return [Finding("persistence", "ok", "no append-only file; snapshots unknown")]
        fix = "set `appendonly yes`, then a restart loses nothing"
        if snapshots:
            text_ = "snapshots: a restart loses what came since the last one"
            return [Finding("persistence", "ok", text_)]
        text_ = "neither append-only file nor snapshots: a restart loses all sessions"
        return [Finding("persistence", "warn", text_, fix)]

    async def _snapshots(self) -> bool | None:
        """Tell whether every server makes snapshots; None when that is forbidden to ask."""
        try:
            replies = await self._client.on_each("CONFIG", "GET", "save")
        except StoreUnavailable as error:
            if error.reason in _FORBIDDEN:
                return None
            raise
        return all(len(reply) > 1 and bool(reply[1]) for reply in map(items, replies))

    async def _memory(self) -> Sequence[Finding]:
        infos = await self._info("memory")
        if not infos:
            return [Finding("memory", "ok", "unknown: INFO is not allowed to this user")]
        return [min((_memory_of(info) for info in infos), key=lambda f: f.status == "ok")]

    async def _contents(self) -> Sequence[Finding]:
        contents, unlisted = Contents(), 0
        batch, seen = list[bytes](), set[bytes]()
        async for key in self._client.keys(self._keys.states):
            anchor = self._keys.anchor_of(key)
            if anchor and anchor not in seen:
                seen.add(anchor)
                batch.append(anchor)
            if len(batch) == BATCH:
                unlisted += await self._look(batch, contents)
                batch.clear()
        unlisted += await self._look(batch, contents)
        await self._count_responses(contents)
        return [*contents.findings(), await self._listing(unlisted)]

    async def _count_responses(self, contents: Contents) -> None:
        seen = set[bytes]()
        async for key in self._client.keys(self._keys.all_responses):
            anchor = self._keys.anchor_of(key)
            if anchor and anchor not in seen:
                seen.add(anchor)
                try:
                    count = await self._client.call("HGET", self._keys.responses(anchor), "c")
                    contents.responses += int(data(count)) if count is not None else 0
                except (StateCorrupt, ValueError):
                    contents.note(Unreadable("damaged"))

    async def _look(self, anchors: Sequence[bytes], contents: Contents) -> int:
        """Count what is there for some anchors; return how many sessions are not listed."""
        reads = (self._read(anchor, contents) for anchor in anchors)
        names = list[str]()
        # All are over before a failure is told: one that went on would connect after `close`.
        for found in await asyncio.gather(*reads, return_exceptions=True):
            if isinstance(found, BaseException):
                raise found
            names += found
        contents.sessions += len(names)
        return await self._index.unlisted(names)

    async def _read(self, anchor: bytes, contents: Contents) -> list[str]:
        """Count what is there for an anchor; return its sessions."""
        try:
            return await self._read_all(anchor, contents)
        except StateCorrupt:
            contents.note(Unreadable("damaged"))
            return []

    async def _read_all(self, anchor: bytes, contents: Contents) -> list[str]:
        key = self._keys.state(anchor)
        fields = [data(field) for field in items(await self._client.call("HKEYS", key))]
        ids = [field[2:].decode("ascii", "replace") for field in fields if field[:2] == b"c:"]
        for id_ in ids:
            body = await self._client.call("HGET", key, f"c:{id_}")
            if body is not None:
                contents.checkpoints += 1
                self._values.checkpoint(anchor, id_, body, contents.note)
        reply = items(await self._client.run(scripts.FIND, [key], [b"", 1]))
        if len(reply) == 6:
            contents.clip_sets += sum(1 for _ in tuples(reply[5], 4))
            self._values.clip_sets(anchor, reply[5], contents.note)
            self._values.struggle(anchor, reply[1], contents.note)
        return [text(field).removeprefix("x:") for field in fields if field[:2] == b"x:"]

    async def _listing(self, unlisted: int) -> Finding:
        if self._repair is not None:
            count = await self._repair()
            return Finding("listing", "ok", f"made anew: {counted(count, 'session')}")
        if not unlisted:
            return Finding("listing", "ok", "complete", facts={"unlisted": 0})
        return Finding(
            "listing",
            "warn",
            f"{counted(unlisted, 'session')} not listed; requests find them all the same",
            "run `foldgate store check --repair`",
            {"unlisted": unlisted},
        )


def _parsed(reply: object) -> Info:
    # redis-py turns the reply into a mapping.
    return {str(k): str(v) for k, v in reply.items()} if isinstance(reply, dict) else {}


def _version(infos: Sequence[Info]) -> Finding:
    info = min(infos, key=lambda info: _numbers(info.get("redis_version", "")))
    version = info.get("redis_version", "unknown")
    kind, shown = "Redis", version
    if info.get("server_name") == "valkey" or "valkey_version" in info:
        kind, shown = "Valkey", info.get("valkey_version", version)
    facts: JsonObject = {"server": kind, "version": shown}
    if _numbers(version) < OLDEST:
        text_ = f"{kind} {shown} is too old"
        return Finding("server", "FAIL", text_, "use Redis 6.2 or newer, or Valkey", facts)
    return Finding("server", "ok", f"{kind} {shown}", facts=facts)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _memory_of(info: Info) -> Finding:
    limit, used = int(info.get("maxmemory", "0")), int(info.get("used_memory", "0"))
    policy = info.get("maxmemory_policy", "noeviction")
    facts: JsonObject = {"maxmemory": limit, "used_memory": used, "policy": policy}
    size = f"{used / 2**20:,.0f} MiB used" + (f" of {limit / 2**20:,.0f}" if limit else "")
    fix = "set `maxmemory-policy noeviction` (or volatile-ttl)"
    # All keys but the listing and secrets have a time to live.
    if policy.startswith("allkeys-") or (limit and policy in _EVICTING):
        when = "" if limit else ", once maxmemory is set"
        text_ = f"{size}; {policy}: sessions may be evicted{when}"
        return Finding("memory", "warn", text_, fix, facts)
    if limit and used > FULL * limit:
        text_ = f"{size}: nearly full; {policy}"
        fix = "raise maxmemory, or lower store.session_days and store.archive_days"
        return Finding("memory", "warn", text_, fix, facts)
    return Finding("memory", "ok", f"{size}; {policy}", facts=facts)
