-- ARGV[3] is the ttl in milliseconds. Returns 0 when one of the keys is lost; then nothing has changed.
if not all_mine() then
  return 0
end
return call('SLOCK.MEXTEND', KEYS, ARGV[1], ARGV[3])
