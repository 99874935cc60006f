-- delete: remove an entry and end any lease. Tries and pause stay: invalidating
-- a key neither forgives it nor ends its upstream's pause.
--
-- KEYS  1 entry  2 lease
-- ARGV  1 wake channel  2 wake message  3 PUBLISH or SPUBLISH
--       4 channel of invalidations  5 key as users name it
--
-- Replies how many of the two there were.

local n = redis.call('DEL', KEYS[1], KEYS[2])
redis.pcall(ARGV[3], ARGV[1], ARGV[2])
redis.pcall('PUBLISH', ARGV[4], 'k' .. ARGV[5])
return n
