-- The start of every script: the time, and the budget's state.
--
-- KEYS  1 state
-- ARGV  1 rate  units a microsecond
--
-- The state is a leaky bucket, which is GCRA as ITU-T I.371 describes it for a
-- continuous state: its level, in units, is the sum of the costs that have not leaked.
-- It is text: three numbers, and seven more during a pause or while the upstream has
-- stated the units that are left:
--
--   level at spent [pause left reset told said heard floor]
--
-- at       microseconds of this server's clock at which level was true; in the future
--          only after a grant for the end of a pause
-- spent    units since the state began
-- pause    no grants before that time
-- left     units that may be granted before reset, by the upstream's answers
-- told     time of the answer from which left is counted down
-- said     units that the last answer, at heard, leaves: never less than left
-- floor    the level by the last answer of an upstream with a leaky bucket
--
-- All but level and floor are whole numbers. The text is short, because reading and
-- writing it is most of the cost of a check.

local ages = 1000000000000000 -- 31 years, the longest reported time
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
      -- After a clock was set back, or on another server: a pause and a reset end within a
      -- day, or they are dropped.
      if pause > now + 86400000000 then pause = 0 end
      if reset > now + 86400000000 then reset = 0 end
    end
    if at > now + 1000000 then
      -- Grants lie ahead by milliseconds, so this clock was set back. The remaining times
      -- are those of the last look.
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
