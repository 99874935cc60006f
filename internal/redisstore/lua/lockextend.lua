-- lockextend: renew a place of a lock, and the record of its attempt with it. It never makes the
-- TTL shorter: a late renewal would end a longer extension early.
--
-- KEYS  1 record  2 and on: places; with a job the one place, the job and the pause
-- ARGV  1 id  2 TTL, ms  3 fence: the counter is raised to it
--       4 job kept, ms; left out: there is no job
--
-- Replies 1, or 0 where the place is gone.

local jobs = ARGV[4]
for i = 2, jobs and 2 or #KEYS do
  local value = redis.call('MGET', KEYS[i])[1]
  if value and #value >= 25 and value:sub(1, 16) == ARGV[1] then
    if redis.call('PTTL', KEYS[i]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[i], ARGV[2]) end
    if jobs then redis.call('PEXPIRE', KEYS[3], jobs) end
    if tonumber(ARGV[3]) > tonumber(redis.call('HMGET', KEYS[1], 'f')[1] or '0') then
      redis.call('HSET', KEYS[1], 'f', ARGV[3])
    end
    redis.call('PEXPIRE', KEYS[1], 604800000)
    return 1
  end
end
return 0
