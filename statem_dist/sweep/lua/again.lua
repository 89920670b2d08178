-- Make trials that have ended wait again; what is known of their attempts stays.
--
-- KEYS  1 counts   2 outcomes   3 queued   4 feed   5 withdrawn   6.. pending trials, one key per lane
-- ARGV  1 about how many changes the feed keeps, then per trial: number, index of its lane (from 1), expected outcome
-- TTL   none
-- Returns how many wait again; one whose outcome is another by now is left alone.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local moved = 0
for at = 2, #ARGV, 3 do
  local number, outcome = ARGV[at], ARGV[at + 2]
  if redis.call('HGET', KEYS[2], number) == outcome then
    redis.call('HDEL', KEYS[2], number)
    redis.call('SREM', KEYS[5], number)
    redis.call('ZADD', KEYS[5 + tonumber(ARGV[at + 1])], number, number)
    redis.call('HSET', KEYS[3], number, now)
    redis.call('HINCRBY', KEYS[1], outcome, -1)
    redis.call('HINCRBY', KEYS[1], 'pending', 1)
    redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[1], '*', 'n', number, 's', 'pending')
    moved = moved + 1
  end
end
return moved
