"""The scripts that the Redis server runs; each is atomic and uses commands of Redis 6.2 only.

Everything that is looked up or committed together stands in one hash per anchor, so a lookup
and a commit touch one key: they are whole on any server, also while a cluster moves the slot.

Fields of that hash:
    v               version, raised by every deletion
    s               number of sessions
    t, tt           struggle, and when it was written
    i               index: id, cut digest, created, session; four members an entry, oldest first
    c:ID            checkpoint
    k               clip sets: digest, checkpoint id, session; three members an entry, oldest first
    k:DIGEST ID     clips
    x:SESSION       created, used, number of checkpoints, then archive ids
    l               leases by cut digest: token, end in milliseconds, owner

Lists and leases are MessagePack; checkpoints, clips and struggle are sealed values whose first
byte is their schema version.
"""

from proxy.sessions.redis_lua import APPEND, COMMON, READ, Script

FIND = Script.of(
    READ
    + """
-- ARGV: chain of digests, their width, ids the caller holds
local h = redis.call('HMGET', KEYS[1], 'v', 't', 'i', 'k')
local index, clips = groups(h[3], 'ssns'), groups(h[4], 'sss')
local newest, cuts = {}, {}
for n = 1, #index, 4 do
  newest[index[n + 1]] = index[n]
  cuts[#cuts + 1] = index[n + 1]
  cuts[#cuts + 1] = index[n]
end
local chain, width, deepest = ARGV[1], tonumber(ARGV[2]), ''
for at = #chain - width + 1, 1, -width do
  local id = newest[string.sub(chain, at, at + width - 1)]
  if id then
    deepest = id
    break
  end
end
local body, held = false, deepest == ''
for n = 3, #ARGV do
  if ARGV[n] == deepest then held = true end
end
if not held then body = redis.call('HGET', KEYS[1], 'c:' .. deepest) end
local sets = {}
for n = 1, #clips, 3 do
  sets[#sets + 1] = clips[n]
  sets[#sets + 1] = clips[n + 1]
  sets[#sets + 1] = clips[n + 2]
  sets[#sets + 1] = redis.call('HGET', KEYS[1], 'k:' .. clips[n] .. clips[n + 1])
end
local version = string.format('%d', tonumber(h[1]) or 0)
return {version, h[2], cuts, held and '' or deepest, body, sets}
"""
)

COMMIT = Script.of(
    COMMON
    + APPEND
    + """
-- What a newer version wrote, or needs a key that we lack, is not ours to overwrite.
local function ours(value)
  if not value then return true end
  if (string.byte(value, 1) or 0) > tonumber(ARGV[20]) then return false end
  local length = string.byte(value, 2) or 0
  local name = ',' .. string.sub(value, 3, 2 + length) .. ','
  return length == 0 or string.find(ARGV[22], name, 1, true) ~= nil
end
-- ARGV: see `RedisValues.commit_arguments`
local key, time, session = KEYS[1], tonumber(ARGV[3]), ARGV[2]
-- A session that was deleted meanwhile does not come back by what was known of it before.
if ARGV[23] ~= '' and (tonumber(get('v')) or 0) > tonumber(ARGV[23]) then return 0 end
if ARGV[4] ~= '' then
  local all = leases()
  local lease = all[ARGV[4]]
  if lease then
    if lease[1] ~= tonumber(ARGV[5]) then return 0 end
    lease[2] = now()
    redis.call('HSET', key, 'l', cmsgpack.pack(all))
  end
end
local id, added = ARGV[6], 0
if id ~= '' then
  added = redis.call('HSETNX', key, 'c:' .. id, ARGV[10])
  local cuts, created, known = index(), tonumber(ARGV[8]), false
  local at = 1
  for n = 1, #cuts, 4 do
    if cuts[n] == id then known = true end
    if cuts[n + 2] <= created then at = n + 4 end
  end
  if not known then
    table.insert(cuts, at, ARGV[9])
    table.insert(cuts, at, created)
    table.insert(cuts, at, ARGV[7])
    table.insert(cuts, at, id)
    if #cuts > 4 * tonumber(ARGV[18]) then
      redis.call('HDEL', key, 'c:' .. cuts[1])
      for _ = 1, 4 do table.remove(cuts, 1) end
    end
    redis.call('HSET', key, 'i', cmsgpack.pack(cuts))
  end
end
if session ~= '' then
  local its = row(session)
  if #its == 0 then
    its = {time, time, 0}
    if redis.call('HEXISTS', key, 'x:' .. session) == 0 then add('s', 1) end
  end
  if time > its[2] then its[2] = time end
  if id ~= '' and ARGV[9] == session then its[3] = its[3] + added end
  local listed = ARGV[17] == ''
  for n = 4, #its do
    if its[n] == ARGV[17] then listed = true end
  end
  if not listed then its[#its + 1] = ARGV[17] end
  redis.call('HSET', key, 'x:' .. session, cmsgpack.pack(its))
end
if ARGV[13] ~= '' then
  local field = 'k:' .. ARGV[11] .. ARGV[12]
  if ours(redis.call('HGET', key, field)) then
    local clips, kept = clip_sets(), {}
    for n = 1, #clips, 3 do
      if clips[n] ~= ARGV[11] or clips[n + 1] ~= ARGV[12] then
        for m = n, n + 2 do kept[#kept + 1] = clips[m] end
      end
    end
    for n = 11, 13 do kept[#kept + 1] = ARGV[n] end
    if #kept > 3 * tonumber(ARGV[19]) then
      redis.call('HDEL', key, 'k:' .. kept[1] .. kept[2])
      for _ = 1, 3 do table.remove(kept, 1) end
    end
    redis.call('HSET', key, field, ARGV[14], 'k', cmsgpack.pack(kept))
  end
end
if ARGV[15] ~= '' then
  if ours(redis.call('HGET', key, 't')) then
    redis.call('HSET', key, 't', ARGV[16], 'tt', ARGV[3])
  end
end
redis.call('PEXPIRE', key, ARGV[1])
if KEYS[2] then append(KEYS[2], ARGV[1], ARGV[21], true, 24) end
return 1
"""
)

EVENTS = Script.of(
    APPEND
    + """
-- ARGV: time to live, how many are kept, events
append(KEYS[1], ARGV[1], ARGV[2], false, 3)
return 1
"""
)

ACQUIRE = Script.of(
    COMMON
    + """
-- ARGV: cut digest, owner, milliseconds, milliseconds to keep ended leases, time to live
local time, kept = now(), {}
for cut, lease in pairs(leases()) do
  if lease[2] + tonumber(ARGV[4]) > time then kept[cut] = lease end
end
local lease = kept[ARGV[1]]
local token = 1
if lease then
  if lease[3] == ARGV[2] then
    token = lease[1]
  elseif lease[2] > time then
    return 0
  else
    token = lease[1] + 1
  end
end
kept[ARGV[1]] = {token, time + tonumber(ARGV[3]), ARGV[2]}
redis.call('HSET', KEYS[1], 'l', cmsgpack.pack(kept))
if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], ARGV[5]) end
return token
"""
)

MOVE_LEASE = Script.of(
    COMMON
    + """
-- ARGV: cut digest, token, milliseconds from now, time to live
local all = leases()
local lease = all[ARGV[1]]
if lease and lease[1] ~= tonumber(ARGV[2]) then return 0 end
if not lease then
  -- A failover may have lost it; nobody else has it.
  lease = {tonumber(ARGV[2]), 0, ''}
  all[ARGV[1]] = lease
end
lease[2] = now() + tonumber(ARGV[3])
redis.call('HSET', KEYS[1], 'l', cmsgpack.pack(all))
if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end
return 1
"""
)

TOUCH = Script.of(
    COMMON
    + """
-- ARGV: session, time, time to live
local its = row(ARGV[1])
if #its == 0 then return 0 end
if tonumber(ARGV[2]) > its[2] then
  its[2] = tonumber(ARGV[2])
  redis.call('HSET', KEYS[1], 'x:' .. ARGV[1], cmsgpack.pack(its))
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""
)

SESSION = Script.of(
    COMMON
    + """
-- ARGV: session. Returns created, used, checkpoints as text, then archive ids; empty if unknown.
local its, found = row(ARGV[1]), {}
for n = 1, #its do
  found[n] = n < 4 and string.format('%.17g', its[n]) or its[n]
end
return found
"""
)

CONTENTS = Script.of(
    COMMON
    + """
-- ARGV: session. Returns its checkpoint ids, oldest first, and its clip sets.
local cuts, clips, ids, sets = index(), clip_sets(), {}, {}
for n = 1, #cuts, 4 do
  if cuts[n + 3] == ARGV[1] then ids[#ids + 1] = cuts[n] end
end
for n = 1, #clips, 3 do
  if clips[n + 2] == ARGV[1] then
    sets[#sets + 1] = clips[n]
    sets[#sets + 1] = clips[n + 1]
    sets[#sets + 1] = redis.call('HGET', KEYS[1], 'k:' .. clips[n] .. clips[n + 1])
  end
end
return {ids, sets, redis.call('HGET', KEYS[1], 't')}
"""
)

FORGET = Script.of(
    COMMON
    + """
-- ARGV: session, limit or ''. Deletes it unless it was used since the limit.
-- Returns 'unknown' and nothing, 'used' and when, or 'gone', how many are left of its anchor and
-- its archive ids.
local key, its = KEYS[1], row(ARGV[1])
if redis.call('HEXISTS', key, 'x:' .. ARGV[1]) == 0 then return {'unknown', ''} end
if ARGV[2] ~= '' and #its > 0 and its[2] >= tonumber(ARGV[2]) then
  return {'used', string.format('%.17g', its[2])}
end
local cuts, kept = index(), {}
for n = 1, #cuts, 4 do
  if cuts[n + 3] == ARGV[1] then
    redis.call('HDEL', key, 'c:' .. cuts[n])
  else
    for m = n, n + 3 do kept[#kept + 1] = cuts[m] end
  end
end
redis.call('HSET', key, 'i', cmsgpack.pack(kept))
local clips, sets = clip_sets(), {}
for n = 1, #clips, 3 do
  if clips[n + 2] == ARGV[1] then
    redis.call('HDEL', key, 'k:' .. clips[n] .. clips[n + 1])
  else
    for m = n, n + 2 do sets[#sets + 1] = clips[m] end
  end
end
redis.call('HSET', key, 'k', cmsgpack.pack(sets))
redis.call('HDEL', key, 'x:' .. ARGV[1])
add('v', 1)
local written = tonumber(get('tt')) or 0
if ARGV[2] ~= '' and written < tonumber(ARGV[2]) then redis.call('HDEL', key, 't', 'tt') end
local left = add('s', -1)
if left <= 0 then
  redis.call('HDEL', key, 's', 't', 'tt', 'i', 'k')
end
local gone = {'gone', string.format('%d', left)}
for n = 4, #its do gone[#gone + 1] = its[n] end
return gone
"""
)

ARCHIVE = Script.of("""
-- KEYS: entries, references, blobs. ARGV: time to live, then position, address, data of each blob
for n = 3, #KEYS do
  local at = 2 + (n - 3) * 3
  local position, address = ARGV[at], ARGV[at + 1]
  local fresh = redis.call('SET', KEYS[n], ARGV[at + 2], 'NX', 'PX', ARGV[1])
  if fresh then
    -- What counted references to an expired copy says nothing any more.
    redis.call('HDEL', KEYS[2], address)
  else
    redis.call('PEXPIRE', KEYS[n], ARGV[1])
  end
  if redis.call('HSETNX', KEYS[1], position, address) == 1 or fresh then
    redis.call('HINCRBY', KEYS[2], address, 1)
  end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return 1
""")

ARCHIVE_LARGE = Script.of("""
-- KEYS: entries, references, blob, its draft. ARGV: time to live, position, address
local fresh = redis.call('RENAMENX', KEYS[4], KEYS[3]) == 1
if fresh then
  redis.call('HDEL', KEYS[2], ARGV[3])
else
  redis.call('UNLINK', KEYS[4])
end
if redis.call('HSETNX', KEYS[1], ARGV[2], ARGV[3]) == 1 or fresh then
  redis.call('HINCRBY', KEYS[2], ARGV[3], 1)
end
for n = 1, 3 do redis.call('PEXPIRE', KEYS[n], ARGV[1]) end
return 1
""")

DROP = Script.of("""
-- KEYS: entries, references, blobs. ARGV: position and address of each blob
for n = 3, #KEYS do
  local at = 1 + (n - 3) * 2
  if redis.call('HDEL', KEYS[1], ARGV[at]) == 1 then
    if redis.call('HINCRBY', KEYS[2], ARGV[at + 1], -1) <= 0 then
      redis.call('HDEL', KEYS[2], ARGV[at + 1])
      redis.call('UNLINK', KEYS[n])
    end
  end
end
return 1
""")

PROBE = Script.of("""
redis.call('SET', KEYS[1], '1', 'PX', 10000)
return redis.call('DEL', KEYS[1])
""")
