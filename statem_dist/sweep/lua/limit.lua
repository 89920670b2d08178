-- Take a place of a limit that sweeps share.
--
-- KEYS  1 holders   2 beginnings within the last minute
-- ARGV  1 holder   2 lease in ms   3 how many at once ('' : any number)   4 how many within 60 s ('' : any number)
-- TTL   the beginnings: a minute
-- Returns {1, 0, 0} when taken, now or before; {0, places in use, ms until the next may begin (0: when one ends)}.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - 60000)
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  return {1, 0, 0}
end
local used = redis.call('ZCARD', KEYS[1])
if ARGV[3] ~= '' and used >= tonumber(ARGV[3]) then
  return {0, used, 0}
end
local begun = redis.call('ZCARD', KEYS[2])
if ARGV[4] ~= '' and begun >= tonumber(ARGV[4]) then
  -- Another sweep may allow more of them, so that it is not always the oldest for which there is to be room.
  local leaving = begun - tonumber(ARGV[4])
  local stamp = redis.call('ZRANGE', KEYS[2], leaving, leaving, 'WITHSCORES')
  return {0, used, tonumber(stamp[2]) + 60000 - now}
end
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
-- A holder may begin more than once within a minute, and several of them in one moment.
redis.call('ZADD', KEYS[2], now, clock[1] .. '.' .. clock[2] .. '-' .. begun .. ' ' .. ARGV[1])
redis.call('PEXPIRE', KEYS[2], 60000)
return {1, 0, 0}
