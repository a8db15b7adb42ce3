-- readers.lua
--		The script that tells the hosts that share a lock.
--
-- See redlock.lua for how it becomes C, and for what is kept of readers.
--
-- ARGV: the lock's key; what they are told; a random number: of more than LUA_READERS_ASKED it
-- tells so many, from any of them on.
--
-- Returns how many were told.

local found = redis.call('HGETALL', ARGV[1] .. '\0readers')
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local first = #found > 0 and ARGV[3] % (#found / 2) or 0
local told = 0

for i = 0, #found / 2 - 1 do
	local reader = found[2 * ((first + i) % (#found / 2)) + 2]
	local host, ends = string.match(reader, '^%d+:(%x+):%d+:(%d+)$')
	if ends and ends - now > 0 and told < LUA_READERS_ASKED then
		told = told + 1
		redis.call('PUBLISH', LUA_HOST .. host, ARGV[2])
	end
end
return told
