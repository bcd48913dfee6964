-- Returns the least of the ttls in milliseconds, or less than 1 when one of the keys is lost.
if not all_mine() then
  return -2
end
return call('SLOCK.MPTTL', KEYS, ARGV[1])
