-- set: store an entry that no lease produced. It ends any lease and pause, and
-- forgives the key's failed attempts.
--
-- KEYS  1 entry  2 lease  3 tries  4 pause  5 failures
-- ARGV  1 entry bytes  2 hard TTL, ms  3 wake channel
--       4 wake message without its body  5 1 if the entry rides in the message
--       6 PUBLISH or SPUBLISH  7 channel of invalidations  8 key as users name it
--
-- Replies 1. For the write time see fill.

local now = redis.call('TIME')
local function four(n) return string.char(math.floor(n / 16777216) % 256, math.floor(n / 65536) % 256, math.floor(n / 256) % 256, n % 256) end
local written = four(tonumber(now[1])) .. four(tonumber(now[2]))
if ARGV[5] == '1' then
  redis.call('SET', KEYS[1], ARGV[1]:sub(1, 32) .. written .. ARGV[1]:sub(41), 'PX', ARGV[2])
else -- large: not to be copied
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  redis.call('SETRANGE', KEYS[1], 32, written)
end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
redis.pcall(ARGV[6], ARGV[3], ARGV[4] .. (ARGV[5] == '1' and ARGV[1] or ''))
redis.pcall('PUBLISH', ARGV[7], 'k' .. ARGV[8])
return 1
