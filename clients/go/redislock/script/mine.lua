-- The first part of the other scripts. ARGV[1] is the token, ARGV[2] the metadata.

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
  if not info then
    return false
  end
  if info.err then
    if string.find(info.err, 'WRONGTYPE', 1, true) then
      return false -- somebody has overwritten the key
    end
    error(info)
  end
  if field(info, 'mode') ~= 'write' then
    return false
  end
  local holder = field(info, 'holders')[1]
  return field(holder, 'token') == ARGV[1] and field(holder, 'meta') == ARGV[2]
end

local function all_mine()
  for _, key in ipairs(KEYS) do
    if not is_mine(key) then
      return false
    end
  end
  return true
end

-- Calls a command for many keys. What follows the keys is given as further arguments.
local function call(name, keys, ...)
  local arguments = { name, #keys }
  for _, key in ipairs(keys) do
    table.insert(arguments, key)
  end
  for _, argument in ipairs({ ... }) do
    table.insert(arguments, argument)
  end
  return redis.call(unpack(arguments))
end
