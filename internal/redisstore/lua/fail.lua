-- fail: give a lease back without an outcome and say why, if it is still held.
--
-- KEYS  1 lease  2 tries  3 pause  4 failed:<token>  5 failures
-- ARGV  1 token  2 failure  3 ms to keep the failure  4 pause, ms; 0: none
--       5 wake channel  6 wake message without its body  7 PUBLISH or SPUBLISH
--       8 1 if no fetch was made: other attempts stay on record
--       9 wake message with a trace context, if there is one
--
-- Replies 1, or 0 where the lease is gone: then nothing is changed.

local lease = redis.call('GET', KEYS[1])
if not lease or lease:sub(1, 16) ~= ARGV[1] then
  redis.call('SREM', KEYS[2], ARGV[1])
  return 0
end
if ARGV[4] ~= '0' then
  -- Failures count as in a row while each comes soon after the pause of the last.
  -- Foreign bytes are no count.
  local count = redis.call('GET', KEYS[5])
  if count and count ~= string.format('%d', tonumber(count) or 0) then redis.call('DEL', KEYS[5]) end
  redis.call('INCR', KEYS[5])
  redis.call('PEXPIRE', KEYS[5], 2 * ARGV[4] + 60000)
  redis.call('SET', KEYS[3], ARGV[2], 'PX', ARGV[4])
end
redis.call('SET', KEYS[4], ARGV[2], 'PX', ARGV[3])
if ARGV[8] == '1' then
  redis.call('SREM', KEYS[2], ARGV[1])
  redis.call('DEL', KEYS[1])
else
  redis.call('DEL', KEYS[1], KEYS[2])
end
if ARGV[9] then redis.pcall(ARGV[7], ARGV[5], ARGV[9]) end
redis.pcall(ARGV[7], ARGV[5], ARGV[6] .. ARGV[2])
return 1
