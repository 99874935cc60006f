-- lockextend: renew a place of a lock, and the record of its attempt with it.
--
-- KEYS  1 fence  2 job  3 and on: places
-- ARGV  1 id  2 TTL, ms  3 fence: the counter is raised to it  4 job kept, ms; 0: no job
--       5 fence kept, ms
--
-- Replies 1, or 0 where the place is gone.

for i = 3, #KEYS do
  local value = redis.pcall('GET', KEYS[i])
  if type(value) == 'string' and #value == 25 and value:sub(1, 16) == ARGV[1] then
    redis.call('PEXPIRE', KEYS[i], ARGV[2])
    if ARGV[4] ~= '0' then redis.call('PEXPIRE', KEYS[2], ARGV[4]) end
    if tonumber(redis.call('GET', KEYS[1]) or '0') < tonumber(ARGV[3]) then
      redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[5])
    else
      redis.call('PEXPIRE', KEYS[1], ARGV[5])
    end
    return 1
  end
end
return 0
