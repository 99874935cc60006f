-- lock: acquire one of the places of a lock.
--
-- KEYS  1 fence  2 job  3 pause  4 and on: places
-- ARGV  1 id                 a new one for each call, 16 bytes
--       2 TTL                ms
--       3 suspect            id of a holder that looked unwatched a while ago; empty: none
--       4 own channel        which the caller's process is subscribed to: it ends in the
--                            process, in 16 hexadecimal digits
--       5 liveness           1, or 0 where processes can't be watched
--       6 process            8 bytes
--       7 fence kept         ms, at least for a part of it after the last grant
--       8 job kept           ms; 0: there is no job
--       9 max attempts       0: any number
--      10 vote               1: the answer counts as a vote
--      11 release kept       ms that the fence of a release is remembered
--
-- Replies
--   {"granted", taken over, fence, attempts before, cause of the last failure, server}
--   {"held", id, pttl, u}    u: 1 if the holder was watched when granted and isn't now
--   {"ended", state, attempts, cause}
--   {"paused", pttl}
--   {"unsubscribed"}         the caller's own process isn't watched on this node
--   {"abstains", ms, server} the server may have forgotten a lock
--   {"foreign", key}
--
-- A place holds id, process and one byte: 1 if the process was watched at the grant. A job
-- is a string: state (r none yet, f failed, d done, g given up), attempts that ended and
-- time of the last change in 10 digits each, the place's value of an attempt that is not
-- accounted for or 25 spaces, and the cause of the last failure. A lock without a job has
-- there the fence of its last release: later grants died.

local id, ttl, liveness, jobs = ARGV[1], tonumber(ARGV[2]), ARGV[5] ~= '0', ARGV[8] ~= '0'

local function channel(place)
  return ARGV[4]:sub(1, -17) .. string.format('%02x%02x%02x%02x%02x%02x%02x%02x', place:byte(17, 24))
end

-- Where PUBSUB can't be asked, every process counts as watched.
local function unwatched(name)
  local reply = redis.pcall('PUBSUB', 'NUMSUB', name)
  return reply.err == nil and reply[2] == 0
end

local server = ''
if ARGV[10] == '1' then
  local info = redis.call('INFO', 'server')
  server = info:match('run_id:(%x+)') or ''
  -- The uptime is the difference of two times in whole seconds.
  local left = ttl + 1000 - 1000 * tonumber(info:match('uptime_in_seconds:(%d+)') or '0')
  if left > 0 then return {'abstains', left, server} end
end

local values = redis.call('MGET', KEYS[2], unpack(KEYS, 4))
local job, attempts, cause, before = values[1], 0, '', ''
if jobs and job then
  attempts, before, cause = tonumber(job:sub(2, 11)), job:sub(22, 46), job:sub(47)
  if #job < 46 or not attempts then return {'foreign', KEYS[2]} end
  local state = job:sub(1, 1)
  if state == 'd' or state == 'g' then return {'ended', state, attempts, cause} end
end

if job and not jobs and not tonumber(job) then return {'foreign', KEYS[2]} end

local place, replaced, held, left, abandoned
for i = 4, #KEYS do
  local value = values[i - 2]
  if not value then
    place = place or KEYS[i]
  elseif #value ~= 25 then
    return {'foreign', KEYS[i]}
  elseif not place then
    local gone = liveness and value:sub(25) == '1' and unwatched(channel(value))
    if gone and value:sub(1, 16) == ARGV[3] then
      place, replaced = KEYS[i], value
    elseif not held or gone and not abandoned or gone == abandoned then
      local pttl = redis.call('PTTL', KEYS[i])
      if pttl == -1 then -- its expiry was removed
        pttl = ttl
        redis.call('PEXPIRE', KEYS[i], ttl)
      end
      if not held or gone and not abandoned or pttl < left then held, left, abandoned = value, pttl, gone end
    end
  end
end
if not place then return {'held', held:sub(1, 16), left, abandoned and 1 or 0} end

if job and jobs and job:sub(1, 1) == 'f' then
  local pause = redis.call('PTTL', KEYS[3])
  if pause > 0 then return {'paused', pause} end
end
if liveness and unwatched(ARGV[4]) then return {'unsubscribed'} end

local function keepJob(state, value)
  redis.call('SET', KEYS[2], string.format('%s%010d%010d', state, attempts, redis.call('TIME')[1]) .. value .. cause, 'PX', ARGV[8])
end

-- The attempt before this one ended without a word: it counts if its process died. That of
-- a process that can't be watched counts, too, or a job that kills its worker never ends.
local none = string.rep(' ', 25)
if #before == 25 and before ~= none and
  (replaced == before or before:sub(25) == '0' or not liveness or unwatched(channel(before))) then
  attempts, cause = attempts + 1, ''
end
local max = tonumber(ARGV[9])
if max > 0 and attempts >= max then
  keepJob('g', none)
  if replaced then redis.call('DEL', place) end
  return {'ended', 'g', attempts, cause}
end

local value = id .. ARGV[6] .. (liveness and '1' or '0')
if replaced then
  redis.call('SET', place, value, 'PX', ARGV[2])
elseif not redis.call('SET', place, value, 'NX', 'PX', ARGV[2]) then
  return {'foreign', place} -- of another type: MGET does not show it
end
local fence = redis.pcall('INCR', KEYS[1])
if type(fence) ~= 'number' then
  redis.call('DEL', place)
  return {'foreign', KEYS[1]}
end
if fence == 1 then
  local now = redis.call('TIME')
  redis.call('SET', KEYS[1], now[1] .. string.format('%06d', now[2]), 'PX', ARGV[7])
  fence = tonumber(redis.call('GET', KEYS[1]))
elseif fence % 16 == 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[7])
end
if jobs then
  keepJob(job and job:sub(1, 1) or 'r', value)
elseif #KEYS == 4 then
  local died = job and fence - 1 - (tonumber(job) or fence)
  if not job then
    redis.call('SET', KEYS[2], string.format('%.0f', fence - 1), 'PX', ARGV[11], 'NX')
  elseif died < 0 or died > 1000000 then -- the fence was forgotten
    redis.call('SET', KEYS[2], string.format('%.0f', fence - 1), 'PX', ARGV[11])
  else
    attempts = died
  end
end
return {'granted', replaced and 1 or 0, fence, attempts, cause, server}
