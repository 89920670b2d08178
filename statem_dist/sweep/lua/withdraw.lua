-- End trials that wait and that their sweep plans no longer.
--
-- KEYS  1 sweep   2 running   3 counts   4 outcomes   5 feed   6 withdrawn   7.. pending trials, one key per lane
-- ARGV  1 operation id   2 binding by which the lanes were found   3 about how many changes the feed keeps
--       then per trial: number, index of its lane (from 1)
-- TTL   none
-- Returns how many this operation ended, now or before; -1 when the sweep has another binding.
--         A trial that does not wait is left alone.

local operations = redis.call('HGET', KEYS[1], 'ops') or ''
local earlier = string.match(operations, ' ' .. ARGV[1] .. ':(%w+)')
if earlier then
  return tonumber(earlier)
end
if redis.call('HGET', KEYS[1], 'binding') ~= ARGV[2] then
  return -1
end

local ended = 0
for at = 4, #ARGV, 2 do
  local number = ARGV[at]
  if redis.call('ZREM', KEYS[6 + tonumber(ARGV[at + 1])], number) == 1 then
    redis.call('HSET', KEYS[4], number, 'cancelled')
    redis.call('SADD', KEYS[6], number)
    redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[3], '*', 'n', number, 's', 'cancelled')
    ended = ended + 1
  end
end
local left = redis.call('HINCRBY', KEYS[3], 'pending', -ended)
redis.call('HINCRBY', KEYS[3], 'cancelled', ended)

-- Nobody else would notice that nothing is left to be done. Of one that is paused that is for whoever lets it go on.
local status = redis.call('HGET', KEYS[1], 'status')
if ended > 0 and left == 0 and redis.call('ZCARD', KEYS[2]) == 0 and
    (status == 'active' or status == 'stopped') then
  local clock = redis.call('TIME')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  redis.call('HSET', KEYS[1], 'status', 'finished', 'reason', '', 'ended_at', now)
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[3], '*', 't', 'finished')
end
redis.call('PUBLISH', 'statem:sweeps-moved', string.match(KEYS[5], '{swp:(.*)}'))

-- The last 16 operation ids are kept, so that a retry after a lost reply gets the first answer.
operations = operations .. ' ' .. ARGV[1] .. ':' .. ended
local _, kept = string.gsub(operations, ' ', ' ')
if kept > 16 then
  operations = string.gsub(operations, '^ %S+', '')
end
redis.call('HSET', KEYS[1], 'ops', operations)
return ended
