-- End a claim: with an outcome, or by making its trial wait again. Whoever holds the claim does that, or whoever finds
-- its lease run out or its worker gone.
--
-- KEYS  1 sweep   2 running   3 claims   4 counts   5 slots   6 taken   7 holders   8 outcomes   9 tries   10 attempts
--       11 queued   12 feed   13 lanes   14 pending trials of its lane
-- ARGV  1 number   2 token   3 outcome ('' : it waits again)
--       4 attempt ('' : none was begun)   5 document of the attempt
--       6 when it becomes ready again (ms)   7 'any' or 'lapsed': only if the lease has run out
--       8 cost in millionths of a dollar   9 input tokens   10 output tokens   11 about how many changes the feed keeps
--       12 its lane   13 binding by which that was found
-- TTL   none
-- Returns 1 when done, now or by the same call before; 0 when the claim is not there any more, or its lease lives;
--         -1 when the trial was to wait again and the sweep has another binding.

local number, state = ARGV[1], ARGV[3]
local name = number .. '.' .. ARGV[4]
if redis.call('HGET', KEYS[3], number) ~= ARGV[2] then
  local same
  if ARGV[4] ~= '' then
    same = redis.call('HGET', KEYS[10], name) == ARGV[5]
  elseif state ~= '' then
    same = redis.call('HGET', KEYS[8], number) == state
  else
    same = redis.call('HGET', KEYS[11], number) == ARGV[6] or redis.call('HGET', KEYS[8], number) == 'cancelled'
  end
  return same and 1 or 0
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
if ARGV[7] == 'lapsed' and tonumber(redis.call('ZSCORE', KEYS[2], number)) > now then
  return 0
end
local status = redis.call('HGET', KEYS[1], 'status')
-- What was withdrawn while a worker had it does not begin again.
if state == '' and status == 'cancelled' then
  state = 'cancelled'
end
if state == '' and redis.call('HGET', KEYS[1], 'binding') ~= ARGV[13] then
  return -1
end

redis.call('ZREM', KEYS[2], number)
redis.call('HDEL', KEYS[3], number)
local holder = nil
for counter in string.gmatch(redis.call('HGET', KEYS[6], number), '[^\n]+') do
  if holder then
    redis.call('HINCRBY', KEYS[5], counter, -1)
  else
    holder = counter
  end
end
redis.call('HDEL', KEYS[6], number)
redis.call('HDEL', KEYS[7], holder)
if ARGV[4] ~= '' then
  -- An attempt that has ended is never written again.
  local before = redis.call('HGET', KEYS[10], name)
  if not before or not cjson.decode(before).ended_at then
    redis.call('HSET', KEYS[9], number, ARGV[4])
    redis.call('HSET', KEYS[10], name, ARGV[5])
  end
end
redis.call('HINCRBY', KEYS[1], 'cost', ARGV[8])
redis.call('HINCRBY', KEYS[1], 'input', ARGV[9])
redis.call('HINCRBY', KEYS[1], 'output', ARGV[10])

redis.call('HINCRBY', KEYS[4], 'running', -1)
if state == '' then
  redis.call('SADD', KEYS[13], ARGV[12])
  redis.call('ZADD', KEYS[14], number, number)
  redis.call('HSET', KEYS[11], number, ARGV[6])
  redis.call('HINCRBY', KEYS[4], 'pending', 1)
  redis.call('XADD', KEYS[12], 'MAXLEN', '~', ARGV[11], '*', 'n', number, 's', 'pending')
else
  redis.call('HSET', KEYS[8], number, state)
  redis.call('HINCRBY', KEYS[4], state, 1)
  redis.call('XADD', KEYS[12], 'MAXLEN', '~', ARGV[11], '*', 'n', number, 's', state)
end
if redis.call('ZCARD', KEYS[2]) == 0 then
  local left = tonumber(redis.call('HGET', KEYS[4], 'pending') or '0')
  if left == 0 and status ~= 'cancelled' and status ~= 'planning' then
    redis.call('HSET', KEYS[1], 'status', 'finished', 'reason', '', 'ended_at', now)
    redis.call('XADD', KEYS[12], 'MAXLEN', '~', ARGV[11], '*', 't', 'finished')
  elseif status ~= 'active' and status ~= 'paused' then
    redis.call('HSET', KEYS[1], 'ended_at', now)
  end
end
redis.call('PUBLISH', 'statem:sweeps-moved', string.match(KEYS[12], '{swp:(.*)}'))
return 1
