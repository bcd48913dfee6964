"""What programs do without this module: the scripts of the competitors, by name."""

from __future__ import annotations

SCRIPTS = {
    # Release of a lock that is a plain key.
    "delete": """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
""",
    # All keys or none: token, ttl.
    "obtain": """
for _, key in ipairs(KEYS) do
  if redis.call('EXISTS', key) == 1 then return 0 end
end
for _, key in ipairs(KEYS) do
  redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
end
return 1
""",
    "release": """
local released = 0
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then released = released + redis.call('DEL', key) end
end
return released
""",
    # A read-write lock in the manner of Redisson's: a hash with the mode and how often each owner holds it,
    # and a key with a ttl for each hold of a reader. Keys: the hash, the beginning of the owner's other keys.
    # Arguments: the owner, the ttl, the owner as a writer.
    "read": """
local mode = redis.call('HGET', KEYS[1], 'mode')
if not mode then
  redis.call('HSET', KEYS[1], 'mode', 'read', ARGV[1], 1)
  redis.call('SET', KEYS[2] .. ':1', 1, 'PX', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return 1
end
if mode == 'read' or redis.call('HEXISTS', KEYS[1], ARGV[3]) == 1 then
  local holds = redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
  redis.call('SET', KEYS[2] .. ':' .. holds, 1, 'PX', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[2]))
  return 1
end
return 0
""",
    # Keys: the hash, the beginning of all owners' other keys. Arguments: the owner, the channel.
    "unread": """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local holds = redis.call('HINCRBY', KEYS[1], ARGV[1], -1)
if holds == 0 then redis.call('HDEL', KEYS[1], ARGV[1]) end
redis.call('DEL', KEYS[2] .. ':' .. ARGV[1] .. ':' .. holds + 1)
if redis.call('HLEN', KEYS[1]) > 1 then
  local left = 0
  for _, owner in ipairs(redis.call('HKEYS', KEYS[1])) do
    for hold = 1, tonumber(redis.call('HGET', KEYS[1], owner)) or 0 do
      left = math.max(left, redis.call('PTTL', KEYS[2] .. ':' .. owner .. ':' .. hold))
    end
  end
  if left > 0 then
    redis.call('PEXPIRE', KEYS[1], left)
    return 1
  end
end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[2], 0)
return 1
""",
}
