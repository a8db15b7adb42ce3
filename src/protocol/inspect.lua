-- inspect.lua
--		The script that reads what a node keeps of locks.  It writes nothing, and tells no host.
--
-- See redlock.lua for how the script becomes C, and for what a node keeps.
--
-- ARGV: keys of locks, LUA_INSPECTED_MAX at most.
--
-- Returns the node's marker, or ''; and for each key an error, or an array:
--
--    kind      LUA_KEY_NONE, LUA_KEY_STRING, or LUA_KEY_OTHER: another type
--    value     the key's value, or a text about a key of another type
--    ttl       in ms; -1: the key never expires
--    counter   in digits, or ''
--    readers   number of live readers
--    hosts     the ids of the readers' hosts, LUA_READERS_ASKED at most, without a separator
--    permits   a digit for each permit of the lock, from the first on: 1 if its key exists

local call, try = redis.call, redis.pcall
local marker = try('GET', LUA_MARKER)
local replies = {type(marker) == 'string' and marker or ''}
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

for i, key in ipairs(ARGV) do
	local held = try('GET', key)
	local counter = try('GET', key .. '\0token')
	local kind, count, hosts, permits = LUA_KEY_NONE, 0, {}, {}
	local failed = type(held) == 'table' and not string.find(held.err, '^WRONGTYPE') and held

	if type(held) == 'string' then
		kind, held = LUA_KEY_STRING, string.sub(held, 1, LUA_HELD_MAX)
	elseif held and not failed then
		local found = try('HSCAN', key, 0)[2] or {}
		local client
		for j = 1, #found, 2 do
			client = client or string.match(found[j], '^%x+%-%x+%-%x+%-%x+%-%x+:%d+')
		end
		local name = try('TYPE', key).ok
		kind = LUA_KEY_OTHER
		held = client and 'a Redisson lock of ' .. string.sub(client, 1, LUA_HELD_MAX)
			or name and 'a key of type ' .. name or 'a key that is not a string'
	end
	if kind == LUA_KEY_STRING and string.match(held, '^[%da-f]+:%d+:[%da-f]+()=[ ~]') == 60 then
		local found = try('HGETALL', key .. '\0readers')
		for j = 1, #found, 2 do
			local host, ends = string.match(found[j + 1], '^%d+:(%x+):%d+:(%d+)$')
			if ends and ends - now > 0 then
				count = count + 1
				hosts[count] = count <= LUA_READERS_ASKED and host or nil
			end
		end
	end
	if kind == LUA_KEY_STRING and not string.find(key, LUA_PERMIT, 1, true) then
		for n = 1, tonumber(string.match(held, LUA_PERMITS_PATTERN) or 0) do
			permits[n] = try('EXISTS', key .. LUA_PERMIT .. n) == 1 and '1' or '0'
		end
	end
	replies[i + 1] = failed or {kind, held or '', call('PTTL', key),
		type(counter) == 'string' and string.sub(counter, 1, LUA_HELD_MAX) or '',
		count, table.concat(hosts), table.concat(permits)}
end

return replies
