-- clock: read the clock that every change of a tag advances, and make it if there is
-- none. Beside the clock stands when a tag of each bucket was last changed, so that
-- the change of a tag is still known after Redis has evicted the tag's record.
--
-- KEYS  1 clock
-- ARGV  1 epoch for a new clock, 8 bytes  2 by how much to advance it
--       3 at least so high, before that   4 epoch that 3 is of; empty: none
--       5 and on: buckets of the tags that are about to be changed; if the clock is not
--         advanced, buckets that are asked about
--
-- Replies {epoch, n}, and for each bucket that was asked about when a tag of it was
-- last changed; 0: never.

local clock = redis.call('HMGET', KEYS[1], 'e', 'n')
local epoch, n, step = clock[1], tonumber(clock[2] or ''), tonumber(ARGV[2])
if not epoch or #epoch ~= 8 or not n then
  epoch, n = ARGV[1], 0
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'e', epoch, 'n', '0')
end
if epoch == ARGV[4] and n < tonumber(ARGV[3]) then -- it has gone back: a failover
  redis.call('HSET', KEYS[1], 'n', ARGV[3])
end
local reply = {epoch, redis.call('HINCRBY', KEYS[1], 'n', ARGV[2])}
for i = 5, #ARGV do
  if step > 0 then
    redis.call('HSET', KEYS[1], ARGV[i], string.format('%.0f', reply[2]))
  else
    table.insert(reply, tonumber(redis.call('HMGET', KEYS[1], ARGV[i])[1] or 0) or 0)
  end
end
return reply
