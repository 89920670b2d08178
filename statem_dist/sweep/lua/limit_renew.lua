-- Prolong the lease of a place of a limit that sweeps share.
--
-- KEYS  1 holders
-- ARGV  1 holder   2 lease in ms
-- TTL   none
-- Returns 1 when the holder has its place, 0 when it was given up. A lease that has run out may still be prolonged
--         while nobody has asked for a place since.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  return 0
end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
return 1
