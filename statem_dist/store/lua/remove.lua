-- Remove a run that has ended, with everything that is kept of it.
--
-- KEYS  1 run hash   2 event stream   3 status index   4 due-index   5 list of runs
--       6.. label indices, then whatever else is kept of the run
-- ARGV  1 run id   2 version the caller has seen   3 number of label indices
-- TTL   none
-- Returns 1 when removed; 0 when the run is at another version or not there, when the index of the status in which it
--         has ended does not have it, or when work of it is still claimed: then nothing was removed.

if redis.call('HGET', KEYS[1], 'v') ~= ARGV[2] or not redis.call('ZSCORE', KEYS[3], ARGV[1]) then
  return 0
end
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if string.sub(field, 1, 6) == 'lease:' then
    return 0
  end
end
local labels = tonumber(ARGV[3])
for number = 3, 5 + labels do
  redis.call('ZREM', KEYS[number], ARGV[1])
end
redis.call('UNLINK', KEYS[1], KEYS[2])
for number = 6 + labels, #KEYS do
  redis.call('UNLINK', KEYS[number])
end
return 1
