-- settle: a call is over and did cost more or less than was spent.
--
-- KEYS  1 state  2 inflight
-- ARGV  1 rate    units a microsecond
--       2 owed    units that have to leak yet
--       3 spent   units that were spent and not counted here yet
--       4 refund  units that it was told before, and that were not spent
--       5 taken   when that was; 0: it isn't known, see state.lua
--       6...      slots to give back
--
-- Replies {0, 0, level, paused, spent, left, reset, taken}, see state.lua.

local owed, more, refund, taken = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
if owed > 0 or more > 0 or refund > 0 then
  leak(now)
  spent = math.max(0, spent - refund) + more
  -- The upstream's answer after a grant may include that call, at its own price. So a
  -- refund only raises the count since that answer, and never above the last answer. An
  -- added cost may be included or not: the safe assumption is that it is not.
  left, said = left - more, said - more
  if taken > heard then said, floor = said + refund, math.max(0, floor - refund) end
  if taken > told then left = math.min(left + refund, said) end
  level = math.max(floor, level - refund) + owed -- no refund is more than a full burst
  if floor > 0 then floor = floor + owed end
  save()
end
for i = 6, #ARGV do redis.call('ZREM', KEYS[2], ARGV[i]) end
return report(0, 0)
