-- What every script starts with: the time, and the budget's state.
--
-- KEYS  1 state
-- ARGV  1 rate  units a microsecond
--
-- The state is a bucket that leaks, which is GCRA as ITU-T I.371 describes it
-- for a continuous state: its level, in units, is what was spent and has not
-- leaked since. As text, three numbers, and seven more while there is a pause or
-- the upstream's word of what is left:
--
--   level at spent [pause left reset told said heard floor]
--
-- at, pause and reset are microseconds of this server's clock: when level was
-- true (in the future only where something was granted for when a pause ends),
-- until when nothing is granted, and until when no more than left is, by the
-- upstream's word. told is when the word came that left is counted down from, and
-- said is what the last one that came, when it was heard, leaves by itself: never
-- less than left. floor is the level by the last word alone, of an upstream whose
-- own bucket leaks. spent is what was spent since the state began. All but the
-- levels are whole numbers. It is kept short, as this is most of what a check costs.

local ages = 1000000000000000 -- 31 years: what takes longer is said to take as long
local rate = tonumber(ARGV[1])
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local level, at, spent, pause, left, reset = 0, now, 0, 0, 0, 0
local told, said, heard, floor = 0, 0, 0, 0

local stored = redis.pcall('GET', KEYS[1])
if type(stored) == 'string' then
  local a, b, c, more = string.match(stored, '^(%d+%.%d+) (%d+) (%d+)(.*)$')
  if a then
    level, at, spent = tonumber(a), tonumber(b), tonumber(c)
    if more ~= '' then
      local d, e, f, g, h, i, j = string.match(more, '^ (%d+) (-?%d+) (%d+) (%d+) (-?%d+) (%d+) (%d+%.%d+)$')
      if d then
        pause, left, reset = tonumber(d), tonumber(e), tonumber(f)
        told, said, heard, floor = tonumber(g), tonumber(h), tonumber(i), tonumber(j)
      end
      -- A clock that was set back, or another server's: what is to come comes
      -- within a day, or not at all.
      if pause > now + 86400000000 then pause = 0 end
      if reset > now + 86400000000 then reset = 0 end
    end
    if at > now + 1000000 then
      -- Grants lie ahead by milliseconds: this clock was set back, and what is to
      -- come is as far away as it was when it was last looked at.
      pause, reset = math.max(0, pause - (at - now)), math.max(0, reset - (at - now))
      at = now
    elseif at > now and at > pause and at > reset then
      at = now
    end
  end
end

-- leak brings the level to a time.
local function leak(to)
  if to > at then
    level = level - (to - at) * rate
    if level < 0 then level = 0 end
    floor = math.max(0, floor - (to - at) * rate)
    at = to
  end
end

-- save keeps the state for a day after it has come to rest.
local function save()
  local text, rest = string.format('%.9f %d %d', level, at, spent), at + level / rate
  if pause > now or reset > now or floor > 0 then
    text = text .. string.format(' %d %d %d %d %d %d %.9f', pause, left, reset, told, said, heard, floor)
    rest = math.max(rest, pause, reset)
  end
  redis.call('SET', KEYS[1], text, 'PX', math.floor(math.min(rest - now, ages) / 1000 + 86400000))
end

-- report is the reply of each script: two numbers of its own, the level in thousandths,
-- microseconds until a pause ends, the spent units, the units that the upstream allows,
-- microseconds until it allows more (0: it has not said), and the time of a grant (0:
-- the grant counts after that reset).
local function report(first, wait, taken)
  local paused, resets = 0, 0
  if pause > now then paused = pause - now end
  if reset > now then
    resets = reset - now
    if left <= 0 and resets > paused then paused = resets end
  end
  return {first, wait, math.ceil(level * 1000), paused, spent, left, resets, taken or 0}
end
