-- Change the status of a sweep, if it has one of those that are expected. Cancelling ends the trials that wait.
--
-- KEYS  1 sweep   2 running   3 counts   4 outcomes   5 feed   6.. pending trials, one key per lane
-- ARGV  1 new status   2 why   3 about how many changes the feed keeps   4.. expected statuses
-- TTL   none
-- Returns {1, status before} when it has the new status, now or before; {0, status} otherwise.

local status = redis.call('HGET', KEYS[1], 'status')
local expected = status == ARGV[1]
for at = 4, #ARGV do
  expected = expected or status == ARGV[at]
end
if not expected then
  return {0, status or ''}
end
if status == ARGV[1] then
  return {1, status}
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('HSET', KEYS[1], 'status', ARGV[1], 'reason', ARGV[2])
redis.call('HSETNX', KEYS[1], 'ready_at', now)
if ARGV[1] == 'active' then
  redis.call('HDEL', KEYS[1], 'ended_at')
end
if ARGV[1] == 'cancelled' then
  for lane = 6, #KEYS do
    for _, number in ipairs(redis.call('ZRANGE', KEYS[lane], 0, -1)) do
      redis.call('HSET', KEYS[4], number, 'cancelled')
      redis.call('HINCRBY', KEYS[3], 'pending', -1)
      redis.call('HINCRBY', KEYS[3], 'cancelled', 1)
      redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[3], '*', 'n', number, 's', 'cancelled')
    end
    redis.call('DEL', KEYS[lane])
  end
end
if ARGV[1] == 'cancelled' or ARGV[1] == 'stopped' or ARGV[1] == 'finished' then
  if redis.call('ZCARD', KEYS[2]) == 0 then
    redis.call('HSET', KEYS[1], 'ended_at', now)
  end
end
redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[3], '*', 't', ARGV[1])
return {1, status}
