-- unlock: give a place of a lock back, with or without an outcome of its attempt.
--
-- KEYS  1 fence  2 job  3 pause  4 and on: places
-- ARGV  1 id  2 wake channel  3 wake message  4 PUBLISH or SPUBLISH
--       5 job kept, ms; 0: there is no job  6 fence of the release kept, ms; 0: not
--       7 outcome: d done, f failed, empty: none
--       8 cause  9 pause, ms; 0: none  10 max attempts; 0: any number
--
-- Replies {1, attempts that ended, state}, or {0, 0, ''} where the place is gone: its
-- attempt is accounted for even so, as its process lives. For the format of a job see lock.

local id = ARGV[1]
local function own(value) return value and #value == 25 and value:sub(1, 16) == id end

local function keepJob(state, attempts, cause)
  redis.call('SET', KEYS[2], string.format('%s%010d%010d', state, attempts, redis.call('TIME')[1]) .. string.rep(' ', 25) .. cause, 'PX', ARGV[5])
end

local values = redis.call('MGET', KEYS[2], unpack(KEYS, 4))
local job, jobs = values[1], ARGV[5] ~= '0'
for i = 4, #KEYS do
  if own(values[i - 2]) then
    redis.call('DEL', KEYS[i])
    local attempts, state = 0, ''
    if jobs then
      attempts = job and tonumber(job:sub(2, 11)) or 0
      if ARGV[7] ~= '' then
        attempts, state = attempts + 1, ARGV[7]
        local max = tonumber(ARGV[10])
        if state == 'f' and max > 0 and attempts >= max then state = 'g' end
        keepJob(state, attempts, ARGV[8])
        if state == 'f' and ARGV[9] ~= '0' then redis.call('SET', KEYS[3], '1', 'PX', ARGV[9]) end
      elseif job then
        keepJob(job:sub(1, 1), attempts, job:sub(47))
      end
    elseif ARGV[6] ~= '0' then
      redis.call('SET', KEYS[2], redis.call('GET', KEYS[1]) or '0', 'PX', ARGV[6])
    end
    redis.pcall(ARGV[4], ARGV[2], ARGV[3])
    return {1, attempts, state}
  end
end
if jobs and job and own(job:sub(22, 46)) then
  keepJob(job:sub(1, 1), tonumber(job:sub(2, 11)) or 0, job:sub(47))
end
return {0, 0, ''}
