-- Raises the newest known attempt of a request; never lowers it.
-- KEYS: attempt record
-- ARGV: attempt (0 only reads), ttl_ms
-- Returns the newest attempt known, 0 when there is none.
local known = tonumber(redis.call('GET', KEYS[1]) or '0') or 0
local attempt = tonumber(ARGV[1])
if attempt == 0 then
  return known
end
if attempt > known then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return attempt
end
redis.call('PEXPIRE', KEYS[1], ARGV[2], 'GT')
return known
