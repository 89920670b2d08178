-- Put another definition in the place of a sweep's own; trials under way count towards its bounds from then on.
--
-- KEYS  1 sweep   2 running   3 slots   4 taken
-- ARGV  1 operation id   2 definition   3 fingerprint   4 binding
--       then per trial that may be under way: number, how many counters it takes, and those
-- TTL   none
-- Returns {} when done, by this operation now or before; otherwise numbers under way whose counters were not given,
--         or {-1} when there is no such sweep.

if redis.call('HEXISTS', KEYS[1], 'created_by') == 0 then
  return {-1}
end
local operations = redis.call('HGET', KEYS[1], 'ops') or ''
if string.find(operations, ' ' .. ARGV[1] .. ':', 1, true) then
  return {}
end

local counters_of = {}
local at = 5
while at <= #ARGV do
  local counters = {}
  for counter = 1, tonumber(ARGV[at + 1]) do
    counters[counter] = ARGV[at + 1 + counter]
  end
  counters_of[ARGV[at]] = counters
  at = at + 2 + #counters
end
local numbers = redis.call('ZRANGE', KEYS[2], 0, -1)
local missing = {}
for _, number in ipairs(numbers) do
  if not counters_of[number] then
    missing[#missing + 1] = tonumber(number)
  end
end
if #missing > 0 then
  return missing
end

redis.call('DEL', KEYS[3])
for _, number in ipairs(numbers) do
  local holder = string.match(redis.call('HGET', KEYS[4], number), '[^\n]+')
  for _, name in ipairs(counters_of[number]) do
    redis.call('HINCRBY', KEYS[3], name, 1)
  end
  redis.call('HSET', KEYS[4], number, table.concat({holder, unpack(counters_of[number])}, '\n'))
end
redis.call('HSET', KEYS[1], 'definition', ARGV[2], 'fingerprint', ARGV[3], 'binding', ARGV[4])
redis.call('HINCRBY', KEYS[1], 'revision', 1)

-- The last 16 operation ids are kept, so that a retry after a lost reply gets the first answer.
operations = operations .. ' ' .. ARGV[1] .. ':done'
local _, kept = string.gsub(operations, ' ', ' ')
if kept > 16 then
  operations = string.gsub(operations, '^ %S+', '')
end
redis.call('HSET', KEYS[1], 'ops', operations)
return {}
