-- ARGV[3] is the ttl in milliseconds. Returns 0 when refused.

-- A token that holds some of the keys is refused until it holds all or none: two tasks that share a token,
-- one with a part of the other's keys, must not both hold them.
local held = 0
for _, key in ipairs(KEYS) do
  if redis.call('SLOCK.PTTL', key, ARGV[1]) > 0 then
    held = held + 1
  end
end
if held > 0 and held < #KEYS then
  return 0
end
local fence = call('SLOCK.MLOCK', KEYS, ARGV[1], ARGV[3], 'META', ARGV[2])
if held > 0 and fence > 0 then
  call('SLOCK.MEXTEND', KEYS, ARGV[1], ARGV[3]) -- the new ttl may be shorter, which MLOCK does not make it
end
return fence
