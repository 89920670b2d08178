-- Read the states of all trials of a sweep, and the position of its feed, at one moment.
--
-- KEYS  1 sweep   2 counts   3 feed   4 plan   5 outcomes   6 running
-- TTL   none
-- Returns {status, reason, counts, newest position of the feed, numbers that are planned, outcomes by number,
--         numbers under way}; nothing when there is no such sweep.

local status = redis.call('HGET', KEYS[1], 'status')
if not status then
  return {}
end
local newest = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
return {
  status,
  redis.call('HGET', KEYS[1], 'reason') or '',
  redis.call('HGETALL', KEYS[2]),
  newest and newest[1] or '0-0',
  redis.call('HKEYS', KEYS[4]),
  redis.call('HGETALL', KEYS[5]),
  redis.call('ZRANGE', KEYS[6], 0, -1),
}
