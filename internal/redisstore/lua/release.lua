-- release: give a lease back without any outcome.
--
-- KEYS  1 lease  2 tries
-- ARGV  1 token  2 wake channel  3 wake message  4 PUBLISH or SPUBLISH
--
-- Replies 1 if the lease was still held, else 0.

local lease = redis.call('GET', KEYS[1])
redis.call('SREM', KEYS[2], ARGV[1])
if not lease or lease:sub(1, 16) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.pcall(ARGV[4], ARGV[2], ARGV[3])
return 1
