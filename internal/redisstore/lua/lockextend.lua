-- lockextend: renew a place of a lock, and the record of its attempt with it.
--
-- KEYS  1 fence  2 job  3 and on: places
-- ARGV  1 id  2 TTL, ms  3 fence: the counter is raised to it  4 job kept, ms; 0: no job
--       5 fence kept, ms
--
-- Replies 1, or 0 where the place is gone.

local values = redis.call('MGET', unpack(KEYS, 3))
for i = 1, #values do
  local value = values[i]
  if value and #value == 25 and value:sub(1, 16) == ARGV[1] then
    redis.call('PEXPIRE', KEYS[i + 2], ARGV[2])
    if ARGV[4] ~= '0' then redis.call('PEXPIRE', KEYS[2], ARGV[4]) end
    local raise = tonumber(ARGV[3]) - tonumber(redis.call('GET', KEYS[1]) or '0')
    if raise > 0 then
      redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[5])
      if ARGV[4] == '0' then redis.call('DEL', KEYS[2]) end -- it would count the difference as attempts
    else
      redis.call('PEXPIRE', KEYS[1], ARGV[5])
    end
    return 1
  end
end
return 0
