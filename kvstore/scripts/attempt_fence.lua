-- Raises the newest known attempt of a request; never lowers it.
-- KEYS: attempt record
-- ARGV: attempt (0 only reads), ttl_ms
-- Returns the newest attempt known, 0 when there is none, -1 when the record is damaged. A damaged
-- record makes way for one of the next attempt, so that neither the caller nor an older attempt
-- goes on with it. The form is that of `seal_attempt` in `kvstore/records.py`.
local function seal(number)
  return number .. ':' .. string.sub(redis.sha1hex(KEYS[1] .. ':' .. number), 1, 20)
end
local attempt = tonumber(ARGV[1])
local known = 0
local stored = redis.call('GET', KEYS[1])
if stored then
  local number = string.match(stored, '^(%d+):')
  if not number or stored ~= seal(number) then
    if attempt > 0 then
      redis.call('SET', KEYS[1], seal(string.format('%d', attempt + 1)), 'PX', ARGV[2])
    end
    return -1
  end
  known = tonumber(number)
end
if attempt == 0 then
  return known
end
if attempt > known then
  redis.call('SET', KEYS[1], seal(ARGV[1]), 'PX', ARGV[2])
  return attempt
end
redis.call('PEXPIRE', KEYS[1], ARGV[2], 'GT')
return known
