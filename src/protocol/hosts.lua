-- hosts.lua
--		The script that keeps the list of the hosts that use a node.
--
-- See redlock.lua for how it becomes C.  All times are the node's own, in ms: a host was seen
-- at its last beat, and is gone LUA_HOST_LIVES_MS after that.
--
-- What a node keeps
-- -----------------
--
--	 LUA_HOSTS					   sorted set: ids of hosts, by when each was seen
--	 LUA_HOSTS, NUL, "ids"		   sorted set: the same ids, in their own order, for pages
--	 LUA_HOSTS, NUL, "facts"	   hash: of each host the name of its configuration, then what
--								   it says of itself
--	 LUA_HOSTS, NUL, "configs:", prefix
--								   sorted set: names of configurations, by when each was used
--	 LUA_HOSTS, NUL, "users:", name of a configuration
--								   sorted set: ids of the hosts that use it, by when each was seen
--	 LUA_HOSTS, NUL, "config:", name
--								   its text
--	 LUA_HOSTS, NUL, "name:", name of a host
--								   sorted set: ids of the hosts that are called so, by when each was seen
--	 LUA_HOSTS, NUL, "mark:", prefix
--								   the list of nodes that took the place of another: see steps.h; it stays
--
-- The name of a configuration is its SHA1.  A key expires when no host writes it any more, but for the mark.
-- They are in database 0, whatever databases the hosts have their locks in; where the user
-- must not SELECT, in that of the host.
--
-- No name of a lock has a NUL in it, so they are not in the way of locks.
--
-- A call
-- ------
--
--	 beat id prefix facts configuration
--			  This host is there.  Returns {'', records, mark, namesake}: a record for each other
--			  configuration in use with this prefix, of the host that used it last; the mark, or '';
--			  and the id of another host with the same name, or ''.  With 'more' in place of the first
--			  '' there may be other configurations; with 'new' there may, since this host's own last
--			  beat is not known here, or is long ago.  A namesake has been seen since this host's last
--			  beat: so both live.
--	 mark prefix mark
--			  Nodes are replaced.
--	 leave id
--			  It is gone.
--	 list after
--			  Returns {next, records}, with the hosts behind the id "after" ('': all) in the
--			  order of their ids.  "next" is what to go on with, or '': that was all.
--
-- A record is of words, a NUL after each, and of texts, each behind a word that is its
-- length: id, time since it was seen, facts, number of its configuration in this answer, text
-- of that; which is empty if an earlier record has it.
--
-- What a host writes, and what it is told at a beat, does not grow with the number of hosts.
-- Strangers may write, too: what is too long for a host of ours is none.

local call = redis.call
local sub, format = string.sub, string.format
local op, id = ARGV[1], ARGV[2]

redis.pcall('SELECT', 0)
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local oldest = now - LUA_HOST_LIVES_MS
local hosts, ids, facts = LUA_HOSTS, LUA_HOSTS .. '\0ids', LUA_HOSTS .. '\0facts'

local function users_of(config)
	return LUA_HOSTS .. '\0users:' .. config
end

local function text_of(config)
	return LUA_HOSTS .. '\0config:' .. config
end

local function forget(host)
	local entry = call('HGET', facts, host)
	if entry then
		call('ZREM', users_of(sub(entry, 1, 40)), host)
	end
	call('HDEL', facts, host)
	call('ZREM', ids, host)
	call('ZREM', hosts, host)
end

-- So many at a time that no beat takes long.
local function forget_those(from, to)
	for _, host in ipairs(call('ZRANGEBYSCORE', hosts, from, to, 'LIMIT', 0, LUA_RECORDS_MAX)) do
		forget(host)
	end
end

local records, size, number_of, numbers = {}, 0, {}, 0

-- False: there is no room for it.
local function add(host, seen, entry, config)
	local number, text = number_of[config], ''
	if not number then
		number = numbers + 1
		text = call('GET', text_of(config)) or ''
		if #text > LUA_CONFIG_MAX then
			text = ''
		end
	end
	local record = host .. '\0' .. format('%.0f', now - seen) .. '\0' .. #entry - 40 .. '\0' .. sub(entry, 41)
		.. number .. '\0' .. #text .. '\0' .. text
	if size + #record > LUA_ANSWER_SIZE then
		return false
	end
	records[#records + 1] = record
	size = size + #record
	number_of[config] = number
	numbers = math.max(numbers, number)
	return true
end

local function is_id(host)
	return #host == 16 and string.find(host, '^[0-9a-f]+$')
end

-- The host, if it is there and what is kept of it may be its own.
local function seen_and_entry(host)
	local seen = tonumber(call('ZSCORE', hosts, host) or '')
	local entry = call('HGET', facts, host)
	if is_id(host) and seen and seen >= oldest and seen <= now
			and entry and #entry >= 40 and #entry <= LUA_FACTS_MAX + 40 then
		return seen, entry
	end
end

if op == 'leave' then
	forget(id)
	return 1
end

if op == 'mark' then
	if #ARGV[4] <= LUA_MARK_MAX then
		call('SET', LUA_HOSTS .. '\0mark:' .. ARGV[3], ARGV[4])
	end
	return 1
end

if op == 'list' then
	local page = call('ZRANGEBYLEX', ids, id == '' and '-' or '(' .. id, '+', 'LIMIT', 0, LUA_RECORDS_MAX)
	local last, strangers = '', 0
	for _, host in ipairs(page) do
		local seen, entry = seen_and_entry(host)
		if seen and not add(host, seen, entry, sub(entry, 1, 40)) then
			return {last, table.concat(records)}
		end
		if is_id(host) then
			last = host
		else
			strangers = strangers + 1
		end
		if not is_id(host) or not call('ZSCORE', hosts, host) then
			call('ZREM', ids, host)
		end
	end
	if strangers > 0 and last == '' then
		return redis.error_reply('ERR there were strangers in the list of hosts')
	end
	return {#page == LUA_RECORDS_MAX and last or '', table.concat(records)}
end

-- What is left is beat.  Who was seen in the future was so before the clock was set back.
forget_those('-inf', '(' .. format('%.0f', oldest))
forget_those('(' .. format('%.0f', now), '+inf')

local prefix, text, config = ARGV[3], ARGV[5], redis.sha1hex(ARGV[5])
local configs, users = LUA_HOSTS .. '\0configs:' .. prefix, users_of(config)
local namesakes = LUA_HOSTS .. '\0name:' .. string.match(ARGV[4], '^[^%z]*')
local lives = 2 * LUA_HOST_LIVES_MS
local before = call('HGET', facts, id)
local seen_before = before and tonumber(call('ZSCORE', hosts, id) or '')
if before and sub(before, 1, 40) ~= config then
	call('ZREM', users_of(sub(before, 1, 40)), id)
end
if call('PEXPIRE', text_of(config), lives) == 0 then
	call('SET', text_of(config), text, 'PX', lives)
end
-- The node's ACL has let PEXPIRE pass, so no key stays without a life when a later command is refused.
call('HSET', facts, id, config .. ARGV[4])
call('PEXPIRE', facts, lives)
for _, entry in ipairs({{users, now, id}, {configs, now, config}, {ids, 0, id}, {hosts, now, id}, {namesakes, now, id}}) do
	call('ZADD', unpack(entry))
	call('PEXPIRE', entry[1], lives)
end
for _, other in ipairs(call('ZRANGE', namesakes, 0, -4)) do
	call('ZREM', namesakes, other)
end
local namesake = ''
for _, other in ipairs(seen_before and call('ZRANGEBYSCORE', namesakes, '(' .. format('%.0f', seen_before), now) or {}) do
	if other ~= id and is_id(other) then
		namesake = other
	end
end
local mark = call('GET', LUA_HOSTS .. '\0mark:' .. prefix) or ''
if #mark > LUA_MARK_MAX then
	mark = ''
end

-- The latest come first.  Each beat also takes away what nobody uses any more.
local more, told = '', 0
local used = call('ZRANGE', configs, -3 - LUA_CONFIGS_MAX, -1)
if #used > 2 + LUA_CONFIGS_MAX then
	more = 'more'
end
for i = #used, 1, -1 do
	local other = used[i]
	if other ~= config then
		-- who was seen last is alive, if any is, and still has this configuration
		local user = call('ZRANGE', users_of(other), -1, -1)[1]
		local seen, entry
		if user then
			seen, entry = seen_and_entry(user)
		end
		if not user then
			call('ZREM', configs, other)
		elseif not seen or sub(entry, 1, 40) ~= other then
			call('ZREM', users_of(other), user)
			more = 'more'
		elseif told == LUA_CONFIGS_MAX or not add(user, seen, entry, other) then
			more = 'more'
		else
			told = told + 1
		end
	end
end
if not seen_before or now - seen_before > LUA_HOST_SILENT_MS then
	more = 'new'
end
return {more, table.concat(records), mark, namesake}
