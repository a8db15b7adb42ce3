-- marker.lua
--		The script that reads the marker of a node, or writes a missing marker.
--
-- See redlock.lua for how the script becomes C.  Each node has one marker, LUA_MARKER: a random
-- text.  As long as a node has the marker, the node has lost no data since the marker was
-- written.  If the writer had seen an earlier marker at the node, " lost " and the node's time
-- in us follow the random text.  A marker never expires.
--
-- ARGV: a random text for a new marker; the marker that this host has seen here before, or '';
-- redlock.max_ttl in ms.
--
-- Returns the marker; 0: no loss, 1: a loss less than max_ttl ago, 2: an earlier loss; and five
-- texts: the rights that the user lacks for each lock, for shared locks and permits, for the list
-- of hosts, for messages to hosts, and for the look at all keys.  Such a text is like
-- "+pexpire +del", or ''.  If the node lacks commands, perhaps by rename-command, returns an error:
-- LUA_MISSING and the commands.

-- A call without arguments changes nothing.  Servers word the error differently.
local missing = ''
for command in string.gmatch('TIME GET SET SETRANGE PTTL PEXPIRE DEL EXISTS HSET HGET HDEL HGETALL'
	.. ' ZADD ZREM ZSCORE ZRANGE ZRANGEBYSCORE ZRANGEBYLEX', '%u+') do
	local reply = redis.pcall(command)
	if type(reply) == 'table' and reply.err and string.find(string.lower(reply.err), 'unknown .-command') then
		missing = missing .. ' ' .. command
	end
end
if missing ~= '' then
	return redis.error_reply(LUA_MISSING .. missing)
end

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

-- The marker exists, and is a string.  So each of these commands changes nothing: it reads, or
-- fails.  A node checks the user's rights before it looks at the key.  The node's error may omit
-- the name of the missing command.
local function lacks(...)
	local rights = {}
	for _, words in ipairs({...}) do
		local reply = redis.pcall(unpack(words))
		if type(reply) == 'table' and reply.err and string.find(reply.err, ' run th', 1, true) then
			rights[#rights + 1] = '+' .. (words.right or words[1])
		end
	end
	return table.concat(rights, ' ')
end

local hset, hget, hdel = {'hset', LUA_MARKER, '', ''}, {'hget', LUA_MARKER, ''}, {'hdel', LUA_MARKER, ''}
local for_each_lock = lacks({'set', LUA_MARKER, '', 'NX'}, {'setrange', LUA_MARKER, 0, ''}, {'pttl', LUA_MARKER},
	{'pexpire', LUA_MARKER, ''}, {'del', LUA_HOSTS .. '\0none'})
local for_some_locks = lacks({'exists', LUA_MARKER}, hset, hget, hdel, {'hgetall', LUA_MARKER})
local for_hosts = lacks(hset, hget, hdel, {'zadd', LUA_MARKER, 0, ''}, {'zrem', LUA_MARKER, ''},
	{'zscore', LUA_MARKER, ''}, {'zrange', LUA_MARKER, 0, 0}, {'zrangebyscore', LUA_MARKER, 0, 0},
	{'zrangebylex', LUA_MARKER, '-', '+'})
local for_messages = lacks({'publish', LUA_HOST, ''}, {'pubsub', 'numsub', right = 'pubsub|numsub'})
local for_looks = lacks({'scan', 0, 'COUNT', 1}, {'type', LUA_MARKER}, {'hscan', LUA_MARKER, 0})

local lost_at = tonumber(string.match(marker, ' lost (%d+)$'))
return {string.sub(marker, 1, LUA_HELD_MAX), not lost_at and 0 or now - lost_at < ARGV[3] * 1000 and 1 or 2,
	for_each_lock, for_some_locks, for_hosts, for_messages, for_looks}
