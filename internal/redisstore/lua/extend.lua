-- extend: renew a lease, and the record of its attempt with it.
--
-- KEYS  1 lease  2 tries
-- ARGV  1 token  2 lease TTL, ms  3 window, ms
--
-- Replies 1, or 0 where the lease is gone.

local lease = redis.call('GET', KEYS[1])
if not lease or lease:sub(1, 16) ~= ARGV[1] then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 1
