-- Publishes the index record of a block if all its segments exist and nobody changed it meanwhile.
-- KEYS: index record, segments...
-- ARGV: expected record (empty: none), new record, ttl_ms
-- Returns 1 if the new record is in place.
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then
    return 0
  end
end
local stored = redis.call('GET', KEYS[1]) or ''
if stored ~= ARGV[1] and stored ~= ARGV[2] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
for i = 2, #KEYS do
  redis.call('PEXPIRE', KEYS[i], ARGV[3], 'GT')
end
return 1
