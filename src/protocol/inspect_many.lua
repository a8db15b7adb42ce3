-- inspect_many.lua
--		Reads the keys of many locks at a node, for lists.  It writes nothing.
--
-- See redlock.lua for how the script becomes C, and for what a node keeps.
--
-- ARGV: keys of locks, with a NUL after each.
--
-- Returns the node's marker, or ''; and a text with a record for each key, from the first on, as
-- many as LUA_KEYS_SIZE bytes hold.  Numbers in a record end in a NUL:
--
--    kind      LUA_KEY_NONE, LUA_KEY_STRING, LUA_KEY_OTHER: another type, or LUA_KEY_ERROR
--    life      the remaining time in ms; 0: the key never expires
--    readers   number of live readers
--    hosts     number of the readers' hosts that follow, LUA_READERS_ASKED at most
--    bytes     of the value
--    the ids of the hosts; and the value, or a text about a key of another type
--
-- The script does not read counters, and looks for no permits: the list of keys has these.

local call, try = redis.call, redis.pcall
local marker = try('GET', LUA_MARKER)
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local size, n, no_readers = 0, 0, '\0' .. 0 .. '\0' .. 0 .. '\0'
local texts, no_hosts = {}, {}

for key in string.gmatch(ARGV[1], '[^%z]+') do
	local held = try('GET', key)
	local kind, life, count, hosts, readers = LUA_KEY_NONE, 0, 0, no_hosts, no_readers
	local failed = type(held) == 'table' and not string.find(held.err, '^WRONGTYPE')

	if failed then
		kind, held = LUA_KEY_ERROR, ''
	elseif held then
		READ_KIND(key)
		held = string.sub(held, 1, LUA_HELD_MAX)
		life = math.min(call('PTTL', key) + 1, LUA_LIFE_MAX)
		if string.sub(held, 60, 60) == LUA_SHARED then
			hosts = {}
			READ_READERS(key)
			readers = '\0' .. count .. '\0' .. #hosts .. '\0'
		end
	else
		held = ''
	end
	texts[n + 1] = kind .. '\0' .. life .. readers .. #held .. '\0' .. table.concat(hosts)
	texts[n + 2] = held
	size = size + #texts[n + 1] + #held
	if size > LUA_KEYS_SIZE then
		break
	end
	n = n + 2
end

return {type(marker) == 'string' and marker or '', table.concat(texts, '', 1, n)}
