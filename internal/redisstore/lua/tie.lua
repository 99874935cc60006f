-- tie: note that an entry is about to be stored that carries a tag.
--
-- KEYS  1 the tag's record
-- ARGV  1 epoch  2 stamp of the entry, from before its fetch started
--       3 ms that the record is kept, at least
--       4 1 if the epoch is known to be the clock's, whatever the record says
--       5 when a tag of this one's bucket was last changed, read after an earlier tie
--         had found the record unsettled; empty: not read
--
-- Replies {deleted, expired, unsettled}: the entry must not be stored if deleted is
-- above its stamp, and is stale if expired is. unsettled is 1 for a new record: a
-- change of the tag may have been recorded before it, and evicted. The caller then
-- asks the clock when there was one, and ties again.
-- {-1, 0, 0}: the record is of another epoch.

local record = redis.call('HMGET', KEYS[1], 'e', 'd', 'x', 't', 'u')
local epoch, stamp = record[1], tonumber(ARGV[2])
local deleted, expired = tonumber(record[2] or 0) or 0, tonumber(record[3] or 0) or 0
local unsettled = record[5] == '1' and 1 or 0
if epoch and epoch ~= ARGV[1] and ARGV[4] ~= '1' then return {-1, 0, 0} end
if epoch ~= ARGV[1] then
  -- Entries that were stored before may be of any age: none may become valid again.
  deleted, expired, unsettled = stamp, 0, 1
  redis.call('HSET', KEYS[1], 'e', ARGV[1], 'd', ARGV[2], 'x', '0', 't', ARGV[2], 'u', '1')
else
  if unsettled == 1 and ARGV[5] ~= '' then
    unsettled, deleted = 0, math.max(deleted, tonumber(ARGV[5]))
    redis.call('HSET', KEYS[1], 'd', string.format('%.0f', deleted), 'u', '0')
  end
  if deleted <= stamp and (tonumber(record[4] or 0) or 0) < stamp then
    redis.call('HSET', KEYS[1], 't', ARGV[2])
  end
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {deleted, expired, unsettled}
