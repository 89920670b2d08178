-- Reserve a content for a sweep that is about to be created, unless another one has it by now.
--
-- KEYS  1 the sweep of that content
-- ARGV  1 the sweep that had it so far ('' : none)   2 the sweep that is to have it
-- TTL   none
-- Returns the sweep that has it now.

local holder = redis.call('GET', KEYS[1])
if (holder or '') ~= ARGV[1] then
  return holder
end
redis.call('SET', KEYS[1], ARGV[2])
return ARGV[2]
