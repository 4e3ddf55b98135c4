-- Deletes a hand-off that no live lease protects (the janitor's step).
-- KEYS: body, lease, tail segments...
-- Returns 1 if it deleted anything.
local deadline_ms = redis.call('HGET', KEYS[2], 'deadline_ms')
if deadline_ms then
  local time = redis.call('TIME')
  if time[1] * 1000 + math.floor(time[2] / 1000) <= tonumber(deadline_ms) then
    return 0
  end
elseif redis.call('EXISTS', KEYS[1]) == 0 then
  -- Only tails: a commit may be on its way. They die by themselves soon.
  return 0
end
return redis.call('DEL', unpack(KEYS)) > 0 and 1 or 0
