"""The connection to Redis: one server, a Sentinel group or a cluster, behind three methods.

Every failure becomes a `StoreUnavailable` with a short fixed word. An error text of redis-py may
quote a command with its arguments, so none is ever passed on.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypedDict

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MaxConnectionsError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    TimeoutError,
    TryAgainError,
)
from redis.maint_notifications import MaintNotificationsConfig

from proxy.errors import StateCorrupt, StoreError, StoreUnavailable
from proxy.sessions import redis_cluster
from proxy.sessions.redis_cluster import Argument, Reply
from proxy.sessions.redis_lua import Script
from proxy.sessions.store_url import StoreUrl

CONNECT_SECONDS = 1.0
ANSWER_SECONDS = 2.0
"""A connection that was silent for this long is given up; callers wait much shorter."""

MAX_CONNECTIONS = 256
AT_ONCE = 16
"""Commands that one call has under way in a cluster."""

_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (TimeoutError, "timeout"),
    (asyncio.TimeoutError, "timeout"),
    (AuthenticationError, "wrong_password"),
    (AuthorizationError, "wrong_password"),
    (NoPermissionError, "no_permission"),
    (ReadOnlyError, "read_only"),
    (OutOfMemoryError, "out_of_memory"),
    (BusyLoadingError, "loading"),
    (MaxConnectionsError, "too_many_connections"),
    (ClusterDownError, "cluster_down"),
    (TryAgainError, "slot_moving"),
    (ConnectionError, "unreachable"),
    (OSError, "unreachable"),
    (RuntimeError, "unreachable"),
    (RedisClusterException, "unreachable"),
)
_TROUBLE = (RedisError, RedisClusterException, OSError, RuntimeError)
"""What a call may raise; uvloop says RuntimeError of a connection that closed under a write."""

_REFUSALS = {
    "READONLY": "read_only",
    "OOM": "out_of_memory",
    "MISCONF": "cannot_save",
    "NOREPLICAS": "too_few_replicas",
    "MASTERDOWN": "master_down",
    "LOADING": "loading",
    "CLUSTERDOWN": "cluster_down",
    "NOAUTH": "wrong_password",
    "WRONGPASS": "wrong_password",
    "NOPERM": "no_permission",
    "BUSY": "busy_script",
    # How servers of 6.2 and 7 say what a script may not do.
    "can't run this command": "no_permission",
    "ACL failure": "no_permission",
    "can't access at least one of the keys": "no_permission",
}
_DAMAGE = ("WRONGTYPE", "user_script", "not an integer", "not a valid float")
"""What a script or command says of data that it cannot use: that is no fault of the server."""
_ADVICE = {
    "wrong_password": "check the user name and password in store.url",
    "no_permission": "the Redis user needs scripts, hashes, strings, sorted sets and SCAN",
    "certificate": "name the CA's file with ?ssl_ca_certs=PATH in store.url",
    "read_only": "the server is a replica",
    "out_of_memory": "raise maxmemory, or lower store.session_days and store.archive_days",
    "cannot_save": "the server cannot write its snapshot; see its log",
}


def failure(error: BaseException) -> StoreError:
    """Return what a failure of redis-py or of the network means, in fixed words.

    `StateCorrupt` when it is about the data of one key, else `StoreUnavailable`.
    """
    reason = next((word for kind, word in _REASONS if isinstance(error, kind)), "")
    # A script passes on what a command in it was refused with, behind a prefix.
    text = str(error)[:300] if isinstance(error, RedisError) else ""
    if "CERTIFICATE_VERIFY_FAILED" in text:
        reason = "certificate"
    if not reason:
        reason = next((word for mark, word in _REFUSALS.items() if mark in text), "")
    if not reason and any(mark in text for mark in _DAMAGE):
        return StateCorrupt("Redis holds something else than was written")
    reason = reason or "refused"
    advice = _ADVICE.get(reason)
    return StoreUnavailable(f"Redis: {reason}{f'; {advice}' if advice else ''}", reason)


class _Common(TypedDict):
    socket_connect_timeout: float
    socket_timeout: float
    retry: Retry
    protocol: int
    driver_info: None
    maint_notifications_config: MaintNotificationsConfig
    max_connections: int


class _Tls(TypedDict, total=False):
    ssl: bool
    ssl_ca_certs: str
    ssl_cert_reqs: str
    ssl_check_hostname: bool


_COMMON: _Common = {
    "socket_connect_timeout": CONNECT_SECONDS,
    "socket_timeout": ANSWER_SECONDS,
    # A pooled connection may be of before a restart; one new attempt tells.
    "retry": Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
    # Nothing that a Redis 6.2 does not know is ever sent.
    "protocol": 2,
    "driver_info": None,
    "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    "max_connections": MAX_CONNECTIONS,
}


def _tls(url: StoreUrl) -> _Tls:
    options = url.options
    if options.get("ssl") != "true":
        return {}
    found = _Tls(ssl=True, ssl_check_hostname=options.get("ssl_check_hostname") != "false")
    if "ssl_ca_certs" in options:
        found["ssl_ca_certs"] = options["ssl_ca_certs"]
    if "ssl_cert_reqs" in options:
        found["ssl_cert_reqs"] = options["ssl_cert_reqs"]
    return found


def _cluster(url: StoreUrl) -> RedisCluster:
    return RedisCluster(
        startup_nodes=[ClusterNode(host, port) for host, port in url.hosts],
        # A part that is down must not take the others' sessions with it.
        require_full_coverage=False,
        username=url.username,
        password=url.password,
        **_COMMON,
        **_tls(url),
    )


def _sentinel(url: StoreUrl) -> Sentinel:
    names = {"sentinel_username": "username", "sentinel_password": "password"}
    login = {names[k]: v for k, v in url.options.items() if k in names}
    return Sentinel(  # type: ignore[no-untyped-call]
        url.hosts,
        sentinel_kwargs={**_COMMON, **_tls(url), **login},
        username=url.username,
        password=url.password,
        db=url.db,
        **_COMMON,
        **_tls(url),
    )


class RedisClient:
    """A pool of connections to wherever the keys are."""

    def __init__(self, url: StoreUrl) -> None:
        """Prepare for a redis, sentinel or cluster URL; nothing is connected before a call."""
        self._sentinels: Sequence[Redis] = ()
        self._client: Redis | RedisCluster
        if url.kind == "cluster":
            self._client = _cluster(url)
        elif url.kind == "sentinel":
            sentinel = _sentinel(url)
            self._sentinels = sentinel.sentinels
            self._client = sentinel.master_for(url.service or "")
        else:
            self._client = Redis.from_url(url.url, **_COMMON)

    async def run(
        self, script: Script, keys: Sequence[str], arguments: Sequence[Argument] = ()
    ) -> Reply:
        """Run a script on the server that has the keys; they share one slot.

        Raises:
            StoreUnavailable: when there is no answer or the server refused.
            StateCorrupt: when the key holds something that is not ours.
        """
        try:
            return await self._evaluate("EVALSHA", script.sha, keys, arguments)
        except NoScriptError:
            pass
        except _TROUBLE as error:
            raise failure(error) from None
        try:
            return await self._evaluate("EVAL", script.text, keys, arguments)
        except _TROUBLE as error:
            raise failure(error) from None

    async def call(self, *command: Argument) -> Reply:
        """Run one command on one key.

        Raises:
            StoreUnavailable: when there is no answer or the server refused.
            StateCorrupt: when the key holds something that is not ours.
        """
        return (await self.pipeline([command]))[0]

    async def pipeline(
        self, commands: Sequence[Sequence[Argument]], *, lenient: bool = False
    ) -> Sequence[Reply]:
        """Run commands together; not one transaction, and their keys may be anywhere.

        A `lenient` one answers None for a key that holds something that is not ours.

        Raises:
            StoreUnavailable: when there is no answer or any of them was refused.
            StateCorrupt: when a key holds something that is not ours.
        """
        if not commands:
            return []
        try:
            if len(commands) == 1 and not lenient:
                key = str(commands[0][1])
                return [await self._execute(key, tuple(commands[0]))]
            pipe = self._client.pipeline(transaction=False)
            for command in commands:
                _ = pipe.execute_command(*command)
            replies: Sequence[Reply | Exception] = await pipe.execute(raise_on_error=not lenient)
        except _TROUBLE as error:
            raise failure(error) from None
        return [_without_damage(reply) for reply in replies]

    async def each(
        self, commands: Sequence[Sequence[Argument]], *, lenient: bool = False
    ) -> Sequence[Reply]:
        """Run commands as `pipeline` does, also while a cluster moves their keys about."""
        if not isinstance(self._client, RedisCluster):
            return await self.pipeline(commands, lenient=lenient)
        found = list[Reply]()
        for start in range(0, len(commands), AT_ONCE):
            part = commands[start : start + AT_ONCE]
            calls = (self.call(*command) for command in part)
            # All are over before a failure is told: one that went on would connect after `close`.
            for reply in await asyncio.gather(*calls, return_exceptions=True):
                if not isinstance(reply, BaseException):
                    found.append(reply)
                elif lenient and isinstance(reply, StateCorrupt):
                    found.append(None)
                else:
                    raise reply
        return found

    async def keys(self, pattern: str, count: int = 500) -> AsyncIterator[bytes]:
        """Yield the keys that match, of all servers; each at least once.

        Raises:
            StoreUnavailable: when a server does not answer.
        """
        try:
            async for key in self._client.scan_iter(match=pattern, count=count):
                yield key
        except _TROUBLE as error:
            raise failure(error) from None

    async def on_each(self, *command: Argument) -> Sequence[Reply]:
        """Run a command that has no key on every server that takes writes.

        Raises:
            StoreUnavailable: when one of them does not answer or refuses.
        """
        client, nodes = self._client, list[Redis | ClusterNode]()
        try:
            if isinstance(client, RedisCluster):
                _ = await client.initialize()
                nodes += client.get_primaries()
            else:
                nodes.append(client)
            return [await node.execute_command(*command) for node in nodes]
        except _TROUBLE as error:
            raise failure(error) from None

    async def close(self) -> None:
        """Close every connection."""
        for client in (self._client, *self._sentinels):
            if isinstance(client, RedisCluster):
                await redis_cluster.close(client)
            else:
                await client.aclose()

    async def _execute(self, key: str, words: tuple[Argument, ...]) -> Reply:
        client = self._client
        if isinstance(client, RedisCluster):
            return await redis_cluster.execute(client, key, words)
        reply: Reply = await client.execute_command(*words)  # type: ignore[no-untyped-call]
        return reply

    async def _evaluate(
        self, command: str, script: str, keys: Sequence[str], arguments: Sequence[Argument]
    ) -> Reply:
        return await self._execute(keys[0], (command, script, len(keys), *keys, *arguments))


def _without_damage(reply: "Reply | Exception") -> Reply:
    if not isinstance(reply, Exception):
        return reply
    error = failure(reply)
    if isinstance(error, StateCorrupt):
        return None
    raise error
