-- Deletes a hand-off whoever holds it; its reader finds out when it renews.
-- KEYS: body, lease, tail segments...
-- Returns {outcome, 0, 0}: granted, or gone when there was nothing.
if redis.call('DEL', unpack(KEYS)) == 0 then
  return {'gone', 0, 0}
end
return {'granted', 0, 0}
