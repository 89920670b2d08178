-- Remove the reminder of a run that does not exist (any more).
--
-- KEYS[1] the run, KEYS[2] the shard's due-index
-- ARGV[1] run id
-- Returns 1 when a reminder was removed, else 0.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
return redis.call('ZREM', KEYS[2], ARGV[1])
