-- Write what is known of an attempt that is under way, if the claim is still the latest and its lease has not run out.
--
-- KEYS  1 running   2 claims   3 tries   4 attempts
-- ARGV  1 number   2 token   3 attempt   4 document   5 lease in ms
-- TTL   none
-- Returns 1 when written and the lease prolonged, 0 when the claim is lost or the attempt has ended.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] or tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1])) <= now then
  return 0
end
local name = ARGV[1] .. '.' .. ARGV[3]
local before = redis.call('HGET', KEYS[4], name)
if before and before ~= ARGV[4] and cjson.decode(before).ended_at then
  return 0
end
redis.call('ZADD', KEYS[1], now + ARGV[5], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
redis.call('HSET', KEYS[4], name, ARGV[4])
return 1
