-- Prolong the lease of a claim, if it has not run out.
--
-- KEYS  1 run hash
-- ARGV  1 token   2 lease in ms
-- TTL   none
-- Returns 1 when prolonged, 0 when the lease is gone or has expired: then the claim is lost.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local field = 'lease:' .. ARGV[1]
local expiry = tonumber(redis.call('HGET', KEYS[1], field) or '0')
if expiry <= now then
  return 0
end
redis.call('HSET', KEYS[1], field, now + ARGV[2])
return 1
