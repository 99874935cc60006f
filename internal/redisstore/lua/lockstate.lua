-- lockstate: read the state of a lock; or forget its job.
--
-- KEYS  1 record  2 job  3 pause  4 and on: places
-- ARGV  1 own channel  2 1: forget the job, unless a place is held
--
-- Replies {1, fence, state, attempts, cause, seconds since its last change, pause, and for
-- each holder: id, pttl, unwatched}, {"foreign", key}, or to forget {1} or {0}.

local all, places = {}, 0
for i = 4, #KEYS do
  local value = redis.pcall('GET', KEYS[i])
  if value then
    if type(value) ~= 'string' or #value ~= 25 and #value ~= 26 then return {'foreign', KEYS[i]} end
    local name = ARGV[1]:sub(1, -17) .. string.format('%02x%02x%02x%02x%02x%02x%02x%02x', value:byte(17, 24))
    local reply = redis.pcall('PUBSUB', 'NUMSUB', name)
    local gone = value:sub(25, 25) == '1' and reply.err == nil and reply[2] == 0
    for _, field in ipairs({value:sub(1, 16), redis.call('PTTL', KEYS[i]), gone and 1 or 0}) do table.insert(all, field) end
    places = places + 1
  end
end
if ARGV[2] == '1' then
  if places > 0 then return {0} end
  redis.call('DEL', KEYS[2], KEYS[3])
  return {1}
end
local record = redis.pcall('HMGET', KEYS[1], 'f')
if record.err then return {'foreign', KEYS[1]} end
local job = redis.pcall('GET', KEYS[2])
if type(job) == 'table' then return {'foreign', KEYS[2]} end
local reply = {1, tonumber(record[1] or '0') or 0, '', 0, '', 0, redis.call('PTTL', KEYS[3])}
if job and #job >= 46 then
  reply[3], reply[4], reply[5] = job:sub(1, 1), tonumber(job:sub(2, 11)) or 0, job:sub(47)
  reply[6] = redis.call('TIME')[1] - (tonumber(job:sub(12, 21)) or 0)
end
for _, field in ipairs(all) do table.insert(reply, field) end
return reply
