-- inspect.lua
--		The script that reads what a node keeps of a lock.  It writes nothing, and tells no host.
--
-- See redlock.lua for how the script becomes C, and for what a node keeps.
--
-- ARGV: the lock's key.
--
-- Returns the node's marker, or ''; and an error, or an array:
--
--    kind      LUA_KEY_NONE, LUA_KEY_STRING, or LUA_KEY_OTHER: another type
--    value     the key's value, or a text about a key of another type
--    ttl       in ms; -1: the key never expires
--    counter   in digits, or ''
--    readers   number of live readers
--    hosts     the ids of the readers' hosts, LUA_READERS_ASKED at most, without a separator
--    permits   a digit for each permit of the lock, from the first on: 1 if its key exists

local try = redis.pcall
local key = ARGV[1]
local marker, held, counter = try('GET', LUA_MARKER), try('GET', key), try('GET', key .. '\0token')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kind, count, hosts, permits = LUA_KEY_NONE, 0, {}, {}
local failed = type(held) == 'table' and not string.find(held.err, '^WRONGTYPE') and held

marker = type(marker) == 'string' and marker or ''
if failed then
	return {marker, failed}
end
READ_KIND(key)
READ_READERS(key)
if kind == LUA_KEY_STRING and not string.find(key, LUA_PERMIT, 1, true) then
	for n = 1, tonumber(string.match(held, LUA_PERMITS_PATTERN) or 0) do
		permits[n] = try('EXISTS', key .. LUA_PERMIT .. n) == 1 and '1' or '0'
	end
end
return {marker, {kind, held or '', redis.call('PTTL', key),
	type(counter) == 'string' and string.sub(counter, 1, LUA_HELD_MAX) or '',
	count, table.concat(hosts), table.concat(permits)}}
