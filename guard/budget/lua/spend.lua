-- spend: take a call's cost from the budget, now or shortly ahead.
--
-- KEYS  1 state  2 inflight  3 doubted
-- ARGV  1 rate        units a microsecond
--       2 cost        units
--       3 capacity    units that callers of this priority may have outstanding
--       4 ahead       microseconds that a grant may lie ahead
--       5 in flight   calls that may be under way; 0: no limit
--       6 slot        name of the call: process in 16 hexadecimal digits, a
--                     dot, and a number                    \
--       7 slot TTL    microseconds                           > with a limit only
--       8 alive       prefix of liveness channels            /
--
-- Replies {verdict, wait, level, paused, spent, left, reset, taken}, see state.lua.
--   verdict  0 granted, to be used after wait
--            1 exhausted, 2 paused: nothing for wait
--            3 too many calls are under way: wait is until a slot expires

local cost, capacity = tonumber(ARGV[2]), tonumber(ARGV[3])

local from = now
if at > from then from = at end
if pause > from then from = pause end
if reset > from and left < cost then from = reset end
local before = level
leak(from)
-- A cost above the capacity needs an empty bucket, and leaves a debt.
local over = 0
if cost > 0 then
  over = level + math.min(cost, capacity) - capacity
  if over < 1e-9 then over = 0 end
end
local wait = math.ceil(math.min(from - now + over / rate, ages))
if wait > tonumber(ARGV[4]) then
  local verdict = 1
  if from > now then verdict, level = 2, before end
  return report(verdict, wait)
end

local limit = tonumber(ARGV[5])
if limit > 0 then
  -- Remove the expired slots, and if the limit is still reached, those of dead processes.
  -- A process is dead if two looks saw no subscriber: at one look a connection that is
  -- being replaced looks the same.
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now))
  if redis.call('ZCARD', KEYS[2]) >= limit then
    -- A slot that ends later than any can was written before the clock was set back.
    -- Live processes renew theirs every two seconds.
    local longest = math.max(tonumber(ARGV[7]), 5000000)
    local slots = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
    local known = {}
    for i = 1, #slots, 2 do
      local slot = slots[i]
      if tonumber(slots[i + 1]) > now + 2 * longest then
        redis.call('ZADD', KEYS[2], string.format('%.0f', now + longest), slot)
      end
      local process = string.sub(slot, 1, 16)
      if known[process] == nil then
        local seen = redis.pcall('PUBSUB', 'NUMSUB', ARGV[8] .. process)
        local gone = false
        -- Only a process with a confirmed subscription (flag +) can be missed.
        if string.sub(slot, -1) == '+' and not seen.err and seen[2] == 0 then
          local since = tonumber(redis.call('ZSCORE', KEYS[3], process) or 0)
          if now - since > 2000000 or since > now then
            redis.call('ZADD', KEYS[3], string.format('%.0f', now), process)
            redis.call('PEXPIRE', KEYS[3], 10000)
          elseif now - since >= 50000 then
            gone = true
          end
        elseif not seen.err then
          redis.call('ZREM', KEYS[3], process)
        end
        known[process] = gone
      end
      if known[process] then redis.call('ZREM', KEYS[2], slot) end
    end
    if redis.call('ZCARD', KEYS[2]) >= limit then
      local first = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')
      return report(3, math.max(1, tonumber(first[2]) - now))
    end
  end
  redis.call('ZADD', KEYS[2], string.format('%.0f', from + tonumber(ARGV[7])), ARGV[6])
  redis.call('PEXPIRE', KEYS[2], string.format('%.0f', (from - now + ARGV[7]) / 1000 + 60000))
end

level = level + cost
spent = spent + cost
if floor > 0 then floor = floor + cost end
local taken = now
if reset > from then
  left, said = left - cost, said - cost
elseif reset > now then
  taken = 0
end
save()
return report(0, wait, taken)
