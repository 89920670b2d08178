-- Prolong the leases of trials of one sweep, those that have not run out.
--
-- KEYS  1 sweep   2 running   3 claims
-- ARGV  1 lease in ms, then per trial: number, token
-- TTL   none
-- Returns {status of the sweep, tokens of the claims that are lost...}.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local answer = {redis.call('HGET', KEYS[1], 'status') or ''}
for at = 2, #ARGV, 2 do
  local number = ARGV[at]
  local expiry = tonumber(redis.call('ZSCORE', KEYS[2], number) or '0')
  if redis.call('HGET', KEYS[3], number) == ARGV[at + 1] and expiry > now then
    redis.call('ZADD', KEYS[2], now + ARGV[1], number)
  else
    answer[#answer + 1] = ARGV[at + 1]
  end
end
return answer
