-- scan.lua
--		The script that lists some keys of locks at a node.  It writes nothing.
--
-- See redlock.lua for how the script becomes C, and for what a node keeps.
--
-- ARGV: a cursor, "0" at first; a pattern for the keys, as SCAN takes it.
--
-- Returns the next cursor, "0" at the end; and keys, with a NUL after each, LUA_KEYS_SIZE bytes at
-- most.  A key may come twice.  Keys with a NUL belong to a lock, and queues of permits to no
-- session: the script leaves them out.

local find, sub = string.find, string.sub

for _, count in ipairs({LUA_SCAN_KEYS, 50, 10, 1}) do
	local found = redis.pcall('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', count)
	if found.err then
		return found
	end
	local keys, size, n = {}, 0, 0
	for _, key in ipairs(found[2]) do
		if not find(key, '\0', 1, true) and sub(key, -1) ~= LUA_PERMIT and #key <= LUA_KEY_MAX then
			n = n + 1
			keys[n] = key
			size = size + #key + 1
		end
	end
	if size <= LUA_KEYS_SIZE then
		keys[n + 1] = ''
		return {found[1], table.concat(keys, '\0')}
	end
end
return redis.error_reply('ERR too many keys in one step of SCAN')
