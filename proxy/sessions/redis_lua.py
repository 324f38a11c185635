"""What the scripts of the Redis store share: reading and writing the hash of an anchor."""

from dataclasses import dataclass, field
from hashlib import sha1


@dataclass(frozen=True, slots=True)
class Script:
    """A script and its name on the server."""

    text: str = field(repr=False)
    sha: str = ""

    @classmethod
    def of(cls, text: str) -> "Script":
        """Name a script the way the server does."""
        return cls(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


READ = """
-- What is damaged counts as absent: every reader checks the shape of what it reads.
local function unpacked(packed)
  if not packed then return {} end
  local ok, value = pcall(cmsgpack.unpack, packed)
  return ok and type(value) == 'table' and value or {}
end
-- Groups of members whose types spell the shape: s for a string, n for a number.
local function groups(packed, shape)
  local all, kept, size = unpacked(packed), {}, #shape
  for n = 1, #all - size + 1, size do
    local good = true
    for m = 1, size do
      good = good and string.sub(type(all[n + m - 1]), 1, 1) == string.sub(shape, m, m)
    end
    if good then
      for m = 1, size do kept[#kept + 1] = all[n + m - 1] end
    end
  end
  return kept
end
"""

COMMON = (
    READ
    + """
local function get(name)
  return redis.call('HGET', KEYS[1], name)
end
local function index()
  return groups(get('i'), 'ssns')
end
local function clip_sets()
  return groups(get('k'), 'sss')
end
local function row(session)
  local all = unpacked(get('x:' .. session))
  for n = 1, 3 do
    if type(all[n]) ~= 'number' then return {} end
  end
  for n = 4, #all do
    if type(all[n]) ~= 'string' then return {} end
  end
  return all
end
local function leases()
  local kept = {}
  for cut, lease in pairs(unpacked(get('l'))) do
    if type(cut) == 'string' and type(lease) == 'table' and type(lease[1]) == 'number'
       and type(lease[2]) == 'number' then
      kept[cut] = lease
    end
  end
  return kept
end
local function add(name, number)
  -- Not HINCRBY, which refuses what is damaged.
  local sum = (tonumber(get(name)) or 0) + number
  redis.call('HSET', KEYS[1], name, string.format('%d', sum))
  return sum
end
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
"""
)

APPEND = """
local function append(key, life, limit, once, first)
  local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  local score = last[2] and tonumber(last[2]) or 0
  for n = first, #ARGV do
    score = score + 1
    if once then
      redis.call('ZADD', key, 'NX', score, '- ' .. ARGV[n])
    else
      -- Two events may be equal; members of a set may not.
      redis.call('ZADD', key, score, score .. ' ' .. ARGV[n])
    end
  end
  redis.call('ZREMRANGEBYRANK', key, 0, -tonumber(limit) - 1)
  redis.call('PEXPIRE', key, life)
end
"""
