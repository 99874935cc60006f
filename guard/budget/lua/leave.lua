-- leave: a process goes, in order.
--
-- KEYS  1 state  2 inflight  3 processes
-- ARGV  1 rate  2 process  3... slots to give back
--
-- Replies {0, 0, level, paused, spent, left, reset, taken}, see state.lua.

redis.call('ZREM', KEYS[3], ARGV[2])
for i = 3, #ARGV do redis.call('ZREM', KEYS[2], ARGV[i]) end
return report(0, 0)
