-- reset: the operator's way to end a quarantine and a pause.
--
-- KEYS  1 tries  2 pause  3 failures
-- ARGV  1 wake channel  2 wake message  3 PUBLISH or SPUBLISH
--
-- Replies how many of the three there were.

local n = redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
redis.pcall(ARGV[3], ARGV[1], ARGV[2])
return n
