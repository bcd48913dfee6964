#!lua flags=no-writes,allow-stale
-- What INFO slock shows, for redis_exporter: redis_exporter --script redis_exporter.lua
-- Names and values alternate, all of them strings. `slock_wait_ms:p50=1,p99=9` becomes two names,
-- slock_wait_ms_p50 and slock_wait_ms_p99.
local found = {}

local function add(name, value)
  found[#found + 1] = name
  found[#found + 1] = value
end

for field, value in string.gmatch(redis.call('INFO', 'slock'), '(slock_[%w_]+):([^\r\n]+)') do
  if string.find(value, '=', 1, true) then
    for part, number in string.gmatch(value, '([^,=]+)=([^,]+)') do
      add(field .. '_' .. part, number)
    end
  else
    add(field, value)
  end
end
return found
