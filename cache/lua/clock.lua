-- clock: read the clock that every deletion of a tag advances, and make it if
-- there is none.
--
-- KEYS  1 clock
-- ARGV  1 epoch for a new clock, 8 bytes  2 by how much to advance it
--       3 at least so high, before that   4 epoch that 3 is of; empty: none
--
-- Replies {epoch, n}.

local clock = redis.call('HMGET', KEYS[1], 'e', 'n')
local epoch, n = clock[1], tonumber(clock[2] or '')
if not epoch or #epoch ~= 8 or not n then
  epoch, n = ARGV[1], 0
  redis.call('HSET', KEYS[1], 'e', epoch, 'n', '0')
end
if epoch == ARGV[4] and n < tonumber(ARGV[3]) then -- it has gone back: a failover
  redis.call('HSET', KEYS[1], 'n', ARGV[3])
end
return {epoch, redis.call('HINCRBY', KEYS[1], 'n', ARGV[2])}
