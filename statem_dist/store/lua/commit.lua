-- Commit one decision: compare the version, then write document, events, indices, leases and messages.
--
-- KEYS  1 run hash   2 event stream   3 due-index   4 list of runs
--       5 status index to leave ('' in ARGV[7] when the run is new)   6 status index to enter
--       7 feed of commits
--       8.. label indices of a new run, then the broker's queues in the order of the messages, then the receipt
-- ARGV  1 run id   2 operation id   3 expected version (0: the run must not exist)   4 new version
--       5 document   6 due in ms ('' : nothing is owed)   7 status to leave   8 creation time (ms)
--       9 channel to announce on
--       10 number of label indices, 11 of events, 12 of leases taken, 13 of leases ended, 14 of messages
--       15 about how many commits the feed keeps   16 receipt ('' : none)   17 its life in seconds
--       18 operation that wrote the expected version ('' : not known)
--       then: events; leases taken as token, ms; leases ended as token; messages
-- TTL   the receipt's
-- Returns {1, version} when committed, now or by the same operation before; {0, current version} otherwise.

local stored = redis.call('HMGET', KEYS[1], 'v', 'ops')
local current = tonumber(stored[1] or '0')
local operations = stored[2] or ''

local earlier = string.match(operations, ' ' .. ARGV[2] .. ':(%d+)')
if earlier then
  return {1, tonumber(earlier)}
end
if current ~= tonumber(ARGV[3]) then
  return {0, current}
end
-- The same version of another future, when this store has lost writes: not what was decided on.
if ARGV[18] ~= '' and string.match(operations, ' (%x+):%d+$') ~= ARGV[18] then
  return {0, current}
end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- The last 16 operation ids are kept, so that a retry after a lost reply gets the first answer.
operations = operations .. ' ' .. ARGV[2] .. ':' .. ARGV[4]
local _, kept = string.gsub(operations, ' ', ' ')
if kept > 16 then
  operations = string.gsub(operations, '^ %S+', '')
end

redis.call('HSET', KEYS[1], 'v', ARGV[4], 'doc', ARGV[5], 'ops', operations)
redis.call('HDEL', KEYS[1], 'hints')

local labels, events = tonumber(ARGV[10]), tonumber(ARGV[11])
local taken, ended, messages = tonumber(ARGV[12]), tonumber(ARGV[13]), tonumber(ARGV[14])
local at = 19
for number = 1, events do
  redis.call('XADD', KEYS[2], (current + number) .. '-0', 'e', ARGV[at])
  at = at + 1
end
for _ = 1, taken do
  redis.call('HSET', KEYS[1], 'lease:' .. ARGV[at], (now + ARGV[at + 1]) .. ' ' .. ARGV[2])
  at = at + 2
end
for _ = 1, ended do
  redis.call('HDEL', KEYS[1], 'lease:' .. ARGV[at])
  at = at + 1
end

if ARGV[6] == '' then
  redis.call('ZREM', KEYS[3], ARGV[1])
else
  redis.call('ZADD', KEYS[3], now + ARGV[6], ARGV[1])
end

if current == 0 then
  redis.call('ZADD', KEYS[4], ARGV[8], ARGV[1])
  for number = 1, labels do
    redis.call('ZADD', KEYS[7 + number], ARGV[8], ARGV[1])
  end
end
if KEYS[5] ~= KEYS[6] or ARGV[7] == '' then
  if ARGV[7] ~= '' then
    redis.call('ZREM', KEYS[5], ARGV[1])
  end
  redis.call('ZADD', KEYS[6], ARGV[8], ARGV[1])
end

for number = 1, messages do
  redis.call('LPUSH', KEYS[7 + labels + number], ARGV[at])
  at = at + 1
end
redis.call('XADD', KEYS[7], 'MAXLEN', '~', ARGV[15], '*', 'r', ARGV[1], 'a', current + 1, 'v', ARGV[4])
if ARGV[16] ~= '' then
  redis.call('SET', KEYS[#KEYS], ARGV[16], 'EX', ARGV[17])
end
redis.call('PUBLISH', ARGV[9], ARGV[1] .. ' ' .. ARGV[4])
return {1, tonumber(ARGV[4])}
