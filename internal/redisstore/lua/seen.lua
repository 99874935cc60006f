-- seen: does a script on this server see the caller's subscription?
--
-- KEYS  none, or one of the namespace by which a proxy finds the server
-- ARGV  1 own channel           which the caller's process is subscribed to
--
-- Reply: how many are subscribed to it

return redis.call('PUBSUB', 'NUMSUB', ARGV[1])[2]
