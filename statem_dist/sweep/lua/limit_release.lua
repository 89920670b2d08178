-- Give back a place of a limit that sweeps share, with which nothing was begun.
--
-- KEYS  1 holders   2 beginnings within the last minute
-- ARGV  1 holder
-- TTL   none
-- Returns 1 when the holder had a place; its latest beginning is forgotten with it. 0 otherwise.

if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then
  return 0
end
for _, begun in ipairs(redis.call('ZREVRANGE', KEYS[2], 0, -1)) do
  if string.sub(begun, string.find(begun, ' ', 1, true) + 1) == ARGV[1] then
    redis.call('ZREM', KEYS[2], begun)
    break
  end
end
return 1
