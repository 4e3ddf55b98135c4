-- Lengthens a live lease. A lease that lapsed stays lapsed: what was read under it is discarded.
-- KEYS: body, lease
-- ARGV: fencing token, lease_ms
-- Returns {outcome, fencing token, remaining_ms}.
local lease = redis.call('HMGET', KEYS[2], 'fence', 'deadline_ms')
if not lease[1] or redis.call('EXISTS', KEYS[1]) == 0 then
  return {'gone', 0, 0}
end
if lease[1] ~= ARGV[1] then
  return {'taken', 0, 0}
end
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
if now_ms > tonumber(lease[2]) then
  return {'lapsed', 0, 0}
end
redis.call('HSET', KEYS[2], 'deadline_ms', string.format('%.0f', now_ms + ARGV[2]))
return {'granted', tonumber(ARGV[1]), tonumber(ARGV[2])}
