-- Read one run and the server's clock.
--
-- KEYS  1 run hash
-- TTL   none
-- Returns {server time in ms, flat list of the hash's fields and values}.

local clock = redis.call('TIME')
return {clock[1] * 1000 + math.floor(clock[2] / 1000), redis.call('HGETALL', KEYS[1])}
