-- Add trials to a sweep; those that it has already stay as they are.
--
-- KEYS  1 plan   2 counts   3 lanes   4 queued
--       5.. pending trials, one key per lane
-- ARGV  1 when they become ready in ms, 0: with the sweep   2 number of lanes
--       then: lanes; then per trial: number, index of its lane (from 1), document
-- TTL   none
-- Returns how many were new.

local lanes = tonumber(ARGV[2])
local added = 0
for lane = 1, lanes do
  redis.call('SADD', KEYS[3], ARGV[2 + lane])
end
for at = 3 + lanes, #ARGV, 3 do
  local number, lane = ARGV[at], tonumber(ARGV[at + 1])
  if redis.call('HSETNX', KEYS[1], number, ARGV[at + 2]) == 1 then
    redis.call('ZADD', KEYS[4 + lane], number, number)
    redis.call('HINCRBY', KEYS[2], 'pending', 1)
    if ARGV[1] ~= '0' then
      redis.call('HSET', KEYS[4], number, ARGV[1])
    end
    added = added + 1
  end
end
return added
