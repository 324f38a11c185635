"""Commands on a Redis Cluster while it moves slots.

redis-py sends ASKING and the redirected command on two connections of its pool, which under
load are seldom the same one, so that the command is refused until the slot has moved. Here both
go out together on one connection. Every other redirection is left to redis-py.
"""

from collections.abc import Sequence
from typing import TypeAlias

from redis.asyncio.cluster import PipelineCommand, RedisCluster
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ConnectionError,
    MovedError,
    SlotNotCoveredError,
    TimeoutError,
)

Argument = bytes | str | int | float
Reply: TypeAlias = "int | bytes | Sequence[Reply] | None"
_LEFT_TO_THE_CLIENT = (
    MovedError,
    ConnectionError,
    TimeoutError,
    ClusterDownError,
    SlotNotCoveredError,
)


async def execute(client: RedisCluster, key: str, command: tuple[Argument, ...]) -> Reply:
    """Run a command where its key is.

    Raises:
        RedisError: as the server or redis-py do.
    """
    try:
        owner = client.get_node_from_key(key)
        if owner is not None:
            found: Reply = await owner.execute_command(*command)
            return found
    except AskError as error:
        return await _ask(client, error, command)
    except _LEFT_TO_THE_CLIENT:
        # Repeats the command; what is run here may be repeated.
        pass
    reply: Reply = await client.execute_command(*command)
    return reply


async def close(client: RedisCluster) -> None:
    """Close every connection.

    After a failure redis-py takes itself for closed, though its nodes connect again when used.
    """
    await client.aclose()
    await client.nodes_manager.aclose()
    await client.nodes_manager.aclose("startup_nodes")


async def _ask(client: RedisCluster, error: AskError, command: tuple[Argument, ...]) -> Reply:
    importer = client.get_node(host=error.host, port=error.port)
    if importer is None:
        # A node that came with this very move; the client learns of it by itself.
        reply: Reply = await client.execute_command(*command)
        return reply
    asking, asked = PipelineCommand(0, "ASKING"), PipelineCommand(1, *command)
    await importer.execute_pipeline([asking, asked])
    if isinstance(asked.result, Exception):
        raise asked.result
    result: Reply = asked.result
    return result
