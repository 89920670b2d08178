-- Give up the lead in a duty.
--
-- KEYS[1] who leads
-- ARGV[1] who gives it up
-- TTL     none
-- Returns 1 when it was theirs, else 0.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
return redis.call('DEL', KEYS[1])
