-- End trials that wait and that their sweep plans no longer.
--
-- KEYS  1 counts   2 outcomes   3 feed   4 withdrawn   5.. pending trials, one key per lane
-- ARGV  1 about how many changes the feed keeps, then: numbers
-- TTL   none
-- Returns how many were ended; one that does not wait is left alone.

local ended = 0
for at = 2, #ARGV do
  for lane = 5, #KEYS do
    if redis.call('ZREM', KEYS[lane], ARGV[at]) == 1 then
      redis.call('HSET', KEYS[2], ARGV[at], 'cancelled')
      redis.call('SADD', KEYS[4], ARGV[at])
      redis.call('HINCRBY', KEYS[1], 'pending', -1)
      redis.call('HINCRBY', KEYS[1], 'cancelled', 1)
      redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[1], '*', 'n', ARGV[at], 's', 'cancelled')
      ended = ended + 1
    end
  end
end
return ended
