-- Take the lead in a duty, or keep it.
--
-- KEYS[1] who leads
-- ARGV  1 who asks   2 length of a lease in ms
-- TTL   that of the lease
-- Returns 0 when who asks leads from now on, else the ms after which the lead may be free.

local leader = redis.call('GET', KEYS[1])
if leader and leader ~= ARGV[1] then
  local left = redis.call('PTTL', KEYS[1])
  if left > 0 then
    return left
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 0
