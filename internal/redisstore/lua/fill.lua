-- fill: store a lease's outcome and give the lease back, if it is still held.
--
-- KEYS  1 entry  2 lease  3 tries  4 pause  5 failures
-- ARGV  1 token  2 entry bytes  3 hard TTL, ms  4 wake channel
--       5 wake message without its body  6 1 if the entry rides in the message
--       7 PUBLISH or SPUBLISH  8 wake message with a trace context, if there is one
--
-- Replies 1, or 0 where the lease is gone: then nothing is stored. Bytes 32 to 39 of an
-- entry hold when it was written, by this server's clock: seconds and microseconds.

local lease = redis.call('GET', KEYS[2])
if not lease or lease:sub(1, 16) ~= ARGV[1] then
  redis.call('SREM', KEYS[3], ARGV[1])
  return 0
end
local now = redis.call('TIME')
local function four(n) return string.char(math.floor(n / 16777216) % 256, math.floor(n / 65536) % 256, math.floor(n / 256) % 256, n % 256) end
local written = four(tonumber(now[1])) .. four(tonumber(now[2]))
if ARGV[6] == '1' then
  redis.call('SET', KEYS[1], ARGV[2]:sub(1, 32) .. written .. ARGV[2]:sub(41), 'PX', ARGV[3])
else -- large: not to be copied
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  redis.call('SETRANGE', KEYS[1], 32, written)
end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
if ARGV[8] then redis.pcall(ARGV[7], ARGV[4], ARGV[8]) end
redis.pcall(ARGV[7], ARGV[4], ARGV[5] .. (ARGV[6] == '1' and ARGV[2] or ''))
return 1
