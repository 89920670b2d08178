-- Read where every trial of a sweep is, and who holds what, at one moment.
--
-- KEYS  1 sweep   2 plan   3 running   4 claims   5 holders   6 slots   7 taken   8 outcomes   9 counts   10 lanes
--       11.. pending trials, one key per lane
-- TTL   none
-- Returns {status ('' : there is no such sweep), numbers of the plan, running numbers, flat claims, flat holders,
--         flat slots, flat taken, flat outcomes, flat counts, lanes, then per given lane: the numbers that wait}.

local found = {
  redis.call('HGET', KEYS[1], 'status') or '',
  redis.call('HKEYS', KEYS[2]),
  redis.call('ZRANGE', KEYS[3], 0, -1),
}
for number = 4, 9 do
  found[#found + 1] = redis.call('HGETALL', KEYS[number])
end
found[#found + 1] = redis.call('SMEMBERS', KEYS[10])
for number = 11, #KEYS do
  found[#found + 1] = redis.call('ZRANGE', KEYS[number], 0, -1)
end
return found
