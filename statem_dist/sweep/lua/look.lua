-- Read a sweep, its counts and its holds at one moment.
--
-- KEYS  1 sweep   2 counts   3 holds
-- TTL   none
-- Returns the three hashes as they are.

return {redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3])}
