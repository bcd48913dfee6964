#!lua flags=no-writes,allow-stale,allow-cross-slot-keys
-- What INFO slock shows, for redis_exporter: redis_exporter --script redis_exporter.lua
-- Names and values alternate, all of them strings. `slock_wait_ms:p50=1,p99=9` becomes two names,
-- slock_wait_ms_p50 and slock_wait_ms_p99.

-- A lease that began this long ago, in milliseconds, is old: the default of `slock old`.
local OLD_MS = 600000
-- A run takes this many steps of SCAN with this COUNT, and looks at this many locks, so that it takes a few milliseconds
-- at most. On a server with more, each run looks at others.
local STEPS, COUNT, MOST_LOCKS = 10, 1000, 200

local found = {}

local function add(name, value)
  found[#found + 1] = name
  found[#found + 1] = value
end

local function field(list, name)
  for i = 1, #list, 2 do
    if list[i] == name then return list[i + 1] end
  end
end

-- How many holders of a lock are old, of 100 at most; they are listed in the order in which their leases began. Nothing
-- if the exporter's user may not look.
local function old_holders(key)
  local old = 0
  for _, most in ipairs({1, 100}) do
    local info, listed = redis.pcall('SLOCK.INFO', key, 'FULL', 'COUNT', most), 0
    old = 0
    if type(info) == 'table' and info.err then
      -- A key that is moving to another node of a cluster is counted there.
      return string.find(info.err, 'non local key', 1, true) and 0
    end
    for _, holder in ipairs(info and field(info, 'holders') or {}) do
      listed = listed + 1
      if field(holder, 'held-ms') >= OLD_MS then old = old + 1 end
    end
    if old == 0 or listed < most then break end
  end
  return old
end

-- Adds nothing if the exporter's user lacks a permission.
local function add_old_holds(locks)
  local size = redis.pcall('DBSIZE')
  if type(size) ~= 'number' then return end
  local is_small = size <= STEPS * COUNT and locks <= MOST_LOCKS
  -- Any number is a place to begin.
  local cursor = is_small and '0' or redis.pcall('TIME')[2] or '0'
  local seen, looked, old = {}, 0, 0
  for _ = 1, locks > 0 and STEPS or 0 do
    local page = redis.pcall('SCAN', cursor, 'TYPE', 'SLOCK-RWL', 'COUNT', COUNT)
    if page.err then return end
    cursor = page[1]
    for _, key in ipairs(page[2]) do
      if not seen[key] and looked < MOST_LOCKS then
        seen[key], looked = true, looked + 1
        local count = old_holders(key)
        if not count then return end
        old = old + count
      end
    end
    if looked == MOST_LOCKS or cursor == '0' and is_small then break end
  end
  add('slock_old_holds', tostring(old))
end

local locks = 0
for name, value in string.gmatch(redis.call('INFO', 'slock'), '(slock_[%w_]+):([^\r\n]+)') do
  if string.find(value, '=', 1, true) then
    for part, number in string.gmatch(value, '([^,=]+)=([^,]+)') do
      add(name .. '_' .. part, number)
    end
  else
    add(name, value)
    if name == 'slock_locks' then locks = tonumber(value) end
  end
end
if #found > 0 then add_old_holds(locks) end
return found
