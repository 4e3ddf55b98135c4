-- Deletes a hand-off for its holder. Doing it again, or after somebody else did, is harmless.
-- KEYS: body, lease, tail segments...
-- ARGV: fencing token
-- Returns {outcome, 0, 0}: granted, gone (nothing left to release) or taken (left as it is).
local fence = redis.call('HGET', KEYS[2], 'fence')
if not fence then
  return {'gone', 0, 0}
end
if fence ~= ARGV[1] then
  return {'taken', 0, 0}
end
redis.call('DEL', unpack(KEYS))
return {'granted', 0, 0}
