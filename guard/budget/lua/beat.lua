-- beat: a process is there, and so are its calls.
--
-- KEYS  1 state  2 inflight  3 processes
-- ARGV  1 rate         units a microsecond
--       2 process      16 hexadecimal digits
--       3 process TTL  microseconds
--       4 slot TTL     microseconds
--       5...           slots to renew, also those that were lost: to an eviction, a
--                      failover, or as the process was thought to have died
--
-- Replies {processes, calls in flight, level, paused, spent, left, reset, taken}, see
-- state.lua.

local function text(t) return string.format('%.0f', t) end

redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', text(now))
redis.call('ZADD', KEYS[3], text(now + ARGV[3]), ARGV[2])
redis.call('PEXPIRE', KEYS[3], text(ARGV[3] / 1000 + 60000))
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', text(now))
for i = 5, #ARGV do
  redis.call('ZADD', KEYS[2], text(now + ARGV[4]), ARGV[i])
end
if #ARGV >= 5 then redis.call('PEXPIRE', KEYS[2], text(ARGV[4] / 1000 + 60000)) end
leak(now)
return report(redis.call('ZCARD', KEYS[3]), redis.call('ZCARD', KEYS[2]))
