-- settle: a call is over and did cost more or less than was spent.
--
-- KEYS  1 state  2 inflight
-- ARGV  1 rate    units a microsecond
--       2 owed    units that have to leak yet
--       3 spent   units that were spent on top of what this was told before
--       4 refund  units that it was told before, and that were not spent
--       5...      slots to give back
--
-- Replies {0, 0, level, paused, spent, allows}, see state.lua.

local owed, more, refund = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
if owed > 0 or more > 0 or refund > 0 then
  leak(now)
  level = math.max(0, level - refund) + owed -- no refund is more than a full burst
  spent = math.max(0, spent - refund) + more
  if reset > now then left = left - more + refund end
  save()
end
for i = 5, #ARGV do redis.call('ZREM', KEYS[2], ARGV[i]) end
return report(0, 0)
