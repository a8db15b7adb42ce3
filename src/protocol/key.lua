-- key.lua
--		Pieces of inspect.lua and inspect_many.lua, which read a key of any type.
--
-- See scripts/lua_text.pl for pieces.  Each piece uses locals of its caller.

-- Sets `kind`, and turns `held`, the result of GET, into the value, or into a text about a key of
-- another type.
function READ_KIND(key)
	if type(held) == 'string' then
		kind, held = LUA_KEY_STRING, string.sub(held, 1, LUA_HELD_MAX)
	elseif held then
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
end

-- Counts the live readers of a shared lock in `count`, and collects their hosts in `hosts`.
function READ_READERS(key)
	if kind == LUA_KEY_STRING and string.sub(held, 60, 60) == LUA_SHARED
		and string.match(held, '^[%da-f]+:%d+:[%da-f]+()=[ ~]') == 60 then
		local found = try('HGETALL', key .. '\0readers')
		for j = 1, #found, 2 do
			local host, ends = string.match(found[j + 1], '^%d+:([%da-f]+):%d+:(%d+)$')
			if ends and #host == LUA_HOST_DIGITS and ends - now > 0 then
				count = count + 1
				hosts[count] = count <= LUA_READERS_ASKED and host or nil
			end
		end
	end
end
