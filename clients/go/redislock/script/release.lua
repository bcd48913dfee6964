-- Releases each key that is still held. Returns 1 when that was all of them, else 0.
local mine = {}
for _, key in ipairs(KEYS) do
  if is_mine(key) then
    table.insert(mine, key)
  end
end
if #mine == 0 then
  return 0
end
if call('SLOCK.MUNLOCK', mine, ARGV[1]) < #KEYS then
  return 0
end
return 1
