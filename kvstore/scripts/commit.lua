-- Writes the body and the lease of a hand-off together, if every tail segment exists.
-- KEYS: body, lease, tail segments...
-- ARGV: body bytes, ttl_ms, lease_ms, owner, request_id, attempt, num_bytes
-- Returns {outcome, fencing token or missing part, remaining_ms}.
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
for i = 3, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then
    return {'incomplete', i - 3, 0}
  end
end
local stored = redis.call('GET', KEYS[1])
if stored and stored ~= ARGV[1] then
  return {'conflict', 0, 0}
end
local lease = redis.call('HMGET', KEYS[2], 'fence', 'deadline_ms')
if stored and lease[1] then
  local remaining_ms = tonumber(lease[2]) - now_ms
  if remaining_ms <= 0 then
    -- Nobody came in time; who commits again waits again.
    remaining_ms = tonumber(ARGV[3])
    redis.call('HSET', KEYS[2], 'owner', ARGV[4], 'state', 'committed',
      'deadline_ms', string.format('%.0f', now_ms + remaining_ms))
  end
  return {'granted', tonumber(lease[1]), remaining_ms}
end
-- The first token of a lease is the time in microseconds: tokens of a hand-off that was released and
-- committed again stay above all tokens of its earlier life.
local fence = string.format('%.0f', time[1] * 1000000 + time[2])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[2], 'fence', fence, 'owner', ARGV[4], 'state', 'committed',
  'request_id', ARGV[5], 'attempt', ARGV[6], 'num_bytes', ARGV[7],
  'created_ms', string.format('%.0f', now_ms),
  'deadline_ms', string.format('%.0f', now_ms + ARGV[3]))
redis.call('PEXPIRE', KEYS[2], ARGV[2])
for i = 3, #KEYS do
  redis.call('PEXPIRE', KEYS[i], ARGV[2])
end
return {'granted', tonumber(fence), tonumber(ARGV[3])}
