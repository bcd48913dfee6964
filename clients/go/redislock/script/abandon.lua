-- Releases whatever an attempt without an answer was granted. What arrives later is refused for two minutes.
for _, key in ipairs(KEYS) do
  redis.call('SLOCK.CANCEL', key, ARGV[1], 'REFUSE', 120000)
end
return call('SLOCK.MUNLOCK', KEYS, ARGV[1])
