-- Read trials with all their attempts at one moment.
--
-- KEYS  1 plan   2 outcomes   3 claims   4 tries   5 attempts
-- ARGV  numbers
-- TTL   none
-- Returns per trial that is planned: its document, its state, and how many attempts follow, oldest first.

local answer = {}
for _, number in ipairs(ARGV) do
  local planned = redis.call('HGET', KEYS[1], number)
  if planned then
    local state = redis.call('HGET', KEYS[2], number)
    if not state then
      state = redis.call('HEXISTS', KEYS[3], number) == 1 and 'running' or 'pending'
    end
    answer[#answer + 1] = planned
    answer[#answer + 1] = state
    local count_at = #answer + 1
    answer[count_at] = 0
    for attempt = 1, tonumber(redis.call('HGET', KEYS[4], number) or '0') do
      local document = redis.call('HGET', KEYS[5], number .. '.' .. attempt)
      if document then
        answer[#answer + 1] = document
        answer[count_at] = answer[count_at] + 1
      end
    end
  end
end
return answer
