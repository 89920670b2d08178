-- Read everything that the store says of one run besides its events, at one moment.
--
-- KEYS  1 run hash   2 event stream   3.. sorted sets in which the run may stand
-- ARGV  1 run id
-- TTL   none
-- Returns {server time in ms, flat list of the hash's fields and values, id of the last event ('' : none), number of
--         events, then per sorted set: the run's score, or ''}.

local clock = redis.call('TIME')
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)
local found = {
  clock[1] * 1000 + math.floor(clock[2] / 1000),
  redis.call('HGETALL', KEYS[1]),
  last[1] and last[1][1] or '',
  redis.call('XLEN', KEYS[2]),
}
for number = 3, #KEYS do
  found[#found + 1] = redis.call('ZSCORE', KEYS[number], ARGV[1]) or ''
end
return found
