-- marker.lua
--		The script that reads the marker of a node, or writes it where there is none.
--
-- See redlock.lua for how it becomes C.  The marker is LUA_MARKER, one for each node: random
-- text that says that the node has lost no data since it was written; if one who had seen an
-- earlier marker wrote it, followed by " lost " and the node's time in us; never expires.
--
-- ARGV: random text for a new one; the marker that was seen here before or ''; redlock.max_ttl
-- in ms.
--
-- Returns {the marker, 0}, or if it tells of a loss {the marker, 1 if that is less than max_ttl
-- ago, else 2}.

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local marker = redis.call('GET', LUA_MARKER)

if not marker then
	marker = ARGV[1]
	if ARGV[2] ~= '' then
		marker = marker .. ' lost ' .. string.format('%.0f', now)
	end
	redis.call('SET', LUA_MARKER, marker)
end

local lost_at = tonumber(string.match(marker, ' lost (%d+)$'))
return {string.sub(marker, 1, LUA_HELD_MAX), not lost_at and 0 or now - lost_at < ARGV[3] * 1000 and 1 or 2}
