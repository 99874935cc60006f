-- learn: the limits that the upstream stated.
--
-- KEYS  1 state
-- ARGV  1 rate       units a microsecond
--       2 capacity   units
--       3 pause      microseconds in which nothing may be granted; 0: none;
--                    -1: forget the upstream's limits
--       4 remaining  units that it still allows; -1: it didn't say
--       5 reset      microseconds until it allows more; 0: it didn't say
--
-- Replies {0, 0, level, paused, spent, left, reset, taken}, see state.lua.

local capacity, longer = tonumber(ARGV[2]), tonumber(ARGV[3])
local remaining, ends = tonumber(ARGV[4]), now + tonumber(ARGV[5])

leak(now)
if longer < 0 then
  pause, left, reset, floor = 0, 0, 0, 0
  if at > now then at = now end
elseif now + longer > pause then
  pause = now + longer
end
if remaining >= 0 and ends == now then
  -- Without a time it is a bucket that leaks, as ours: ours has no more than that.
  floor, heard = math.max(0, capacity - remaining), now
  level = math.max(level, floor)
elseif remaining >= 0 then
  local same = reset > now and math.abs(ends - reset) <= 1500000 -- resets are told in whole seconds
  local other = not same and (reset <= now or ends > reset or remaining < left)
  if other then reset = ends end
  if other or same and remaining < left then left, told = remaining, now end -- answers may come out of order
  if other or same then said, heard = remaining, now end
end
save()
return report(0, 0)
