-- readers.lua
--		The script that sends a message to the hosts of all readers of a lock.
--
-- See redlock.lua for how the script becomes C, and for the readers that a node keeps.
--
-- ARGV: the lock's key; the message; a random number.  If the lock has more than
-- LUA_READERS_ASKED readers, the script tells this many, beginning at a random reader.
--
-- Returns the number of readers told.

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
