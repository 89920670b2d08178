-- End a claim: with an outcome, or by making its trial wait again. Whoever holds the claim does that, or whoever finds
-- its lease run out or its worker gone.
--
-- KEYS  1 sweep   2 running   3 claims   4 counts   5 slots   6 taken   7 holders   8 outcomes   9 tries   10 attempts
--       11 queued   12 feed   13 pending trials of its lane
-- ARGV  1 number   2 token   3 outcome ('' : it waits again)
--       4 attempt ('' : none was begun)   5 document of the attempt
--       6 when it becomes ready again (ms)   7 'any' or 'lapsed': only if the lease has run out
--       8 cost in millionths of a dollar   9 input tokens   10 output tokens   11 about how many changes the feed keeps
-- TTL   none
-- Returns 1 when done, now or by the same call before; 0 when the claim is not there any more, or its lease lives.

local number = ARGV[1]
if redis.call('HGET', KEYS[3], number) ~= ARGV[2] then
  local same = ARGV[4] ~= '' and redis.call('HGET', KEYS[10], number .. '.' .. ARGV[4]) == ARGV[5]
  return same and 1 or 0
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if ARGV[7] == 'lapsed' and tonumber(redis.call('ZSCORE', KEYS[2], number)) > now then
  return 0
end

redis.call('ZREM', KEYS[2], number)
redis.call('HDEL', KEYS[3], number)
local holder = nil
for name in string.gmatch(redis.call('HGET', KEYS[6], number), '[^\n]+') do
  if holder then
    redis.call('HINCRBY', KEYS[5], name, -1)
  else
    holder = name
  end
end
redis.call('HDEL', KEYS[6], number)
redis.call('HDEL', KEYS[7], holder)
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[9], number, ARGV[4])
  redis.call('HSET', KEYS[10], number .. '.' .. ARGV[4], ARGV[5])
end
redis.call('HINCRBY', KEYS[1], 'cost', ARGV[8])
redis.call('HINCRBY', KEYS[1], 'input', ARGV[9])
redis.call('HINCRBY', KEYS[1], 'output', ARGV[10])

local state = ARGV[3]
-- What was withdrawn while a worker had it does not begin again.
if state == '' and redis.call('HGET', KEYS[1], 'status') == 'cancelled' then
  state = 'cancelled'
end
redis.call('HINCRBY', KEYS[4], 'running', -1)
if state == '' then
  redis.call('ZADD', KEYS[13], number, number)
  redis.call('HSET', KEYS[11], number, ARGV[6])
  redis.call('HINCRBY', KEYS[4], 'pending', 1)
  redis.call('XADD', KEYS[12], 'MAXLEN', '~', ARGV[11], '*', 'n', number, 's', 'pending')
  return 1
end
redis.call('HSET', KEYS[8], number, state)
redis.call('HINCRBY', KEYS[4], state, 1)
redis.call('XADD', KEYS[12], 'MAXLEN', '~', ARGV[11], '*', 'n', number, 's', state)
if redis.call('ZCARD', KEYS[2]) == 0 then
  local status = redis.call('HGET', KEYS[1], 'status')
  local left = tonumber(redis.call('HGET', KEYS[4], 'pending') or '0')
  if left == 0 and status ~= 'cancelled' and status ~= 'planning' then
    redis.call('HSET', KEYS[1], 'status', 'finished', 'reason', '', 'ended_at', now)
    redis.call('XADD', KEYS[12], 'MAXLEN', '~', ARGV[11], '*', 't', 'finished')
  elseif status ~= 'active' and status ~= 'paused' then
    redis.call('HSET', KEYS[1], 'ended_at', now)
  end
end
return 1
