-- Deletes a hand-off that no live lease protects (the janitor's step).
-- KEYS: body, lease, tail segments...
-- ARGV: longest life in ms of a tail that was never committed
-- Returns 1 if it deleted anything.
local deadline_ms = redis.call('HGET', KEYS[2], 'deadline_ms')
if deadline_ms then
  local time = redis.call('TIME')
  if time[1] * 1000 + math.floor(time[2] / 1000) <= tonumber(deadline_ms) then
    return 0
  end
elseif redis.call('EXISTS', KEYS[1]) == 0 then
  -- Only tails. A commit may be on its way, unless one of them lives as only committed ones do.
  local was_committed = false
  for idx = 3, #KEYS do
    was_committed = was_committed or redis.call('PTTL', KEYS[idx]) > tonumber(ARGV[1])
  end
  if not was_committed then
    return 0
  end
end
return redis.call('DEL', unpack(KEYS)) > 0 and 1 or 0
