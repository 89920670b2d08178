-- Add trials to a sweep; those that it has already stay as they are.
--
-- KEYS  1 sweep   2 plan   3 counts   4 lanes   5 queued   6 feed
--       7.. pending trials, one key per lane
-- ARGV  1 operation id   2 binding by which the lanes were found   3 when they become ready in ms, 0: with the sweep
--       4 about how many changes the feed keeps   5 number of lanes
--       then: lanes; then per trial: number, index of its lane (from 1), document
-- TTL   none
-- Returns how many were new, by this operation now or before; -1 when the sweep has another binding.

local operations = redis.call('HGET', KEYS[1], 'ops') or ''
local earlier = string.match(operations, ' ' .. ARGV[1] .. ':(%w+)')
if earlier then
  return tonumber(earlier)
end
if redis.call('HGET', KEYS[1], 'binding') ~= ARGV[2] then
  return -1
end

local lanes = tonumber(ARGV[5])
local added = 0
for lane = 1, lanes do
  redis.call('SADD', KEYS[4], ARGV[5 + lane])
end
for at = 6 + lanes, #ARGV, 3 do
  local number, lane = ARGV[at], tonumber(ARGV[at + 1])
  if redis.call('HSETNX', KEYS[2], number, ARGV[at + 2]) == 1 then
    redis.call('ZADD', KEYS[6 + lane], number, number)
    if ARGV[3] ~= '0' then
      redis.call('HSET', KEYS[5], number, ARGV[3])
    end
    added = added + 1
  end
end
redis.call('HINCRBY', KEYS[3], 'pending', added)
local status = redis.call('HGET', KEYS[1], 'status')
if added > 0 and status ~= 'planning' then
  -- Whoever watches has to read the trials anew; those of a sweep that is being stored are told when it begins.
  redis.call('XADD', KEYS[6], 'MAXLEN', '~', ARGV[4], '*', 't', status, 'r', '1')
  redis.call('PUBLISH', 'statem:sweeps-moved', string.match(KEYS[6], '{swp:(.*)}'))
end

-- The last 16 operation ids are kept, so that a retry after a lost reply gets the first answer.
operations = operations .. ' ' .. ARGV[1] .. ':' .. added
local _, kept = string.gsub(operations, ' ', ' ')
if kept > 16 then
  operations = string.gsub(operations, '^ %S+', '')
end
redis.call('HSET', KEYS[1], 'ops', operations)
return added
