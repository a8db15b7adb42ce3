-- hosts.lua
--		The script that keeps the list of the hosts that use a node.
--
-- See redlock.lua for how the script becomes C.  All times are the node's own, in ms.  A host
-- was last seen at its last beat.  The node drops a host LUA_HOST_LIVES_MS after its last beat.
--
-- What a node keeps
-- -----------------
--
--    LUA_HOSTS                        sorted set: ids of hosts, by time last seen
--    LUA_HOSTS, NUL, "ids"            sorted set: the same ids, in order of ids, for pages
--    LUA_HOSTS, NUL, "facts"          hash: for each host the name of its configuration, then its
--                                     facts
--    LUA_HOSTS, NUL, "configs:", prefix
--                                     sorted set: names of configurations, by time last used
--    LUA_HOSTS, NUL, "users:", name of a configuration
--                                     sorted set: ids of the hosts with this configuration, by time
--                                     last seen
--    LUA_HOSTS, NUL, "config:", name  text of the configuration
--    LUA_HOSTS, NUL, "name:", name of a host
--                                     sorted set: ids of the hosts with this name, by time last seen
--    LUA_HOSTS, NUL, "mark:", prefix  the list of nodes that replaced another list: see steps.h; it
--                                     never expires
--
-- The name of a configuration is its SHA1.  A key expires when no host writes the key any more,
-- except for the mark.  The keys are in database 0, whatever databases the hosts use for locks.
-- If the user must not SELECT, the keys are in the host's own database.
--
-- No name of a lock contains a NUL, so no lock has one of these keys.
--
-- A call
-- ------
--
--    beat id prefix facts configuration refuses
--           This host is alive.  refuses: '1' if the host takes and holds no locks because of other
--           hosts; the node tells such configurations last.  Returns {'', records, mark, namesake,
--           time}.  records: one for each different configuration in use with this prefix, of the
--           host that used it last; mark: the mark, or ''; namesake: id of another host with the
--           same name, or ''; time: the node's clock, in ms.  The first text is 'more' if there may
--           be further configurations.  It is 'new' if this host's last beat is
--           unknown here or long ago; then there may be further configurations too.  A namesake has
--           been seen since this host's last beat, so both hosts live.
--    mark id prefix mark
--           A list of nodes is replaced.
--    leave id
--           The host is gone.
--    list after
--           Returns {next, records}, with the hosts behind the id "after" ('': all) in the order of
--           their ids.  next: the id for the next call; '': there are no more hosts.
--
-- A record consists of words, with a NUL after each word, and of texts, each behind a word with
-- its length: id, time since last seen, facts, number of the configuration in this answer, text
-- of the configuration.  The text is empty if an earlier record has the same configuration.
--
-- The size of a beat and of its answer does not grow with the number of hosts.  Strangers may
-- write to these keys too: the script skips a host with a text that is too long.

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

-- At most LUA_RECORDS_MAX hosts at a time, so that no beat takes long.
local function forget_those(from, to)
	for _, host in ipairs(call('ZRANGEBYSCORE', hosts, from, to, 'LIMIT', 0, LUA_RECORDS_MAX)) do
		forget(host)
	end
end

local records, size, number_of, numbers = {}, 0, {}, 0

-- Returns false if the answer has no room for the record.
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

-- Returns the host's time and entry, if the node has them and the host may have written them.
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

-- The remaining call is beat.
forget_those('-inf', '(' .. format('%.0f', oldest))
-- A host seen in the future was seen before the clock was set back.  The host may hold locks, so
-- it counts as seen now, unless the time is far away, as only a stranger writes it.
local future = now + LUA_SET_BACK_MS
forget_those('(' .. format('%.0f', future), '+inf')
for _, host in ipairs(call('ZRANGEBYSCORE', hosts, '(' .. format('%.0f', now), format('%.0f', future), 'LIMIT', 0, LUA_RECORDS_MAX)) do
	call('ZADD', hosts, now, host)
end

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
-- The node's ACL has allowed PEXPIRE.  So no key stays without expiry if a later command is
-- refused.
call('HSET', facts, id, config .. ARGV[4])
call('PEXPIRE', facts, lives)
for _, entry in ipairs({{users, now, id}, {configs, ARGV[6] == '1' and oldest or now, config}, {ids, 0, id}, {hosts, now, id}, {namesakes, now, id}}) do
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

-- The latest configurations come first, and those of refusing hosts last: many refusing hosts must
-- not hide a host that takes locks.  Each beat also removes configurations without users.
local more, told = '', 0
local used = call('ZRANGE', configs, -3 - LUA_CONFIGS_MAX, -1)
if #used > 2 + LUA_CONFIGS_MAX then
	more = 'more'
end
for i = #used, 1, -1 do
	local other = used[i]
	if other ~= config then
		-- if any user lives, then the one seen last, and it still has this configuration
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
return {more, table.concat(records), mark, namesake, now}
