"""The events of a session in Redis: a sorted set in the order they came."""

from collections.abc import Sequence

from proxy.sessions import redis_scripts as scripts
from proxy.sessions.redis_client import RedisClient
from proxy.sessions.redis_cluster import Argument
from proxy.sessions.redis_keys import data, items

MAX_EVENTS = 2000
"""Events kept of one session, the newest ones."""

A_CALL = 100
"""Events sent at once, so that the server is never busy for long."""


async def append(client: RedisClient, key: str, lines: Sequence[Argument], life: int) -> None:
    """Add events, as lines; the key lives for `life` milliseconds more."""
    for start in range(0, len(lines), A_CALL):
        part = lines[start : start + A_CALL]
        await client.run(scripts.EVENTS, [key], [life, MAX_EVENTS, *part])


async def read(client: RedisClient, key: str) -> list[str]:
    """Return the lines of a key, oldest first."""
    members = items(await client.call("ZRANGE", key, 0, -1))
    # Each has its number in front, since members of a set may not be equal.
    return [data(member).partition(b" ")[2].decode() for member in members]
