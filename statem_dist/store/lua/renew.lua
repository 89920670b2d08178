-- Prolong the lease of a claim, if it has not run out.
--
-- KEYS  1 run hash
-- ARGV  1 token   2 lease in ms   3 operation that made the claim ('' : not known)
-- TTL   none
-- Returns 1 when prolonged, 0 when the lease is gone, has expired or is of another claim: then the claim is lost.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local field = 'lease:' .. ARGV[1]
local lease = redis.call('HGET', KEYS[1], field) or '0'
local expiry, operation = string.match(lease, '^(%d+) ?(%S*)$')
expiry = tonumber(expiry)
if expiry <= now then
  return 0
end
-- The same token of another future, when this store has lost writes.
if operation ~= ARGV[3] and operation ~= '' and ARGV[3] ~= '' then
  return 0
end
redis.call('HSET', KEYS[1], field, (now + ARGV[2]) .. ' ' .. operation)
return 1
