-- acquire: ask for the right to fetch a key.
--
-- KEYS  1 entry  2 lease  3 tries  4 pause  5 failed:<last-held>  6 failures
-- ARGV  1 token                 a new one for each call, 16 bytes
--       2 lease TTL             ms
--       3 seen                  first bytes of the entry as read, 16 at most; empty: none
--       4 last-held             token of the last answer "held"; empty: none
--       5 suspect               holder that looked unwatched a while ago; empty: none
--       6 over                  own token of a grant without an answer; empty: none
--       7 max attempts          0: no limit
--       8 window                ms an attempt is remembered
--       9 own channel           which the caller's process is subscribed to: it ends in
--                               the process, in 16 hexadecimal digits
--      10 liveness              1, or 0 where processes can't be watched
--      11 wake channel          which waiting processes are subscribed to
--      12 SPUBLISH              if that is a sharded channel, or PUBLISH
--      13 brief                 1: of a holder, only its token is to be told, or to a caller
--                               with a last-held all but the pttl
--
-- Replies
--   {"entry", bytes, s, us}         an entry is stored that the caller has not seen;
--                                   and TIME, by which its age is known
--   {"failed", failure}             the fetch of last-held failed
--   {"paused", failure, pttl}       no process may fetch yet
--   {"unsubscribed"}                the caller's own process isn't watched on this node
--   {"held", token, pttl, u, n}     u: 1 if it was watched when granted and isn't now;
--                                   n: how many processes wait for it, or fewer. Numbers
--                                   that are not told are 0
--   {"quarantined", pttl}           too many holders died
--   {"granted", taken over, tries, failures}
--                                   taken over: 1 if the holder before had died;
--                                   failures: those in a row that asked for a pause
--   tries                           granted, and the other two are 0

local token, seen, suspect, over = ARGV[1], ARGV[3], ARGV[5], ARGV[6]

-- The channel that the process of a token is subscribed to.
local function channel(of)
  return ARGV[9]:sub(1, -17) .. string.format('%02x%02x%02x%02x%02x%02x%02x%02x', of:byte(1, 8))
end

-- Reports whether the nth channel of a reply has no subscriber. Where PUBSUB is
-- denied every process counts as watched: no ACL declares a holder dead.
local function unwatched(reply, nth) return reply.err == nil and reply[2 * nth] == 0 end

-- A caller that has seen nothing is told any entry. One MGET then saves a command. Where it
-- is denied, two are sent.
local lease, entry
local first = seen == '' and ARGV[4] == ''
local both = first and redis.pcall('MGET', KEYS[2], KEYS[1])
if both and not both.err then
  lease, entry = both[1], both[2]
else
  lease, both = redis.call('GET', KEYS[2]), nil
end
if lease and #lease ~= 17 then lease = false end -- foreign bytes are no lease

-- For a caller that has seen nothing of the key there is most often nothing at all.
-- One EXISTS then saves four commands. Where it is denied, those are sent.
local nothing = not lease and first and
  redis.pcall('EXISTS', KEYS[1], KEYS[3], KEYS[4], KEYS[6]) == 0

-- A script that stores an entry or a failure ends the lease. So while the lease is the
-- one that was last answered "held", this caller has seen all entries and failures.
if not nothing and (not lease or lease:sub(1, 16) ~= ARGV[4]) then
  -- A key of a foreign type has no first bytes: it counts as no entry, and the
  -- fill's SET replaces it.
  local head = entry
  if not both then head = redis.pcall('GETRANGE', KEYS[1], 0, 15) end
  if type(head) == 'string' and head ~= '' and head ~= seen then
    local now = redis.call('TIME')
    return {'entry', entry or redis.call('GET', KEYS[1]), now[1], now[2]}
  end
  if ARGV[4] ~= '' then
    local failure = redis.call('GET', KEYS[5])
    if failure then return {'failed', failure} end
  end
  -- While there is a lease there is no pause: under one no lease is granted.
  local pause = not lease and redis.call('GET', KEYS[4])
  if pause then
    local left = redis.call('PTTL', KEYS[4])
    if left ~= -1 then return {'paused', pause, left} end -- one without an end is foreign
  end
end

local brief = ARGV[13] == '1'
if lease and brief and ARGV[4] == '' and lease:sub(1, 16) ~= over then return {'held', lease:sub(1, 16), 0, 0, 0} end

-- One command tells of the caller, of the holder and of those that wait for it.
local liveness, abandoned, waiting = ARGV[10] == '1', false, 0
if liveness then
  local reply
  if lease and lease:sub(17, 17) == '1' then
    reply = redis.pcall('PUBSUB', 'NUMSUB', ARGV[9], channel(lease), ARGV[11])
    abandoned, waiting = unwatched(reply, 2), reply[6] or 0
  else
    reply = redis.pcall('PUBSUB', 'NUMSUB', ARGV[9])
  end
  if unwatched(reply, 1) then return {'unsubscribed'} end
end

local takenover = 0
if lease then
  local holder = lease:sub(1, 16)
  if holder == suspect and abandoned then
    takenover = 1
  elseif holder ~= over then
    -- A holder that is watched renews its lease, so a brief answer leaves the PTTL out.
    local left = 0
    if not brief or abandoned or not liveness or lease:sub(17, 17) ~= '1' then
      left = redis.call('PTTL', KEYS[2])
      if left == -1 then -- the expiry was removed by hand
        left = tonumber(ARGV[2])
        redis.call('PEXPIRE', KEYS[2], left)
      end
      left = math.max(left, 1)
    end
    if ARGV[12] == 'SPUBLISH' then waiting = redis.pcall('PUBSUB', 'SHARDNUMSUB', ARGV[11])[2] or 0 end
    return {'held', holder, left, abandoned and 1 or 0, waiting}
  end
end

-- Deaths are counted by process: one death can leave two tokens.
local limit, tries = tonumber(ARGV[7]), nothing and 0 or redis.call('SCARD', KEYS[3])
if limit > 0 and liveness and tries >= limit then
  local dead, known = 0, {}
  for _, try in ipairs(redis.call('SMEMBERS', KEYS[3])) do
    local process = try:sub(1, 8)
    if #try == 16 and not known[process] then -- foreign bytes are no attempt
      known[process] = true
      if unwatched(redis.pcall('PUBSUB', 'NUMSUB', channel(try)), 1) then dead = dead + 1 end
    end
  end
  if dead >= limit then
    local left = redis.call('PTTL', KEYS[3])
    if left == -1 then -- as for the lease
      left = tonumber(ARGV[8])
      redis.call('PEXPIRE', KEYS[3], left)
    end
    return {'quarantined', left}
  end
end

-- Commands that fail on keys of a foreign type come before the lease is set.
local failures = tonumber(not nothing and redis.call('GET', KEYS[6]) or 0) or 0
tries = tries + redis.call('SADD', KEYS[3], token)
redis.call('PEXPIRE', KEYS[3], ARGV[8])
redis.call('SET', KEYS[2], token .. (liveness and '1' or '0'), 'PX', ARGV[2])
if takenover == 0 and failures == 0 then return tries end
return {'granted', takenover, tries, failures}
