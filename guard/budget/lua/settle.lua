-- settle: a call is over and did cost more or less than was spent.
--
-- KEYS  1 state  2 inflight
-- ARGV  1 rate  units a microsecond
--       2 owed  units that have to leak yet: the actual cost less what was spent
--       3 spent units that were spent, or, below 0, were not
--       4...    slots to give back
--
-- Replies {0, 0, level, paused, spent, allows}, see state.lua.

local owed = tonumber(ARGV[2])
if owed ~= 0 or tonumber(ARGV[3]) ~= 0 then
  leak(now)
  level = math.max(0, level + owed)
  spent = math.max(0, spent + ARGV[3])
  if reset > now then left = left - ARGV[3] end
  save()
end
for i = 4, #ARGV do redis.call('ZREM', KEYS[2], ARGV[i]) end
return report(0, 0)
