-- Replace a document, if it is still the one that was read.
--
-- KEYS[1] the document
-- ARGV[1] what was read, ARGV[2] what takes its place
-- Returns 1 when it was replaced, else 0.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
