-- Read what has changed in a sweep after a position of its feed, and where it stands, at one moment.
--
-- KEYS  1 sweep   2 counts   3 feed
-- ARGV  1 beginning of the range: '(' and the position   2 how many changes at most
-- TTL   none
-- Returns {status, reason, counts, length of the feed, its oldest position, its newest one, changes}; nothing when
--         there is no such sweep.

local status = redis.call('HGET', KEYS[1], 'status')
if not status then
  return {}
end
local oldest = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', 1)[1]
local newest = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
return {
  status,
  redis.call('HGET', KEYS[1], 'reason') or '',
  redis.call('HGETALL', KEYS[2]),
  redis.call('XLEN', KEYS[3]),
  oldest and oldest[1] or '0-0',
  newest and newest[1] or '0-0',
  redis.call('XRANGE', KEYS[3], ARGV[1], '+', 'COUNT', ARGV[2]),
}
