-- unlock: give a place of a lock back, with or without an outcome of its attempt.
--
-- KEYS  1 job  2 pause  3 and on: places
-- ARGV  1 id  2 wake channel  3 wake message  4 PUBLISH or SPUBLISH
--       5 outcome: d done, f failed, empty: none; x: there is no job to remember
--       6 cause  7 job kept, ms  8 pause, ms; 0: none  9 max attempts; 0: any number
--
-- Replies {1, attempts that ended, state}, or {0, 0, ''} where the place is gone: its
-- attempt is accounted for even so, as its process lives.

local id = ARGV[1]
local function own(value) return type(value) == 'string' and #value == 25 and value:sub(1, 16) == id end

for i = 3, #KEYS do
  if own(redis.pcall('GET', KEYS[i])) then
    local attempts, state = 0, ''
    if ARGV[5] == 'x' then
      redis.call('DEL', KEYS[1])
    elseif ARGV[7] ~= '0' then
      attempts = tonumber(redis.call('HMGET', KEYS[1], 'n')[1] or '') or 0
      if ARGV[5] == '' then
        redis.call('HSET', KEYS[1], 'v', '')
      else
        attempts, state = attempts + 1, ARGV[5]
        local max = tonumber(ARGV[9])
        if state == 'f' and max > 0 and attempts >= max then state = 'g' end
        redis.call('HSET', KEYS[1], 's', state, 'n', attempts, 'c', ARGV[6], 'v', '', 'at', redis.call('TIME')[1])
        if state == 'f' and ARGV[8] ~= '0' then redis.call('SET', KEYS[2], '1', 'PX', ARGV[8]) end
      end
      redis.call('PEXPIRE', KEYS[1], ARGV[7])
    end
    redis.call('DEL', KEYS[i])
    redis.pcall(ARGV[4], ARGV[2], ARGV[3])
    return {1, attempts, state}
  end
end
local job = redis.pcall('HMGET', KEYS[1], 'v')
if not job.err and own(job[1]) then redis.call('HSET', KEYS[1], 'v', '') end
return {0, 0, ''}
