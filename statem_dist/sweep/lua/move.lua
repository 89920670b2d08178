-- Move trials that wait to the lanes that the binding of their sweep has for them.
--
-- KEYS  1 sweep   2 lanes   3 pending trials of the lane that is left   4.. pending trials, one key per lane
-- ARGV  1 binding by which the lanes were found   2 lane that is left   3 number of lanes
--       then: lanes; then per trial: number, index of its lane (from 1)
-- TTL   none
-- Returns 1 when the lane that is left is no more, 0 when trials still wait there; -1 when the sweep has another binding.

if redis.call('HGET', KEYS[1], 'binding') ~= ARGV[1] then
  return -1
end
local lanes = tonumber(ARGV[3])
for at = 4 + lanes, #ARGV, 2 do
  local number, lane = ARGV[at], tonumber(ARGV[at + 1])
  if redis.call('ZREM', KEYS[3], number) == 1 then
    redis.call('SADD', KEYS[2], ARGV[3 + lane])
    redis.call('ZADD', KEYS[3 + lane], number, number)
  end
end
if redis.call('ZCARD', KEYS[3]) > 0 then
  return 0
end
redis.call('SREM', KEYS[2], ARGV[2])
return 1
