-- Change the status of a sweep, if it has one of those that are expected. Cancelling ends the trials that wait.
--
-- KEYS  1 sweep   2 running   3 counts   4 outcomes   5 feed   6.. pending trials, one key per lane (to cancel)
-- ARGV  1 operation id   2 new status   3 why   4 about how many changes the feed keeps   5.. expected statuses
-- TTL   none
-- Returns {1, status before} when it has the new status, by this operation or without it; {0, status} when it had
--         none of those that are expected; {2, status} when trials wait in other lanes, too. One that is made active
--         and has nothing left to do is finished.

local status = redis.call('HGET', KEYS[1], 'status')
local operations = redis.call('HGET', KEYS[1], 'ops') or ''
local earlier = string.match(operations, ' ' .. ARGV[1] .. ':(%w+)')
if earlier then
  return {1, earlier}
end
local wanted = ARGV[2]
local expected = status == wanted
for at = 5, #ARGV do
  expected = expected or status == ARGV[at]
end
if not status or not expected then
  return {0, status or ''}
end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local pending = tonumber(redis.call('HGET', KEYS[3], 'pending') or '0')
local untold = 0
if wanted == 'cancelled' then
  local waiting = 0
  for lane = 6, #KEYS do
    waiting = waiting + redis.call('ZCARD', KEYS[lane])
  end
  if waiting ~= pending then
    return {2, status}
  end
  -- Of more changes than the feed keeps the first ones would be dropped at once.
  untold = pending - ARGV[4]
  local untold_left = untold
  for lane = 6, #KEYS do
    local numbers = redis.call('ZRANGE', KEYS[lane], 0, -1)
    for first = 1, #numbers, 500 do
      local fields = {}
      for at = first, math.min(first + 499, #numbers) do
        fields[#fields + 1] = numbers[at]
        fields[#fields + 1] = 'cancelled'
        untold_left = untold_left - 1
        if untold_left < 0 then
          redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[4], '*', 'n', numbers[at], 's', 'cancelled')
        end
      end
      redis.call('HSET', KEYS[4], unpack(fields))
    end
    redis.call('DEL', KEYS[lane])
  end
  redis.call('HINCRBY', KEYS[3], 'pending', -pending)
  redis.call('HINCRBY', KEYS[3], 'cancelled', pending)
end

if status ~= wanted then
  local ended = redis.call('ZCARD', KEYS[2]) == 0
  if wanted == 'active' and ended and pending == 0 then
    wanted = 'finished'
  end
  redis.call('HSET', KEYS[1], 'status', wanted, 'reason', ARGV[3])
  redis.call('HSETNX', KEYS[1], 'ready_at', now)
  if wanted == 'active' or wanted == 'paused' then
    redis.call('HDEL', KEYS[1], 'ended_at')
  elseif ended then
    redis.call('HSET', KEYS[1], 'ended_at', now)
  end
  -- Trials have come or gone that the feed does not tell of: whoever watches has to read them anew.
  local anew = (status == 'planning' or untold > 0) and '1' or '0'
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[4], '*', 't', wanted, 'r', anew)
end
redis.call('PUBLISH', 'statem:sweeps-moved', string.match(KEYS[5], '{swp:(.*)}'))

-- The last 16 operation ids are kept, so that a retry after a lost reply gets the first answer.
operations = operations .. ' ' .. ARGV[1] .. ':' .. status
local _, kept = string.gsub(operations, ' ', ' ')
if kept > 16 then
  operations = string.gsub(operations, '^ %S+', '')
end
redis.call('HSET', KEYS[1], 'ops', operations)
return {1, status}
