-- lock: acquire one of the places of a lock.
--
-- KEYS  1 record  2 and on: places; with a job the one place, the job and the pause
-- ARGV  1 place's value      id, a new one for each call, 16 bytes; process, 8 bytes; 1, or 0
--                            where processes can't be watched
--       2 TTL                ms
--       3 own channel        which the caller's process is subscribed to: it ends in the
--                            process, in 16 hexadecimal digits
--       4 suspect            id of a holder that looked unwatched a while ago; empty: none
--       5 vote               1: the answer counts as a vote
--       6 job kept           ms; left out: there is no job
--       7 max attempts       0: any number
--
-- Replies
--   fence                    granted at the first attempt, with nothing else to tell
--   {"granted", taken over, fence, attempts before, cause of the last failure, server}
--   {"held", id, pttl, u}    u: 1 if the holder was watched when granted and isn't now
--   {"ended", state, attempts, cause}
--   {"paused", pttl}
--   {"unsubscribed"}         the caller's own process isn't watched on this node
--   {"abstains", ms, server} the server may have forgotten a lock
--   {"foreign", key}
--
-- The record is a hash: f the fence, and a the grants since the last release, of a lock with
-- one place. A place holds the value, and w behind it if a caller was refused: otherwise a
-- release sends no wake-up. A job is a string: state (r none yet, f failed, d done, g given
-- up), attempts that ended and time of the last change in 10 digits each, the place's value
-- of an attempt that is not accounted for or 25 spaces, and the cause of the last failure.

-- The record is kept for 7 days, or a part of that, after the last grant.
local kept = 604800000

local value, ttl, jobs, vote = ARGV[1], ARGV[2], ARGV[6], ARGV[5] == '1'
local watched = value:sub(25) == '1'

-- Where PUBSUB can't be asked, every process counts as watched.
local function unwatched(name)
  local reply = redis.pcall('PUBSUB', 'NUMSUB', name)
  return reply.err == nil and reply[2] == 0
end

local attempts, cause, server = 0, '', ''
local place, replaced, job, keepJob

-- Most locks are free, and nothing more is done for those than must be.
local taken = #ARGV == 3 and #KEYS == 2 and redis.call('SET', KEYS[2], value, 'NX', 'PX', ttl)
if taken then
  place = KEYS[2]
  if watched and unwatched(ARGV[3]) then
    redis.call('DEL', place)
    return {'unsubscribed'}
  end
else
  if vote then
    local info = redis.call('INFO', 'server')
    server = info:match('run_id:(%x+)') or ''
    -- The uptime is the difference of two times in whole seconds.
    local left = ttl + 1000 - 1000 * tonumber(info:match('uptime_in_seconds:(%d+)') or '0')
    if left > 0 then return {'abstains', left, server} end
  end

  -- Of the process in a place.
  local function gone(other)
    return unwatched(ARGV[3]:sub(1, -17) .. string.format('%02x%02x%02x%02x%02x%02x%02x%02x', other:byte(17, 24)))
  end

  local before = ''
  if jobs then
    job = redis.call('MGET', KEYS[3])[1]
    if job then
      attempts, before, cause = tonumber(job:sub(2, 11)), job:sub(22, 46), job:sub(47)
      if #job < 46 or not attempts then return {'foreign', KEYS[3]} end
      local state = job:sub(1, 1)
      if state == 'd' or state == 'g' then return {'ended', state, attempts, cause} end
    end
  end

  local places = jobs and {KEYS[2]} or {unpack(KEYS, 2)}
  local values, held, left, abandoned = redis.call('MGET', unpack(places)), nil, nil, nil
  for i, key in ipairs(places) do
    local other = values[i]
    if not other then
      place = place or key
    elseif #other ~= 25 and #other ~= 26 then
      return {'foreign', key}
    elseif not place then
      local dead = watched and other:sub(25, 25) == '1' and gone(other)
      if dead and other:sub(1, 16) == ARGV[4] then
        place, replaced = key, other
      elseif not held or dead and not abandoned or dead == abandoned then
        local pttl = redis.call('PTTL', key)
        if pttl == -1 then -- its expiry was removed
          pttl = tonumber(ttl)
          redis.call('PEXPIRE', key, ttl)
        end
        if not held or dead and not abandoned or pttl < left then held, left, abandoned = other, pttl, dead end
      end
    end
  end
  if not place then
    for i, key in ipairs(places) do
      if #values[i] == 25 then redis.call('SETRANGE', key, 25, 'w') end
    end
    return {'held', held:sub(1, 16), left, abandoned and 1 or 0}
  end

  if job and job:sub(1, 1) == 'f' then
    local pause = redis.call('PTTL', KEYS[4])
    if pause > 0 then return {'paused', pause} end
  end
  if watched and unwatched(ARGV[3]) then return {'unsubscribed'} end

  if jobs then
    keepJob = function(state, running)
      redis.call('SET', KEYS[3], string.format('%s%010d%010d', state, attempts, redis.call('TIME')[1]) .. running .. cause, 'PX', jobs)
    end
    -- The attempt before this one ended without a word: it counts if its process died. That
    -- of a process that can't be watched counts, too, or a job that kills its worker never
    -- ends.
    local none = string.rep(' ', 25)
    if #before == 25 and before ~= none and
      (replaced and replaced:sub(1, 25) == before or before:sub(25) == '0' or not watched or gone(before)) then
      attempts, cause = attempts + 1, ''
    end
    local max = tonumber(ARGV[7])
    if max > 0 and attempts >= max then
      keepJob('g', none)
      if replaced then redis.call('DEL', place) end
      return {'ended', 'g', attempts, cause}
    end
  end
  if replaced then
    redis.call('SET', place, value .. replaced:sub(26), 'PX', ttl)
  elseif not redis.call('SET', place, value, 'NX', 'PX', ttl) then
    return {'foreign', place} -- of another type: MGET does not show it
  end
end

local fence = redis.pcall('HINCRBY', KEYS[1], 'f', 1)
if type(fence) ~= 'number' then
  redis.call('DEL', place)
  return {'foreign', KEYS[1]}
end
if fence == 1 then
  local now = redis.call('TIME')
  fence = tonumber(now[1] .. string.format('%06d', now[2]))
  redis.call('HSET', KEYS[1], 'f', string.format('%.0f', fence))
  redis.call('PEXPIRE', KEYS[1], kept)
elseif fence % 16 == 0 then
  redis.call('PEXPIRE', KEYS[1], kept)
end
if jobs then
  keepJob(job and job:sub(1, 1) or 'r', value)
elseif #KEYS == 2 then
  attempts = redis.call('HINCRBY', KEYS[1], 'a', 1) - 1
  if attempts == 0 and not replaced and not vote then return fence end
end
return {'granted', replaced and 1 or 0, fence, attempts, cause, server}
