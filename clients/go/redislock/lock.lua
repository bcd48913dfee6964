-- ARGV[1] is the action, ARGV[2] the token, ARGV[3] the metadata, ARGV[4] the ttl in milliseconds.

local action, token, metadata, ttl = unpack(ARGV)

-- Calls a command for keys.
local function call(name, keys, ...)
  local arguments = { name, #keys, unpack(keys) }
  for _, argument in ipairs({ token, ... }) do
    table.insert(arguments, argument)
  end
  return redis.call(unpack(arguments))
end

if action == 'abandon' then
  -- Releases what an attempt without a reply was granted, and refuses for two minutes what arrives late.
  return call('SLOCK.MUNLOCK', KEYS, 'REFUSE', 120000)
elseif action == 'obtain' then
  local held = 0
  for _, key in ipairs(KEYS) do
    held = held + (redis.call('SLOCK.PTTL', key, token) > 0 and 1 or 0)
  end
  -- A token that holds some of the keys is refused until it holds all or none: two tasks that share a token,
  -- one with a part of the other's keys, must not both hold them.
  if held > 0 and held < #KEYS then
    return 0
  end
  local fence = call('SLOCK.MLOCK', KEYS, ttl, 'META', metadata)
  if held > 0 and fence > 0 then
    call('SLOCK.MEXTEND', KEYS, ttl) -- the new ttl may be shorter, which MLOCK does not make it
  end
  return fence
end

local function field(map, name)
  for i = 1, #map, 2 do
    if map[i] == name then
      return map[i + 1]
    end
  end
end

-- Whether the token holds the lock for write, with this metadata. The token alone does not tell: who obtained
-- the lock again with the token and other metadata has replaced the first owner.
local function is_mine(key)
  local info = redis.pcall('SLOCK.INFO', key, 'FULL', 'COUNT', 1)
  if info and info.err and not string.find(info.err, 'WRONGTYPE', 1, true) then
    error(info) -- else somebody has overwritten the key
  end
  if not info or info.err or field(info, 'mode') ~= 'write' then
    return false
  end
  local holder = field(info, 'holders')[1]
  return field(holder, 'token') == token and field(holder, 'meta') == metadata
end

local mine = {}
for _, key in ipairs(KEYS) do
  if is_mine(key) then
    table.insert(mine, key)
  end
end

if action == 'release' then
  -- Each key that is still held. Returns 1 when that was all of them, else 0.
  return #mine > 0 and call('SLOCK.MUNLOCK', mine) == #KEYS and 1 or 0
elseif #mine < #KEYS then
  return 0
elseif action == 'refresh' then
  return call('SLOCK.MEXTEND', KEYS, ttl)
end
return call('SLOCK.MPTTL', KEYS)
