-- unlock: give a place of a lock back, with or without an outcome of its attempt.
--
-- KEYS  1 record  2 and on: places; with a job the one place, the job and the pause
-- ARGV  1 wake message, which ends in the id  2 wake channel  3 PUBLISH or SPUBLISH
--       4 job kept, ms; left out: there is no job
--       5 outcome: d done, f failed, empty: none
--       6 cause  7 pause, ms; 0: none  8 max attempts; 0: any number
--
-- Replies 1, or 0 where the place is gone. With a job {1, attempts that ended, state} or {0,
-- 0, ''}: the attempt is accounted for even so, as its process lives. For the formats see
-- lock.

local id, jobs = ARGV[1]:sub(-16), ARGV[4]
local function own(value) return value and #value >= 25 and value:sub(1, 16) == id end

-- A caller that was refused at another place of a semaphore has left its mark there.
local function wake(value)
  if #value > 25 or #KEYS > 2 then redis.pcall(ARGV[3], ARGV[2], ARGV[1]) end
end

if not jobs then
  local values = redis.call('MGET', unpack(KEYS, 2))
  for i = 1, #values do
    if own(values[i]) then
      redis.call('DEL', KEYS[i + 1])
      if #KEYS == 2 and redis.pcall('HSET', KEYS[1], 'a', '0') == 1 then
        redis.call('PEXPIRE', KEYS[1], 3600000) -- Redis has forgotten the record
      end
      wake(values[i])
      return 1
    end
  end
  return 0
end

local function keepJob(state, attempts, cause)
  redis.call('SET', KEYS[3], string.format('%s%010d%010d', state, attempts, redis.call('TIME')[1]) .. string.rep(' ', 25) .. cause, 'PX', jobs)
end

local value, job = unpack(redis.call('MGET', KEYS[2], KEYS[3]))
if own(value) then
  redis.call('DEL', KEYS[2])
  local attempts, state = job and tonumber(job:sub(2, 11)) or 0, ''
  if ARGV[5] ~= '' then
    attempts, state = attempts + 1, ARGV[5]
    local max = tonumber(ARGV[8])
    if state == 'f' and max > 0 and attempts >= max then state = 'g' end
    keepJob(state, attempts, ARGV[6])
    if state == 'f' and ARGV[7] ~= '0' then redis.call('SET', KEYS[4], '1', 'PX', ARGV[7]) end
  elseif job then
    keepJob(job:sub(1, 1), attempts, job:sub(47))
  end
  wake(value)
  return {1, attempts, state}
end
if job and own(job:sub(22, 46)) then
  keepJob(job:sub(1, 1), tonumber(job:sub(2, 11)) or 0, job:sub(47))
end
return {0, 0, ''}
