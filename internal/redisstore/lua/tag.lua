-- tag: delete or expire all entries that carry a tag.
--
-- KEYS  1 the tag's record
-- ARGV  1 epoch  2 n: the clock, after it was advanced for this
--       3 d to delete, x to expire
--       4 ms that the record is kept, at least
--       5 channel of invalidations  6 message
--
-- Replies the record's new mark: n, or more if entries with a stamp of n or above
-- are tied to the tag. If it is more, the clock had gone back.

local record = redis.call('HMGET', KEYS[1], 'e', 't', ARGV[3])
local mark = tonumber(ARGV[2])
if record[1] ~= ARGV[1] then
  -- Entries that were stored before may be of any age: they are invalid from now on. A
  -- later change may have been recorded before this one and evicted: see tie.
  redis.call('HSET', KEYS[1], 'e', ARGV[1], 'd', ARGV[2], 'x', ARGV[2], 't', '0', 'u', '1')
else
  mark = math.max(mark, (tonumber(record[2] or 0) or 0) + 1, tonumber(record[3] or 0) or 0)
  redis.call('HSET', KEYS[1], ARGV[3], string.format('%.0f', mark))
end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[4]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
redis.pcall('PUBLISH', ARGV[5], ARGV[6])
return mark
