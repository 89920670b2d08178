-- Claim the next trial of a sweep: the lowest number among the given lanes that no bound holds back.
--
-- KEYS  1 sweep   2 running   3 claims   4 counts   5 slots   6 taken   7 holders   8 queued   9 feed
--       10.. pending trials, one key per lane
-- ARGV  1 who claims, a name for this claim alone   2 lease in ms   3 bound of the whole sweep ('' : none)
--       4 about how many changes the feed keeps   5 binding by which bounds and lanes were found
--       then per lane: number of counters, and for each counter its name and its bound
-- TTL   none
-- Returns {number, token, when it became ready (ms)}, the same for a repetition; or
--         {0, why}: 'status' (the sweep takes none now), 'full' (its bound), 'bounds' (those of its lanes, or they
--         are others by now), 'none'.

local held = redis.call('HGET', KEYS[7], ARGV[1])
if held then
  local since = redis.call('HGET', KEYS[8], held) or redis.call('HGET', KEYS[1], 'ready_at')
  return {tonumber(held), tonumber(redis.call('HGET', KEYS[3], held)), tonumber(since)}
end
if redis.call('HGET', KEYS[1], 'status') ~= 'active' then
  return {0, 'status'}
end
if redis.call('HGET', KEYS[1], 'binding') ~= ARGV[5] then
  return {0, 'bounds'}
end
if ARGV[3] ~= '' and redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[3]) then
  return {0, 'full'}
end

local best, best_lane, best_counters, waiting = nil, 0, nil, false
local at = 6
for lane = 1, #KEYS - 9 do
  local count = tonumber(ARGV[at])
  local first = redis.call('ZRANGE', KEYS[9 + lane], 0, 0)[1]
  if first and (best == nil or tonumber(first) < tonumber(best)) then
    local counters, free = {}, true
    for counter = 1, count do
      local name, bound = ARGV[at + 2 * counter - 1], tonumber(ARGV[at + 2 * counter])
      counters[counter] = name
      if tonumber(redis.call('HGET', KEYS[5], name) or '0') >= bound then
        free = false
        break
      end
    end
    if free then
      best, best_lane, best_counters = first, lane, counters
    else
      waiting = true
    end
  end
  at = at + 1 + 2 * count
end
if best == nil then
  return {0, waiting and 'bounds' or 'none'}
end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local token = redis.call('HINCRBY', KEYS[1], 'token', 1)
redis.call('ZREM', KEYS[9 + best_lane], best)
redis.call('ZADD', KEYS[2], now + ARGV[2], best)
redis.call('HSET', KEYS[3], best, token)
redis.call('HSET', KEYS[7], ARGV[1], best)
for _, name in ipairs(best_counters) do
  redis.call('HINCRBY', KEYS[5], name, 1)
end
redis.call('HSET', KEYS[6], best, table.concat({ARGV[1], unpack(best_counters)}, '\n'))
redis.call('HINCRBY', KEYS[4], 'pending', -1)
redis.call('HINCRBY', KEYS[4], 'running', 1)
redis.call('XADD', KEYS[9], 'MAXLEN', '~', ARGV[4], '*', 'n', best, 's', 'running')
redis.call('PUBLISH', 'statem:sweeps-moved', string.match(KEYS[9], '{swp:(.*)}'))
local ready = redis.call('HGET', KEYS[8], best) or redis.call('HGET', KEYS[1], 'ready_at')
return {tonumber(best), token, tonumber(ready)}
