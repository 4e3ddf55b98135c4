-- Deletes a value if it still starts with the bytes that were found wanting (compare and delete).
-- KEYS: the key
-- ARGV: first bytes of the value (empty: any value)
-- Returns 1 if it was deleted.
if ARGV[1] ~= '' and redis.call('GETRANGE', KEYS[1], 0, #ARGV[1] - 1) ~= ARGV[1] then
  return 0
end
return redis.call('UNLINK', KEYS[1])
