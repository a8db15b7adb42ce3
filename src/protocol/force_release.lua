-- force_release.lua
--		Deletes the key of a lock of any holder, for an administrator.
--
-- See redlock.lua for how the script becomes C, and for what a node keeps.
--
-- ARGV: the lock's key; the least new counter, in digits; the value to be deleted, or '': any.
-- An attempt of the same request, a reader's value in place of a reader's, and a value with the same
-- number of permits, count as the value.
--
-- Raises the counter above its former number, so that the node refuses late renewals.  The next
-- session gets a larger token.  A failed call may have deleted the key, but not a call that fails
-- because of the counter.
--
-- Returns the node's marker; the lock before the call, as inspect.lua does; LUA_FORCED, or
-- LUA_FORCED_NOT if another value is there, or if sessions have permits of the lock; and the new
-- counter, or ''.

local try = redis.pcall
local sub, match = string.sub, string.match
local form = '^[%da-f]+:%d+:[%da-f]+()=?[ ~]'
local key, least, expected = ARGV[1], ARGV[2], ARGV[3]
local counter_key, readers = key .. '\0token', key .. '\0readers'
local marker, held, counter = try('GET', LUA_MARKER), try('GET', key), try('GET', counter_key)
local ttl, time = try('PTTL', key), redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kind, hosts, free = LUA_KEY_NONE, {}, true

if type(held) == 'table' and not string.find(held.err, '^WRONGTYPE') then
	return held
end
if type(counter) == 'table' then
	return counter
end
if counter and (#counter > LUA_COUNTER_DIGITS or not match(counter, '^%d+$')) then
	return redis.error_reply('ERR the counter is not a number')
end
if type(held) == 'table' then
	kind, held = LUA_KEY_OTHER, 'a key that is not a string'
elseif held then
	kind, held = LUA_KEY_STRING, sub(held, 1, LUA_HELD_MAX)
end

local ours = kind == LUA_KEY_STRING and match(held, form) == 60
if ours and sub(held, 60, 60) == LUA_SHARED then
	local found = try('HGETALL', readers)
	for j = 1, #found, 2 do
		local host, ends = match(found[j + 1], '^%d+:(%x+):%d+:(%d+)$')
		if ends and #host == LUA_HOST_DIGITS and ends - now > 0 and #hosts < LUA_READERS_ASKED then
			hosts[#hosts + 1] = host
		end
	end
end
local lock, number = match(key, LUA_PERMIT_PATTERN)
for n = 1, ours and not lock and tonumber(match(held, LUA_PERMITS_PATTERN) or 0) or 0 do
	free = free and try('EXISTS', key .. LUA_PERMIT .. n) == 0
end
local permits = not lock and match(expected, LUA_PERMITS_PATTERN)
local same = expected == '' or held == expected or ours and match(expected, form) == 60
	and (sub(held, 1, 33) == sub(expected, 1, 33)
		or sub(held, 60, 60) == LUA_SHARED and sub(expected, 60, 60) == LUA_SHARED
		or permits and match(held, LUA_PERMITS_PATTERN) == permits)
local before = {kind, held or '', ttl, counter or '', #hosts, table.concat(hosts), ''}
if not free or held and not same then
	return {marker or '', before, LUA_FORCED_NOT, ''}
end

local raised = least
if counter and tonumber(counter) >= tonumber(least) then
	raised = string.format('%.0f', counter + 1)
end
if tonumber(raised) >= LUA_COUNTER_END then
	return redis.error_reply(LUA_AHEAD .. ' of all time: the counter')
end

-- A full node takes a DEL, and after it the counter.
local deleted = try('DEL', key, readers)
if type(deleted) == 'table' then
	return deleted
end
local ahead = raised / 1000 - time[1] * 1000 - time[2] / 1000
local set = raised ~= '0'
	and try('SET', counter_key, raised, 'PX', math.floor(LUA_COUNTER_KEEP_MS + math.max(0, ahead)))
if set and set.err then
	return set
end
if deleted > 0 then
	try('PUBLISH', key, 'free\0000\0')
	if lock then
		try('PUBLISH', lock .. LUA_PERMIT, 'permit\0' .. number .. '\0')
	end
end
return {marker or '', before, LUA_FORCED, raised}
