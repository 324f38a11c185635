"""Running summaries in Redis: one hash per anchor, beside the anchor's state in its slot.

Fields are the keys of the summaries, with sealed values; ``o`` lists the keys, oldest first.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from proxy.compaction.checkpoint import SCHEMA_VERSION, Fold
from proxy.errors import StateCorrupt
from proxy.sessions import state
from proxy.sessions.redis_client import RedisClient
from proxy.sessions.redis_cluster import Argument
from proxy.sessions.redis_keys import Keys, data, tuples
from proxy.sessions.redis_lua import READ, Script
from proxy.sessions.sealing import Sealer
from proxy.sessions.state import MAX_FOLDS, ignore, readable

ORDER = b"o"

_ORDER = """
local function order()
  return groups(redis.call('HGET', KEYS[#KEYS], 'o'), 's')
end
local function list(all)
  redis.call('HSET', KEYS[#KEYS], 'o', cmsgpack.pack(all))
end
"""

SAVE = Script.of(
    READ
    + _ORDER
    + """
-- KEYS: state, folds. ARGV: time to live, key, value, how many are kept, version or '', schema
-- version, ids of our encryption keys between commas
if ARGV[5] ~= '' and (tonumber(redis.call('HGET', KEYS[1], 'v')) or 0) > tonumber(ARGV[5]) then
  return 0
end
local known = redis.call('HGET', KEYS[2], ARGV[2])
if known then
  -- What a newer version wrote, or needs a key that we lack, is not ours to overwrite.
  if (string.byte(known, 1) or 0) > tonumber(ARGV[6]) then return 0 end
  local length = string.byte(known, 2) or 0
  local name = ',' .. string.sub(known, 3, 2 + length) .. ','
  if length > 0 and not string.find(ARGV[7], name, 1, true) then return 0 end
end
local kept = {}
for _, key in ipairs(order()) do
  if key ~= ARGV[2] then kept[#kept + 1] = key end
end
kept[#kept + 1] = ARGV[2]
while #kept > tonumber(ARGV[4]) do
  redis.call('HDEL', KEYS[2], table.remove(kept, 1))
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
list(kept)
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return 1
"""
)

LOAD = Script.of("return redis.call('HGETALL', KEYS[1])")

DROP = Script.of(
    READ
    + _ORDER
    + """
-- KEYS: folds. ARGV: keys
local gone, kept = {}, {}
for _, key in ipairs(ARGV) do
  gone[key] = true
  redis.call('HDEL', KEYS[1], key)
end
for _, key in ipairs(order()) do
  if not gone[key] then kept[#kept + 1] = key end
end
if #kept > 0 then list(kept) else redis.call('UNLINK', KEYS[1]) end
return 1
"""
)


@dataclass(frozen=True, slots=True)
class RedisFolds:
    """The running summaries of the Redis store."""

    client: RedisClient
    keys: Keys
    sealer: Sealer
    life: int
    """Milliseconds that they are kept."""

    async def save(self, anchor: bytes, fold: Fold, version: int | None) -> None:
        """See `SessionStore.save_fold`."""
        body = self.sealer.seal(state.dump_fold(fold), _context(anchor, fold.key))
        told = "" if version is None else version
        arguments: list[Argument] = [self.life, fold.key, body, MAX_FOLDS, told]
        arguments += [SCHEMA_VERSION, self.sealer.key_names]
        await self.client.run(SAVE, [self.keys.state(anchor), self.keys.folds(anchor)], arguments)

    async def load(self, anchor: bytes) -> list[Fold]:
        """See `SessionStore.load_folds`."""
        found = []
        # As a script, since redis-py turns the reply to a plain command into a mapping.
        for key, body in tuples(await self.client.run(LOAD, [self.keys.folds(anchor)]), 2):
            if data(key) != ORDER:
                read = partial(self._opened, anchor, data(key), data(body))
                found.append(readable(read, ignore))
        return [fold for fold in found if fold is not None]

    async def drop(self, anchor: bytes, keys: Collection[bytes]) -> None:
        """See `SessionStore.drop_folds`."""
        if keys:
            await self.client.run(DROP, [self.keys.folds(anchor)], [*keys])

    async def forget(self, anchor: bytes) -> None:
        """Delete all of an anchor."""
        await self.client.call("UNLINK", self.keys.folds(anchor))

    def _opened(self, anchor: bytes, key: bytes, body: bytes) -> Fold | None:
        if self.sealer.version_of(body) > SCHEMA_VERSION:
            return None
        fold = state.load_fold(self.sealer.open(body, _context(anchor, key)))
        if fold is not None and fold.key != key:
            raise StateCorrupt("a stored running summary stands in another's place")
        return fold


def _context(anchor: bytes, key: bytes) -> bytes:
    # Binds an encrypted value to its place, so that it cannot be put elsewhere.
    return b"fold:" + anchor.hex().encode() + b":" + key
