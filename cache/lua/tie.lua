-- tie: note that an entry is about to be stored that carries a tag.
--
-- KEYS  1 the tag's record
-- ARGV  1 epoch  2 stamp of the entry, from before its fetch started
--       3 ms that the record is kept, at least
--       4 1 if the epoch is known to be the clock's, whatever the record says
--
-- Replies {deleted, expired}: the entry must not be stored if deleted is above
-- its stamp, and is stale if expired is. {-1, 0}: the record is of another epoch.

local record = redis.call('HMGET', KEYS[1], 'e', 'd', 'x', 't')
local epoch, stamp = record[1], tonumber(ARGV[2])
local deleted, expired = tonumber(record[2] or 0) or 0, tonumber(record[3] or 0) or 0
if epoch and epoch ~= ARGV[1] and ARGV[4] ~= '1' then return {-1, 0} end
if epoch ~= ARGV[1] then
  -- What was stored before is not known: no older entry may count again.
  deleted, expired = stamp, 0
  redis.call('HSET', KEYS[1], 'e', ARGV[1], 'd', ARGV[2], 'x', '0', 't', ARGV[2])
elseif deleted <= stamp and (tonumber(record[4] or 0) or 0) < stamp then
  redis.call('HSET', KEYS[1], 't', ARGV[2])
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {deleted, expired}
