-- Makes a reader the holder of a hand-off under a new fencing token.
-- KEYS: body, lease
-- ARGV: owner, attempt, fencing token of the ticket, lease_ms, ttl_ms
-- Returns {outcome, fencing token, remaining_ms}.
local lease = redis.call('HMGET', KEYS[2], 'fence', 'attempt')
if not lease[1] or redis.call('EXISTS', KEYS[1]) == 0 then
  return {'gone', 0, 0}
end
if lease[2] ~= ARGV[2] or tonumber(lease[1]) < tonumber(ARGV[3]) then
  return {'taken', 0, 0}
end
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local fence = redis.call('HINCRBY', KEYS[2], 'fence', 1)
redis.call('HSET', KEYS[2], 'owner', ARGV[1], 'state', 'held',
  'deadline_ms', string.format('%.0f', now_ms + ARGV[4]))
redis.call('PEXPIRE', KEYS[2], ARGV[5], 'GT')
redis.call('PEXPIRE', KEYS[1], ARGV[5], 'GT')
return {'granted', fence, tonumber(ARGV[4])}
