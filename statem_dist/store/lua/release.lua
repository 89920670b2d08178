-- Let a scope point to no run, if it points to one that is not there.
--
-- KEYS  1 scopes   2 run hash
-- ARGV  1 scope   2 run id
-- TTL   none
-- Returns 1 when it points to nothing now, else 0.

if redis.call('EXISTS', KEYS[2]) == 1 or redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then
  return 0
end
return redis.call('HDEL', KEYS[1], ARGV[1])
