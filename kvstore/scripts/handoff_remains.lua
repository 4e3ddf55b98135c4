-- What is left of a hand-off, seen at one moment.
-- KEYS: body, lease, tail segments...
-- Returns: 1 if there is a body, 1 if there is a lease, bytes of the tails, longest life in ms.
local life, size = 0, 0
for idx = 1, #KEYS do
  if idx ~= 2 then
    life = math.max(life, redis.call('PTTL', KEYS[idx]))
  end
  if idx > 2 then
    size = size + redis.call('STRLEN', KEYS[idx])
  end
end
return {redis.call('EXISTS', KEYS[1]), redis.call('EXISTS', KEYS[2]), size, life}
