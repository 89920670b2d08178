-- Keep that a host begins no trial of a sweep, if there is such a sweep.
--
-- KEYS  1 sweep   2 holds
-- ARGV  1 host   2 why, and until when that counts
-- TTL   none
-- Returns 1 when it is kept.

if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1
