-- expire: mark an entry stale in place, keeping its value and its expiry, and
-- end any lease.
--
-- KEYS  1 entry  2 lease
-- ARGV  1 wake channel  2 wake message  3 PUBLISH or SPUBLISH
--       4 channel of invalidations  5 key as users name it
--
-- Replies 1 if there was an entry to mark, else 0. Byte 19 of an entry holds its
-- flags, 2 is "expired by hand"; byte 16 is the format.

local marked = 0
local head = redis.pcall('GETRANGE', KEYS[1], 0, 39)
if type(head) == 'string' and #head == 40 and head:byte(17) == 2 then
  local flags = head:byte(20)
  if math.floor(flags / 2) % 2 == 0 then
    redis.call('SETRANGE', KEYS[1], 19, string.char(flags + 2))
  end
  marked = 1
end
redis.call('DEL', KEYS[2])
redis.pcall(ARGV[3], ARGV[1], ARGV[2])
redis.pcall('PUBLISH', ARGV[4], 'k' .. ARGV[5])
return marked
