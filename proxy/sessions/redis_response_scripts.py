"""The scripts behind the recorded responses in Redis; each is atomic and touches one key.

All of an anchor's responses and their items stand in one hash, whose fields are:
    n               number of the newest node
    c               how many responses are known
    t               when the last one was recorded
    k:KEY           the number of the node of a response
    r:NUMBER        a node: version, key, base, shared, time, number of items, items
    m:NUMBER        names of a node's items, each followed by its place among them
    d:NUMBER        how many nodes build on a node, by how many items they share with it
    b:ADDRESS       a piece of an item, sealed
    f:ADDRESS       how often nodes name a piece

A node adds items to the first items of its base, another node with a lower number. The key of a
node is what its response is known by. A response that was forgotten, or recorded anew, leaves its
node without a key for as long as others build on it, with the items that they need and no more.

Items are the pieces they are made of, one after the other: an address of 32 bytes and a size of
four, whose first bit marks the last piece of an item. So a node is passed on without a look at its
items. Nodes and what belongs to them are MessagePack; a node of a newer version counts as absent.
"""

from proxy.sessions.redis_lua import READ, Script

NODE_VERSION = 1

_NODES = (
    READ
    + f"local VERSION = {NODE_VERSION}"
    + """
local KEY, BASE, SHARED, TIME, COUNT, ITEMS = 2, 3, 4, 5, 6, 7
local ADDRESS, PIECE = 32, 36
local function get(field)
  return redis.call('HGET', KEYS[1], field)
end
local function set(field, value)
  redis.call('HSET', KEYS[1], field, value)
end
-- Returns what counts something; nil when it is damaged or not there.
local function number_in(field)
  local number = tonumber(get(field))
  return number and number >= 0 and number < 2 ^ 53 and number or nil
end
local function add(field, number)
  -- Not HINCRBY, which refuses what is damaged.
  local sum = math.max((number_in(field) or 0) + number, 0)
  set(field, string.format('%d', sum))
  return sum
end
local function newest_number()
  local newest = 0
  for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    newest = math.max(newest, tonumber(string.match(field, '^r:(%d+)$')) or 0)
  end
  return newest
end
local function is_there(items)
  for at = 1, #items, PIECE do
    local address = string.sub(items, at, at + ADDRESS - 1)
    if redis.call('HEXISTS', KEYS[1], 'b:' .. address) == 0 then return false end
  end
  return true
end
local function ends_item(items, at)
  return (string.byte(items, at + ADDRESS) or 128) >= 128
end
-- Returns where the items behind the first `count` ones begin.
local function behind_items(items, count)
  local at = 1
  while count > 0 and at <= #items do
    if ends_item(items, at) then count = count - 1 end
    at = at + PIECE
  end
  return at
end
-- Returns nil for a node that cannot be read, and whether a newer version wrote it.
local function node(number)
  local r = unpacked(get('r:' .. number))
  if type(r[1]) == 'number' and r[1] > VERSION then return nil, true end
  local good = type(r[1]) == 'number' and type(r[KEY]) == 'string' and type(r[BASE]) == 'number'
    and type(r[SHARED]) == 'number' and type(r[TIME]) == 'number' and type(r[COUNT]) == 'number'
    and type(r[ITEMS]) == 'string' and r[BASE] < number and #r[ITEMS] >= r[COUNT] * PIECE
  return good and r or nil, false
end
local function put_node(number, r)
  set('r:' .. number, cmsgpack.pack(r))
end
-- Returns the number of the node of a response, then as above.
local function known(key)
  local number = number_in('k:' .. key)
  if not number then return nil, nil, false end
  local r, newer = node(number)
  return number, r, newer
end
local function names_of(number)
  return groups(get('m:' .. number), 'sn')
end
local function put_names(number, names)
  if #names > 0 then
    set('m:' .. number, cmsgpack.pack(names))
  else
    redis.call('HDEL', KEYS[1], 'm:' .. number)
  end
end
local function dependants(number)
  local all = {}
  for shared, count in pairs(unpacked(get('d:' .. number))) do
    if type(shared) == 'number' and type(count) == 'number' and count > 0 then
      all[shared] = count
    end
  end
  return all
end
local function depend(number, shared, change)
  local all = dependants(number)
  local count = (all[shared] or 0) + change
  all[shared] = count > 0 and count or nil
  if next(all) then
    set('d:' .. number, cmsgpack.pack(all))
  else
    redis.call('HDEL', KEYS[1], 'd:' .. number)
  end
end
local function count_pieces(items, change)
  for at = 1, #items, PIECE do
    local address = string.sub(items, at, at + ADDRESS - 1)
    if add('f:' .. address, change) <= 0 then
      redis.call('HDEL', KEYS[1], 'f:' .. address, 'b:' .. address)
    end
  end
end
"""
)

_RELEASE = """
local function split(items)
  local all, from = {}, 1
  for at = 1, #items, PIECE do
    if ends_item(items, at) then
      all[#all + 1] = string.sub(items, from, at + PIECE - 1)
      from = at + PIECE
    end
  end
  return all
end
-- Deletes of a node, and of those it builds on, what no response needs any more.
-- Returns the names of items that are gone, each with its item.
local function release(number)
  local gone = {}
  while number > 0 do
    local r = node(number)
    if not r or r[KEY] ~= '' then break end
    local needed = 0
    for shared in pairs(dependants(number)) do needed = math.max(needed, shared) end
    local own = math.min(math.max(needed - r[SHARED], 0), r[COUNT])
    local at = behind_items(r[ITEMS], own)
    count_pieces(string.sub(r[ITEMS], at), -1)
    local names, all, kept = names_of(number), split(r[ITEMS]), {}
    for n = 1, #names, 2 do
      local item = all[names[n + 1] + 1]
      if names[n + 1] < own then
        kept[#kept + 1] = names[n]
        kept[#kept + 1] = names[n + 1]
      elseif item and not is_there(item) then
        gone[#gone + 1] = names[n]
        gone[#gone + 1] = item
      end
    end
    if needed > 0 then
      r[COUNT], r[ITEMS] = own, string.sub(r[ITEMS], 1, at - 1)
      put_node(number, r)
      put_names(number, kept)
      break
    end
    redis.call('HDEL', KEYS[1], 'r:' .. number, 'm:' .. number, 'd:' .. number)
    if r[BASE] > 0 then depend(r[BASE], r[SHARED], -1) end
    number = r[BASE]
  end
  return gone
end
"""

_PUT = """
-- ARGV: time to live, schema version and key ids of the sealer, number of pieces,
-- address and data of each
local function ours(value)
  if not value then return true end
  if (string.byte(value, 1) or 0) > tonumber(ARGV[2]) then return false end
  local length = string.byte(value, 2) or 0
  local name = ',' .. string.sub(value, 3, 2 + length) .. ','
  return length == 0 or string.find(ARGV[3], name, 1, true) ~= nil
end
local behind = 5 + 2 * tonumber(ARGV[4])
local function put()
  for n = 5, behind - 1, 2 do
    -- What a newer version wrote, or needs a key that we lack, is not ours to overwrite.
    if ours(get('b:' .. ARGV[n])) then set('b:' .. ARGV[n], ARGV[n + 1]) end
  end
  if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], ARGV[1]) end
end
"""

PUT = Script.of(_NODES + _PUT + "put()\nreturn 1\n")

SAVE = Script.of(
    _NODES
    + _RELEASE
    + _PUT
    + """
-- Behind them: key, base, shared, time, number of items, the items, name and place of some.
-- Returns 'refused', 'incomplete' when pieces are gone, or 'saved' and the names that are gone.
local key, shared, time = ARGV[behind], tonumber(ARGV[behind + 2]), tonumber(ARGV[behind + 3])
local before, old, newer = known(key)
if newer then return {'refused'} end
local base = 0
if ARGV[behind + 1] ~= '' or shared > 0 then
  local number, r = known(ARGV[behind + 1])
  if not r or shared > r[SHARED] + r[COUNT] then return {'refused'} end
  base = number
  -- What it shares may be what its base shares itself: then it does not need that base.
  while r and shared <= r[SHARED] do
    base = shared > 0 and r[BASE] or 0
    r = base > 0 and node(base)
  end
end
put()
local count, items = tonumber(ARGV[behind + 4]), ARGV[behind + 5]
if not is_there(items) then return {'incomplete'} end
local names, named, gone = {}, {}, {}
for n = behind + 6, #ARGV, 2 do
  names[#names + 1] = ARGV[n]
  names[#names + 1] = tonumber(ARGV[n + 1])
  named[ARGV[n]] = true
end
local r = {VERSION, key, base, shared, time, count, items}
if old and old[BASE] == base and old[SHARED] == shared and old[ITEMS] == items then
  local others = names_of(before)
  for n = 1, #others, 2 do
    if not named[others[n]] then
      names[#names + 1] = others[n]
      names[#names + 1] = others[n + 1]
    end
  end
  put_node(before, r)
  put_names(before, names)
else
  local number = (number_in('n') or -1) + 1
  -- One that was lost or damaged would put others out of order, or in their place.
  if number <= base or redis.call('HEXISTS', KEYS[1], 'r:' .. number) == 1 then
    number = newest_number() + 1
  end
  set('n', string.format('%d', number))
  count_pieces(items, 1)
  if base > 0 then depend(base, shared, 1) end
  put_node(number, r)
  put_names(number, names)
  set('k:' .. key, number)
  if not before then add('c', 1) end
  if old then
    old[KEY] = ''
    put_node(before, old)
    gone = release(before)
  end
end
if time > (number_in('t') or 0) then set('t', ARGV[behind + 3]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return {'saved', gone}
"""
)

_COLLECT = """
-- Returns key, base, shared, time, number of items, items and names of a node; the items in parts,
-- last part first. Its base is the nearest response that it builds on and that is still known,
-- or none at all to have it whole.
local function collect(number, whole)
  local r = node(number)
  if not r then return nil end
  local top, parts, names, base = r, {}, {}, ''
  local upto = r[SHARED] + r[COUNT]
  local total = upto
  while true do
    local own = upto - r[SHARED]
    if own > r[COUNT] then return nil end
    local items = r[ITEMS]
    if own < r[COUNT] then items = string.sub(items, 1, behind_items(items, own) - 1) end
    parts[#parts + 1] = items
    local its = whole and {} or names_of(number)
    for n = 1, #its, 2 do
      if its[n + 1] < own then
        names[#names + 1] = its[n]
        names[#names + 1] = r[SHARED] + its[n + 1]
      end
    end
    upto = math.min(upto, r[SHARED])
    if upto == 0 then break end
    number = r[BASE]
    r = node(number)
    if not r then return nil end
    if not whole and r[KEY] ~= '' then
      base = r[KEY]
      break
    end
  end
  for n = 2, #names, 2 do names[n] = names[n] - upto end
  return {top[KEY], base, upto, string.format('%.17g', top[TIME]), total - upto, parts, names}
end
"""

LOAD = Script.of(
    _NODES
    + _COLLECT
    + """
-- ARGV: key. Returns time, number of items and the items as `collect` does; empty when it is not
-- known whole.
local number = known(ARGV[1])
local found = number and collect(number, true)
return found and {found[4], found[5], found[6]} or {}
"""
)

EXPORT = Script.of(
    _NODES
    + _COLLECT
    + """
-- ARGV: the numbers of the first and the last node. Returns the newest number there is, then of
-- each response what `collect` does, or its key when it is not whole, or why it cannot be read.
local newest = number_in('n') or newest_number()
local found = {newest}
for number = tonumber(ARGV[1]), math.min(tonumber(ARGV[2]), newest) do
  if redis.call('HEXISTS', KEYS[1], 'r:' .. number) == 1 then
    local r, newer = node(number)
    if not r then
      found[#found + 1] = newer and 'newer' or 'damaged'
    elseif r[KEY] ~= '' then
      found[#found + 1] = collect(number, false) or {r[KEY]}
    end
  end
end
return found
"""
)

FORGET = Script.of(
    _NODES
    + _RELEASE
    + """
-- ARGV: key. Returns 'unknown', or 'gone' and the names of items that are gone.
local number, r = known(ARGV[1])
if not r then return {'unknown'} end
redis.call('HDEL', KEYS[1], 'k:' .. ARGV[1])
add('c', -1)
r[KEY] = ''
put_node(number, r)
return {'gone', release(number)}
"""
)

EXPIRE = Script.of(
    _NODES
    + """
-- ARGV: limit. Deletes all unless one was recorded since the limit.
-- Returns 'used' and when, or 'gone' and how many.
local time = number_in('t')
if time and time >= tonumber(ARGV[1]) then return {'used', string.format('%.17g', time)} end
local count = number_in('c') or 0
redis.call('UNLINK', KEYS[1])
return {'gone', string.format('%d', count)}
"""
)

POINT = Script.of("""
-- ARGV: value, time to live. Returns what was there before.
local before = redis.pcall('GET', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return type(before) == 'string' and before or false
""")
