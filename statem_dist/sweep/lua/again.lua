-- Make trials that have ended wait again; what is known of their attempts stays.
--
-- KEYS  1 sweep   2 counts   3 outcomes   4 lanes   5 queued   6 feed   7 withdrawn   8.. pending trials, one per lane
-- ARGV  1 operation id   2 binding by which the lanes were found   3 about how many changes the feed keeps
--       4 number of lanes
--       then: lanes; then per trial: number, index of its lane (from 1), expected outcome
-- TTL   none
-- Returns how many this operation made wait, now or before; -1 when the sweep has another binding.
--         A trial whose outcome is another by now is left alone.

local operations = redis.call('HGET', KEYS[1], 'ops') or ''
local earlier = string.match(operations, ' ' .. ARGV[1] .. ':(%w+)')
if earlier then
  return tonumber(earlier)
end
if redis.call('HGET', KEYS[1], 'binding') ~= ARGV[2] then
  return -1
end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local lanes = tonumber(ARGV[4])
local moved = 0
for lane = 1, lanes do
  redis.call('SADD', KEYS[4], ARGV[4 + lane])
end
for at = 5 + lanes, #ARGV, 3 do
  local number, outcome = ARGV[at], ARGV[at + 2]
  if redis.call('HGET', KEYS[3], number) == outcome then
    redis.call('HDEL', KEYS[3], number)
    redis.call('SREM', KEYS[7], number)
    redis.call('ZADD', KEYS[7 + tonumber(ARGV[at + 1])], number, number)
    redis.call('HSET', KEYS[5], number, now)
    redis.call('HINCRBY', KEYS[2], outcome, -1)
    redis.call('XADD', KEYS[6], 'MAXLEN', '~', ARGV[3], '*', 'n', number, 's', 'pending')
    moved = moved + 1
  end
end
redis.call('HINCRBY', KEYS[2], 'pending', moved)
redis.call('PUBLISH', 'statem:sweeps-moved', string.match(KEYS[6], '{swp:(.*)}'))

-- The last 16 operation ids are kept, so that a retry after a lost reply gets the first answer.
operations = operations .. ' ' .. ARGV[1] .. ':' .. moved
local _, kept = string.gsub(operations, ' ', ' ')
if kept > 16 then
  operations = string.gsub(operations, '^ %S+', '')
end
redis.call('HSET', KEYS[1], 'ops', operations)
return moved
