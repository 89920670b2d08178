-- Look again later at a run that owes work, and send its messages once more.
--
-- KEYS  1 run hash   2 due-index   3.. the broker's queues in the order of the messages
-- ARGV  1 run id   2 version the caller has seen   3 look again in ms   4 score the caller has seen
--       5 1 if work is dispatched, here or on another broker   6.. messages
-- TTL   none
-- Returns 1 when done, 0 when the run has changed or another reaper was faster.

if redis.call('HGET', KEYS[1], 'v') ~= ARGV[2] then
  return 0
end
if redis.call('ZSCORE', KEYS[2], ARGV[1]) ~= ARGV[4] then
  return 0
end
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
for number = 6, #ARGV do
  redis.call('LPUSH', KEYS[number - 3], ARGV[number])
end
if ARGV[5] == '1' then
  redis.call('HINCRBY', KEYS[1], 'hints', 1)
end
return 1
