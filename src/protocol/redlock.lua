-- redlock.lua
--		The script that a node executes for commands on locks.
--
-- scripts/lua_text.pl makes lua_text.c from this file.  It replaces the names of constants of
-- lua.h (LUA_SPAN and others) by their values, tostring() of a constant by a text, and each use
-- of a piece by the piece (see below).  If a node's error names a line of user_script, count the
-- lines of lua_script in lua_text.c.
--
-- What a node keeps
-- -----------------
--
--    key       prefix || name in UTF-8
--    value     32 hex digits, ':', the attempt in nine digits, ':', the host's id in 16 hex
--              digits, LUA_SHARED or nothing, ' ' or LUA_MAY_IDLE, the holder's text.  Characters
--              1 to 33 identify the request, 34 to 42 the attempt, 44 to 59 the host.
--
--    counter   key || NUL || "token": the last fencing token, in digits, a whole number without
--              leading zeros.  It expires LUA_COUNTER_KEEP_MS after its own time, or after it was
--              written, whichever is later: see lua.h
--    marker    LUA_MARKER, one for each node: see marker.lua
--
--    readers   key || NUL || "readers": a hash with an entry for each reader.  It counts only while
--              the value has LUA_SHARED.  A command that creates the key drops an old hash.  The
--              value of the key is the last reader's value, with LUA_MAY_IDLE if any reader has
--              LUA_MAY_IDLE.  The key lives as long as the longest reader.  Field: characters 1 to
--              33 of the reader's value.  Entry: characters 34 to 59, ':', the granted counter, ':',
--              when the reader ends, in ms by the node's clock.
--              Field "since": no exclusive lock was granted since the counter had this number.
--
--    barrier   key || NUL || "barrier": of a writer that waits while the lock is shared: the
--              counter, ':', the writer's value.  The barrier holds back new readers for
--              LUA_BARRIER_MS after the writer last asked.  It ends sooner when the counter has
--              grown by LUA_SPAN, because a session has had the lock since.
--
--    permit    key || LUA_PERMIT || its number: the key of a lock, with its own value and counter.
--              While a node has a permit, it also has the key of the lock itself, which lives as
--              long as the longest permit.  The value of this key is the last written value of a
--              permit.  The value states the number of permits.  No session holds the lock by this
--              key; it refuses every caller that states a different number, or none.
--
-- A key of another type under the lock's name is like a plain client's string: the lock is held.
-- (Redisson's keys are hashes.) All further keys belong to this extension only.  If such a key
-- has another type, the node can't tell what it granted: commands that need the key fail.
--
-- No name contains a NUL, so no lock has the key of a counter or a marker.  The key has the
-- semantics of SET NX PX and of compare-and-delete.  So plain Redlock clients contend with us
-- for the same key, and take a shared lock for a held lock.
--
-- Messages
-- --------
--
-- A message consists of words, with a NUL after each word.
--
--    on the channel with the key's name, at a release that asks for it:
--              free, and the words of the release from the sixth on
--
--    on the channel of a host, LUA_HOST || id, when an acquire is refused because the host has the
--    key; for a try only if the host's value has LUA_MAY_IDLE:
--              want key, the id of the asking host, how long it has waited, or LUA_TRY
--
--    on the channels of the hosts of readers, when an exclusive acquire is refused:
--              the same.  A writer with the barrier tells all readers, another writer at most
--              LUA_READERS_TOLD; a try tells readers only if the value has LUA_MAY_IDLE.
--
--    on the channel with the name of a queue's key, at the release of a permit:
--              permit, and its number
--
-- A node returns at most LUA_HELD_MAX bytes of a value: our values are shorter, and people see
-- less of a stranger's value.
--
-- A user without the right to publish can still ask and release.
--
-- Calls
-- -----
--
-- A call has no KEYS.  ARGV[1] is the marker known to the client.  Each further argument is a
-- command: six or more words, with a NUL after each word.  The node executes the commands in
-- order.  The reply is an array with the result of each command.
--
--    acquire key value ttl proposal waited [permits]
--              ttl: in ms; proposal: the client's wall clock in us; waited: for how many us the
--              client has waited, or LUA_TRY if it does not wait; permits: the lock's number of
--              permits, if the key is a permit.  Returns the counter as text, or {ttl left in ms,
--              value at the key, number of hosts that wait for the release}.  For a permit the
--              array also has a free permit, or 0.  A writer with the barrier gets the number 0:
--              it asks in time to keep the barrier.
--
--    confirm key value counter token ""
--              counter: the granted counter.  Returns 1, or 0 if counter or value is gone.
--
--    renew key value ttl bound raise
--              raise: the least new counter, at least the bound.  Returns 1.  Returns 0 if the key
--              is another lock's, or the lock's key refuses the permit.  Returns the counter as
--              text if the counter is above the bound and the value is not at the key.
--
--    release key value last tombstone token [host waited] ...
--              last: LUA_DELETE_AND_TELL: delete the key and tell waiters;
--              LUA_DELETE_AND_TELL_QUEUE: also tell the waiter for any permit; LUA_DELETE: delete
--              the key; any other number: keep the key for this many ms, with LUA_KEPT before the
--              holder's text.  tombstone: the least new counter, or 0.  token: of the ended lease,
--              or 0.  Then the hosts whose turn is next, in order, each with its waiting time in
--              us, by the clock of the releasing host.  Returns 1, or 0 if the key was not there.
--
-- Each command with " shared" behind its name does the same for a reader, who may hold the lock
-- beside more readers.
--
--    acquire   An exclusive lock or a barrier refuses a reader.  A grant raises the counter too.
--    confirm   raises the counter to the token, if the reader's entry is unchanged since the grant;
--              another reader may have raised the counter since.
--    renew     A missing reader comes back if the bound is at least "since".  For a reader from an
--              acquire, a bound of at least its granted counter also suffices.
--    release   The last reader's release deletes the key, and only then tells waiters.  The
--              tombstone raises "since" too.
--
-- Failures
-- --------
--
-- A command that fails must not fail the rest of its call, which is about other locks.  So each
-- command reads and checks before it writes.  An error in the array means: the command did
-- nothing, except that a release may have deleted the key.  An error in place of the array
-- concerns the whole node.  Then the node may have executed the commands before the error.
--
-- Only the hash of readers gets its expiry by a separate command.  So PEXPIRE comes first,
-- because the node's ACL may refuse it.  Then comes HSET, then PEXPIRE again, in case HSET has
-- created the hash.  Otherwise a reader with a refused PEXPIRE would stay for ever.
--
-- A node whose memory is full (maxmemory) refuses to write until the script has called a command
-- that changes something.  Such a node still deletes keys and shortens their lives.  After the
-- first change it refuses nothing to this script.  So the first write of each command is a write
-- that a full node takes, or a write that may fail (try) with nothing done.
--
-- A full node executes all releases.  It also executes commands for a name whose counter exists,
-- renewals where the key exists, and acquires of readers where readers have the key.  Such a
-- command first deletes a key that never exists, as a change.  All other acquires would add to
-- the node's data, and are refused, also behind earlier commands.  For this, a call with several
-- commands first tests the node, by writing nothing to the marker.
--
-- Pieces
-- ------
--
-- A function with a name in capitals is no function in the executed script. scripts/lua_text.pl
-- replaces each use by the body, and the parameters by the arguments.  So a piece reads and sets
-- the command's locals, a local of a piece is a local of the command, and "break" ends the
-- command.
--
-- Costs
-- -----
--
-- Starting a script costs a node as much as three called commands.  A called command costs as
-- much as four arguments, and an argument as much as a dozen lines.  A function or a protected
-- call costs as much as an argument.  So one script executes many commands in one loop, and
-- calls no function of its own.  Numbers are compared as text where this suffices.  An acquire
-- looks at the node's clock only if the counter is missing or was not raised for long.

local call, try, arguments = redis.call, redis.pcall, ARGV
local sub, find, match, read_words = string.sub, string.find, string.match, struct.unpack
local known_marker = arguments[1]
local marker -- of this node; the first command that needs it reads it

-- An error, if the node is full.  An earlier command could make a full node accept an acquire,
-- so a call with several commands tests first.
local full = #arguments > 2 and try('SETRANGE', LUA_MARKER, 0, '')
full = type(full) == 'table' and string.find(full.err, 'OOM', 1, true) and full
-- Our values have colons at 33 and 43, and the digits of this form end before the 60th
-- character.  A shared lock has LUA_SHARED at 60.  Tests of single characters are cheaper than
-- the match, so they come first.  A match must not run through millions of digits: the script
-- first cuts a long value, or tests the character at 60.
local form = '^[%da-f]+:%d+:[%da-f]+()=?[ ~]'

--
-- Slices of a value
--

-- Slices of our values: 33, 9, 16 characters and one.
function REQUEST(value) return sub(value, 1, 33) end
function ATTEMPT(value) return sub(value, 34, 42) end
function HOST(value) return sub(value, 44, 59) end
function KIND(value) return sub(value, 60, 60) end -- ' ', LUA_MAY_IDLE or LUA_SHARED

-- The part of a value that a reply returns; a stranger may have written the value.
function SHOWN(value) return sub(value, 1, LUA_HELD_MAX) end

-- Whether a string may be our value; whether it is our value.
function COLONS(value) return sub(value, 33, 33) == ':' and sub(value, 43, 43) == ':' end
function NO_COLONS(value) return sub(value, 33, 33) ~= ':' or sub(value, 43, 43) ~= ':' end
function IS_OURS(value) return COLONS(value) and match(value, form) == 60 end
-- Whether the value is a reader's.
function IS_SHARED(value) return KIND(value) == LUA_SHARED and IS_OURS(value) end

-- The number of permits, as text; nil or false if the lock's key does not stand for permits.
function PERMITS(value) return (COLONS(value) and KIND(value) == ' ' and match(value, LUA_PERMITS_PATTERN)) end

-- Whether `held` is an earlier attempt of the same request.
function IS_EARLIER(held, value) return (sub(held, 1, 33) == sub(value, 1, 33) and sub(held, 34, 42) < sub(value, 34, 42)) end

-- Parts of a reader's entry in the hash: the attempt, the granted counter.
function ATTEMPT_IN(entry) return sub(entry, 1, 9) end
function GRANTED_IN(entry) return match(entry, ':(%d+):%d+$') end

--
-- Numbers and clocks
--

-- Compares two numbers as text: first by length, then by order of the text.
function IS_LESS(a, b) return (#a < #b or #a == #b and a < b) end

-- The node's clock in ms.
function MS_OF(time) return time[1] * 1000 + math.floor(time[2] / 1000) end

-- How long a counter lives whose time is `ahead` ms ahead of the node's clock.
function COUNTER_LIFE(ahead) return math.floor(LUA_COUNTER_KEEP_MS + math.max(0, ahead)) end

-- Sets ahead: how far the counter is ahead of the clock, in ms.
function LOOK_HOW_FAR_AHEAD(counter)
	local time = call('TIME')
	local ahead = counter / 1000 - time[1] * 1000 - time[2] / 1000
end

--
-- Reading
--

-- Ends the command if a protected call returned an error.  A string has no "err".
function RETURN_ERROR(found)
	if found and found.err then
		reply = found
		break
	end
end

-- The same after a write, which always returns a value.
function RETURN_FAILURE(set)
	if set.err then
		reply = set
		break
	end
end

-- Changes the result of GET to '', a stranger's value, if the key has another type.  Another error
-- ends the command.
function ACCEPT_OTHER_TYPE(found)
	if found and found.err then
		if not match(found.err, '^WRONGTYPE') then
			reply = found
			break
		end
		found = ''
	end
end

-- Sets held: the value of the key; '' if the key has another type; false if there is no key.
function GET_HELD()
	local held = try('GET', key)
	ACCEPT_OTHER_TYPE(held)
end

-- Sets counter and counter_key.  A counter that is not a string is an error: another program
-- made it.
function GET_COUNTER()
	local counter_key = key .. '\0token'
	local counter = try('GET', counter_key)
	RETURN_ERROR(counter)
end

-- Sets since and waiter, the two parts of the barrier, if there is a barrier.
function SPLIT_BARRIER()
	local since, waiter
	if barrier and not barrier.err then
		since, waiter = match(SHOWN(barrier), '^(%d+):(.+)$')
	end
end

-- How many hosts wait for a release of this key.
function WAITERS() return try('PUBSUB', 'NUMSUB', key)[2] or 0 end

--
-- Writing
--

-- Changes nothing, but lets this script write at a full node from now on.
function CHANGE_NOTHING()
	try('DEL', key .. '\0none')
end

-- The message to a holder's host.
function WANT() return 'want\0' .. key .. '\0' .. HOST(value) .. '\0' .. word6 .. '\0' end

-- Adds `reader` to the existing readers.  Sets set, which is a table after an error.
function JOIN_READERS()
	set = try('PEXPIRE', readers, life)
	if type(set) ~= 'table' then
		set = try('HSET', readers, request, reader)
	end
end

-- Makes the key and the hash for the first reader.  Sets set, which is a table after an error;
-- then neither key nor hash is left.
function BEGIN_READERS(since_then)
	set = try('SET', key, value, 'NX', 'PX', ttl)
	if not set.err then
		call('DEL', readers)
		set = try('PEXPIRE', readers, life)
		if type(set) ~= 'table' then
			set = try('HSET', readers, 'since', since_then, request, reader)
		end
		if type(set) == 'table' then
			call('DEL', key)
		end
	end
end

-- The marker must be the marker known to the client.  A counter does not prove that the node has
-- its data: a late release or renewal may have made the counter since.
function CHECK_MARKER()
	marker = marker or try('GET', LUA_MARKER)
	if marker ~= known_marker then
		reply = redis.error_reply(LUA_FORGOT .. ' its marker: the data of this node was lost')
		break
	end
end

--
-- acquire
--

-- Sets raised, the new counter, and near: the counter is near to the proposal.
--
-- The counter follows the clocks of clients, within the bounds of the node's clock, so tokens
-- stay in order even after the counter is lost.  Proposal and counter are near if their first
-- LUA_NEAR_DIGITS are the same: then no clock is needed.  Each grant raises the counter by at
-- least LUA_SPAN.
function RAISE_COUNTER()
	local raised = proposal
	local near = counter and #counter == #proposal
		and sub(counter, 1, LUA_NEAR_DIGITS) == sub(proposal, 1, LUA_NEAR_DIGITS)
	if not near then
		local time = call('TIME')
		local now = time[1] * 1000000 + time[2]
		if proposal - now > LUA_CLOCK_BOUND_US then
			reply = redis.error_reply(LUA_AHEAD .. ' of the clock of this node: that of the client, by '
				.. string.format('%.0f', (proposal - now) / 1000000) .. ' s')
			break
		end
		if now - proposal > LUA_CLOCK_BOUND_US then
			raised = string.format('%.0f', now - LUA_CLOCK_BOUND_US)
		end
	end
	if counter and raised - counter < LUA_SPAN then
		local least = counter + LUA_SPAN
		if least >= LUA_COUNTER_END then
			reply = redis.error_reply(LUA_AHEAD .. ' of all time: the counter')
			break
		end
		raised = string.format('%.0f', least)
	end
end

-- For a permit.  Sets permits, lock and queue.  Sets bar and barred, a key and its value, if the
-- key bars the permit.  Only the first host in the queue gets a permit.  A holder of the lock
-- itself, or of a permit with a different number of permits, bars all permits.
function LOOK_AT_PERMITS()
	local number = read_words('s', arguments[i], rest_at)
	permits = tonumber(number)
	lock = match(key, '^([^' .. LUA_PERMIT .. ']*)')
	lock_held = try('GET', lock)
	if lock_held and lock_held.err then
		other_key = match(lock_held.err, '^WRONGTYPE') and lock
		if not other_key then
			reply = lock_held
			break
		end
		lock_held = ''
	end
	queue = lock .. LUA_PERMIT
	local queued = try('GET', queue)
	RETURN_ERROR(queued)
	if queued and (HOST(queued) ~= HOST(value) or KIND(queued) == LUA_SHARED
			or NO_COLONS(queued) or match(sub(queued, 1, 61), form) ~= 60) then
		bar, barred = queue, queued
	end
	if lock_held and (NO_COLONS(lock_held)
			or KIND(lock_held) ~= ' ' or match(lock_held, LUA_PERMITS_PATTERN) ~= number) then
		bar, barred = lock, lock_held
	end
end

-- For a reader.  Ends the command if this attempt is already granted, or is refused.  Otherwise
-- the reader is added, and was_shared tells whether the lock had readers before.  A refusal must
-- mean that the node does not have this request: the barrier refuses no reader that is already
-- there.
function ACQUIRE_AS_READER()
	local readers, request = key .. '\0readers', REQUEST(value)
	local held = try('GET', key)
	if held and held.err then
		other_key = match(held.err, '^WRONGTYPE') and key
		if not other_key then
			reply = held
			break
		end
		held = ''
	end
	held = held and SHOWN(held)
	was_shared = held and IS_SHARED(held)
	local mine = was_shared and try('HGET', readers, request)
	RETURN_ERROR(mine)
	if mine and ATTEMPT_IN(mine) == ATTEMPT(value) then
		reply = sub(GRANTED_IN(mine) or '0', 1, LUA_HELD_MAX)
		break
	end
	if held and not was_shared then
		if IS_OURS(held) and (word6 ~= LUA_TRY or KIND(held) == LUA_MAY_IDLE) then
			try('PUBLISH', LUA_HOST .. HOST(held), WANT())
		end
		reply = {call('PTTL', key), held, WAITERS()}
		break
	end

	local barrier = not mine and try('GET', key .. '\0barrier')
	SPLIT_BARRIER()
	if since and counter and counter - since < LUA_SPAN then
		reply = {call('PTTL', key .. '\0barrier'), sub(waiter, 1, 60) .. LUA_WAITED_FOR .. sub(waiter, 61), WAITERS()}
		break
	end
	if mine and ATTEMPT_IN(mine) > ATTEMPT(value) then
		reply = {call('PTTL', key), held, WAITERS()}
		break
	end

	if counter or was_shared then
		CHANGE_NOTHING()
	elseif full then
		reply = full
		break
	end
	local time = call('TIME')
	local ends = MS_OF(time) + ttl
	local reader = sub(value, 34, 59) .. ':' .. raised .. ':' .. string.format('%.0f', ends)
	local life = ttl
	if was_shared then
		life = math.max(ttl, call('PTTL', key))
		JOIN_READERS()
	else
		BEGIN_READERS(counter or '0')
	end
	if type(set) == 'table' then
		reply = set
		break
	end
	call('PEXPIRE', readers, life)
	if was_shared then
		local may_stay = sub(held, 61, 61) == LUA_MAY_IDLE and LUA_MAY_IDLE or sub(value, 61, 61)
		call('SET', key, sub(value, 1, 60) .. may_stay .. sub(value, 62), 'PX', life)
	end
end

-- For a writer.  Sets set: the key is now this attempt's; or an error; or false if a key or a
-- bar is there.  A full node still returns the holder's value.  A repeated acquire is granted
-- only once, and a later attempt replaces an earlier attempt of the same request.
function ACQUIRE_AS_WRITER()
	set = not barred and (full or try('SET', key, value, 'NX', 'PX', ttl))
	if set and set.err and counter then
		CHANGE_NOTHING()
		set = try('SET', key, value, 'NX', 'PX', ttl)
	end
end

-- For a writer without the key.  Repeats a grant, returns an error, or refuses the writer.  If
-- the key is an earlier attempt's, replaces it.
function ANSWER_WRITER()
	local held = try('GET', key)
	local has_other_type = held and held.err
	if has_other_type then
		if not match(has_other_type, '^WRONGTYPE') then
			reply = held
			break
		end
		held = ''
	end
	if held == value then
		reply = counter or '0'
		break
	end

	-- The lock's key also bars an earlier attempt's permit, which would not count.
	if barred and (bar == lock or not held) then
		reply = {call('PTTL', bar), SHOWN(barred), 0, 0}
		break
	end
	other_key = has_other_type and key
	if held and not IS_EARLIER(held, value) then
		REFUSE_WRITER()
		break
	end
	if not set then
		CHANGE_NOTHING()
		set = call('SET', key, value, 'PX', ttl)
	end
	RETURN_FAILURE(set)
end

-- Sets reply, and tells the holder's host, or the readers' hosts, of this waiting host.
function REFUSE_WRITER()
	held = SHOWN(held)
	local want = WANT()
	local in_front = false -- the first of the waiting writers
	local maybe_ours = COLONS(held)
	if maybe_ours and KIND(held) == LUA_SHARED and match(held, form) == 60 then
		STAND_IN_FRONT()
		TELL_READERS()
	elseif maybe_ours and (word6 ~= LUA_TRY or KIND(held) == LUA_MAY_IDLE)
			and match(held, form) == 60 then
		try('PUBLISH', LUA_HOST .. HOST(held), want)
	end
	reply = {call('PTTL', key), held, not in_front and WAITERS()}
	if permits > 0 then
		NAME_A_FREE_PERMIT()
	end
end

-- Sets the barrier, unless another writer has it.  Sets in_front: this writer has the barrier.
function STAND_IN_FRONT()
	local barrier = try('GET', key .. '\0barrier')
	SPLIT_BARRIER()
	if word6 ~= LUA_TRY and counter and not (barrier and barrier.err) and (not since
			or REQUEST(waiter) == REQUEST(value) or counter - since >= LUA_SPAN) then
		in_front = true
		try('SET', key .. '\0barrier', counter .. ':' .. value, 'PX', LUA_BARRIER_MS)
	end
end

-- The first writer tells all readers, each time it asks.  Expired readers are removed.
function TELL_READERS()
	local readers, told, over = key .. '\0readers', 0, {}
	local found = (word6 ~= LUA_TRY or sub(held, 61, 61) == LUA_MAY_IDLE)
		and try('HGETALL', readers) or {}
	local time = call('TIME')
	local now = MS_OF(time)
	for j = 1, #found, 2 do
		local host, ends = match(found[j + 1], '^%d+:(%x+):%d+:(%d+)$')
		if ends and ends - now > 0 then
			if in_front or told < LUA_READERS_TOLD then
				told = told + 1
				try('PUBLISH', LUA_HOST .. host, want)
			end
		elseif ends and #over < LUA_READERS_OVER then
			over[#over + 1] = found[j]
		end
	end
	if #over > 0 then
		try('HDEL', readers, unpack(over))
	end
end

-- Adds the number of the next free permit to the reply, or 0.
function NAME_A_FREE_PERMIT()
	local other = match(key, LUA_PERMIT .. '(%d+)$')
	reply[4] = 0
	for n = 2, barred and 0 or permits do
		other = other % permits + 1
		if try('EXISTS', queue .. other) == 0 then
			reply[4] = other
			break
		end
	end
end

-- SETRANGE is cheap and keeps the life of the counter, so it serves a counter that stays near.
-- If the node's ACL refuses to raise the counter, the key is deleted again.  The offset is text:
-- Redis writes a number as text with each call, for 2 to 5 % of a pair's instructions.
function WRITE_COUNTER()
	if near and sub(raised, 1, LUA_NEAR_DIGITS) == sub(counter, 1, LUA_NEAR_DIGITS) then
		set = try('SETRANGE', counter_key, '0', raised)
	else
		LOOK_HOW_FAR_AHEAD(raised)
		set = try('SET', counter_key, raised, 'PX', COUNTER_LIFE(ahead))
	end
	if set ~= #raised and set.err then
		if for_reader then
			call('HDEL', key .. '\0readers', REQUEST(value))
		end
		if not was_shared then
			call('DEL', key)
		end
		reply = set
		break
	end
end

-- The key of the lock lives at least as long as this permit.
function WRITE_LOCK_OF_PERMIT()
	local life = math.max(ttl, call('PTTL', lock))
	set = try('SET', lock, value, 'PX', life)
	if set.err then
		call('DEL', key)
		reply = set
		break
	end
end

-- Reads key, value, word4 to word6 and, for a permit, the number of permits.  Sets reply: the
-- counter, a refusal, or an error.
function ACQUIRE()
	local ttl, proposal = word4, word5

	GET_COUNTER()
	if counter and (#counter > LUA_COUNTER_DIGITS or not tonumber(counter)) then
		reply = redis.error_reply('ERR the counter is not a number')
		break
	end
	CHECK_MARKER()
	RAISE_COUNTER()
	local permits, lock, lock_held, queue, bar, barred = 0
	if rest_at <= #arguments[i] then
		LOOK_AT_PERMITS()
	end
	local for_reader, was_shared = op ~= 'acquire', nil
	local set
	if for_reader then
		ACQUIRE_AS_READER()
	else
		ACQUIRE_AS_WRITER()
	end
	if not for_reader and (not set or set.err) then
		ANSWER_WRITER()
	end
	WRITE_COUNTER()
	if permits > 0 then
		WRITE_LOCK_OF_PERMIT()
	end
	reply = raised
end

--
-- release: releases this attempt and earlier attempts of the same request, but no later attempt
--

-- The last reader's release deletes the key.  Sets done, and shared: the lock still has readers.
function RELEASE_AS_READER()
	local readers, request = key .. '\0readers', REQUEST(value)
	local found = try('HGETALL', readers)
	if found.err then
		reply = found
		break
	end
	local time = call('TIME')
	local now = MS_OF(time)
	local life, over = 0, {request}
	for j = 1, #found, 2 do
		local attempt, ends = match(found[j + 1], '^(%d+):%x+:%d+:(%d+)$')
		if attempt and found[j] == request and attempt <= ATTEMPT(value) then
			done = 1
		elseif ends and ends - now > 0 then
			life = math.max(life, ends - now)
		elseif ends and #over < LUA_READERS_OVER then
			over[#over + 1] = found[j]
		end
	end
	shared = done == 0 or life > 0
	if done == 1 and shared then
		call('HDEL', readers, unpack(over))
		call('PEXPIRE', key, life)
		call('PEXPIRE', readers, life)
	elseif done == 1 then
		call('DEL', key, readers)
		if last == tostring(LUA_DELETE_AND_TELL) then
			try('PUBLISH', key, 'free\0' .. sub(arguments[i], told_at))
		end
	end
end

-- Deletes the key, or keeps it for a time.  A kept key no longer belongs to any attempt.
-- LUA_KEPT in the value is for people: a node without memory for the new value keeps the key all
-- the same.
function RELEASE_AS_WRITER()
	local is_permit = find(key, LUA_PERMIT, 1, true) -- or the queue
	local life = is_permit and tonumber(try('PTTL', key)) -- before the release
	done = 1
	if tonumber(last) > 0 then
		call('PEXPIRE', key, last)
		try('SET', key, sub(value, 1, 60) .. LUA_KEPT .. sub(value, 61), 'PX', last)
	else
		call('DEL', key)
	end
	if last == tostring(LUA_DELETE_AND_TELL) or last == tostring(LUA_DELETE_AND_TELL_QUEUE) then
		try('PUBLISH', key, 'free\0' .. sub(arguments[i], told_at))
	end
	if is_permit then
		RELEASE_LOCK_OF_PERMIT()
	end
end

-- The last permit's release deletes the lock's key.
function RELEASE_LOCK_OF_PERMIT()
	local lock, number = match(key, LUA_PERMIT_PATTERN)
	if last == tostring(LUA_DELETE_AND_TELL_QUEUE) then
		try('PUBLISH', lock .. LUA_PERMIT, 'permit\0' .. number .. '\0')
	end
	local lock_held = try('GET', lock)
	local permits = lock_held and not lock_held.err and PERMITS(lock_held)
	if permits then
		local keys = {key}
		for n = 1, tonumber(permits) do
			keys[n + 1] = lock .. LUA_PERMIT .. n
		end
		if try('EXISTS', unpack(keys)) == 0 then
			call('DEL', lock)
		elseif life then
			FIT_LOCK_TO_PERMITS()
		end
	end
end

-- A kept key prolongs the lock's key.  The release of the longest permit shortens the lock's key to
-- the longest life left.  Otherwise this key would refuse the whole lock when no session has a
-- permit.  If another permit lives as long, or can't be read, nothing changes.
function FIT_LOCK_TO_PERMITS()
	local lock_life, longest = call('PTTL', lock), math.max(0, last)
	if longest > lock_life then
		call('PEXPIRE', lock, longest)
	elseif life >= lock_life - LUA_PERMIT_SLACK_MS then
		local least = math.min(life, lock_life)
		for n = 2, #keys do
			if longest < least then
				longest = math.max(longest, tonumber(try('PTTL', keys[n])) or least)
			end
		end
		if longest > 0 and longest < least then
			call('PEXPIRE', lock, longest)
		end
	end
end

-- The counter comes last: a full node lets a script write the counter after any change, even
-- after a DEL.
function RAISE_TO_TOMBSTONE()
	GET_COUNTER()
	if not counter or IS_LESS(counter, tombstone) then
		if done == 0 then
			call('DEL', counter_key)
		end
		LOOK_HOW_FAR_AHEAD(tombstone)
		call('SET', counter_key, tombstone, 'PX', COUNTER_LIFE(ahead))
	end
	local since = shared and call('HGET', key .. '\0readers', 'since')
	if since and IS_LESS(since, tombstone) then
		call('DEL', key .. '\0none')
		call('HSET', key .. '\0readers', 'since', tombstone)
	end
end

-- Reads key, value, word4 to word6 and the hosts behind them.  Sets reply: 1, or 0, or an error.
function RELEASE()
	local last, tombstone, told_at = word4, word5, rest_at - #word6 - 1
	local done = 0
	local shared -- the lock still has readers

	GET_HELD()
	if op ~= 'release' and held and IS_SHARED(held) then
		RELEASE_AS_READER()
	elseif held and (held == value
			or IS_EARLIER(held, value)) then
		RELEASE_AS_WRITER()
	end
	if tombstone ~= '0' then
		RAISE_TO_TOMBSTONE()
	end
	reply = done
end

--
-- renew: prolongs, never shortens; creates a missing key, unless the node has lost its data.
-- Only renewals use this value.  So while the value is at the key, no lock was granted since the
-- key was created.
--

-- Reads held and counter.  Ends the command unless the reader is there, or is added again.
-- Prolongs the reader.
function RENEW_AS_READER()
	local readers, request = key .. '\0readers', REQUEST(value)
	local shared = held and IS_SHARED(held)
	if held and not shared then
		reply = 0
		break
	end
	local mine = shared and try('HGET', readers, request)
	RETURN_ERROR(mine)
	local since = shared and call('HGET', readers, 'since') or counter or '0'
	local granted = mine and GRANTED_IN(mine)
	if granted and IS_LESS(granted, since) then
		since = granted
	end
	if mine and ATTEMPT_IN(mine) > ATTEMPT(value) then
		reply = 0
		break
	end
	if not (mine and ATTEMPT_IN(mine) == ATTEMPT(value))
			and IS_LESS(bound, since) then
		reply = SHOWN(since)
		break
	end
	if not mine then
		CHECK_MARKER()
	end

	if counter then
		CHANGE_NOTHING()
	end
	local time = call('TIME')
	local now = MS_OF(time)
	local ends = now + ttl
	if mine and ATTEMPT_IN(mine) == ATTEMPT(value) then
		ends = math.max(ends, tonumber(match(mine, '%d+$')))
	end
	local reader = sub(value, 34, 59) .. ':' .. since .. ':' .. string.format('%.0f', ends)
	local life = math.max(ttl, call('PTTL', key))
	local set
	if shared then
		JOIN_READERS()
	else
		BEGIN_READERS(since)
	end
	if type(set) == 'table' then
		reply = set
		break
	end
	call('PEXPIRE', readers, life)
	call('PEXPIRE', key, life)
end

-- Reads held, a different value or false, and counter.  Ends the command unless the key is now
-- this attempt's: there was no key, or the key was an earlier attempt's.
function RENEW_AS_WRITER()
	if held and not IS_EARLIER(held, value) then
		reply = 0
		break
	end
	if counter and IS_LESS(bound, counter) then
		reply = SHOWN(counter)
		break
	end
	CHECK_MARKER()

	local set = try('SET', key, value, 'PX', ttl)
	if set.err and (held or counter) then
		CHANGE_NOTHING()
		set = try('SET', key, value, 'PX', ttl)
	end
	RETURN_FAILURE(set)
end

-- Reads lock and value.  Sets lock_held.  Ends the command if a session has the whole lock, or
-- permits of another number.  Grants of the lock do not raise the counter of a permit.
function LOOK_AT_LOCK_OF_PERMIT()
	lock_held = try('GET', lock)
	ACCEPT_OTHER_TYPE(lock_held)
	if lock_held and PERMITS(lock_held) ~= match(value, LUA_PERMITS_PATTERN) then
		reply = 0
		break
	end
end

-- The lock's key lives as long as the permit's key.
function RENEW_LOCK_OF_PERMIT()
	if not lock_held then
		CHANGE_NOTHING()
		try('SET', lock, value, 'PX', call('PTTL', key))
	elseif call('PTTL', lock) < call('PTTL', key) then
		call('PEXPIRE', lock, call('PTTL', key))
	end
end

-- Reads key, value and word4 to word6.  Sets reply: 1, or 0, or the counter, or an error.
function RENEW()
	local ttl, bound, raise = word4, word5, word6
	local lock = match(key, LUA_PERMIT_PATTERN)
	local lock_held

	GET_HELD()
	GET_COUNTER()
	if lock then
		LOOK_AT_LOCK_OF_PERMIT()
	end
	if op ~= 'renew' then
		RENEW_AS_READER()
	elseif held ~= value then
		RENEW_AS_WRITER()
	elseif call('PTTL', key) < tonumber(ttl) then
		call('PEXPIRE', key, ttl)
	end
	if lock then
		RENEW_LOCK_OF_PERMIT()
	end
	if counter ~= raise and not (counter and IS_LESS(raise, counter)) then
		CHANGE_NOTHING()
		LOOK_HOW_FAR_AHEAD(raise)
		local set = try('SET', counter_key, raise, 'PX', COUNTER_LIFE(ahead))
		RETURN_FAILURE(set)
	end
	reply = 1
end

--
-- confirm: succeeds if no lock was granted since, and the grant has not ended
--

-- Ends the command unless the counter must be raised.
function CONFIRM_AS_READER()
	local mine = held and IS_SHARED(held)
		and try('HGET', key .. '\0readers', REQUEST(value))
	RETURN_ERROR(mine)
	if not mine or not counter or ATTEMPT_IN(mine) ~= ATTEMPT(value)
			or GRANTED_IN(mine) ~= granted then
		reply = 0
		break
	end
	if #token < #counter or #token == #counter and token <= counter then
		reply = 1
		break
	end
end

-- Reads key, value, word4 and word5.  Sets reply: 1, or 0, or an error.
function CONFIRM()
	local granted, token = word4, word5

	GET_HELD()
	GET_COUNTER()
	if op ~= 'confirm' then
		CONFIRM_AS_READER()
	elseif held ~= value or counter ~= granted then
		reply = 0
		break
	end
	CHANGE_NOTHING()
	LOOK_HOW_FAR_AHEAD(token)
	local set = try('SET', counter_key, token, 'PX', COUNTER_LIFE(ahead))
	reply = set.err and set or 1
end

--
-- A key of another type
--

-- Puts the type of the key into the refusal, for people; for a Redisson lock, its client.
-- Without the rights to read them, the lock is still refused.
function TELL_TYPE()
	local kind = try('TYPE', other_key).ok
	local found = try('HSCAN', other_key, 0)[2] or {}
	local client
	for j = 1, #found, 2 do
		client = client or match(found[j], '^%x+%-%x+%-%x+%-%x+%-%x+:%d+')
	end
	reply[2] = client and 'a Redisson lock of ' .. SHOWN(client)
		or kind and 'a key of type ' .. kind or 'a key that is not a string'
end

--
-- The loop
--

for i = 2, #arguments do
	local op, key, value, word4, word5, word6, rest_at = read_words('ssssss', arguments[i])
	local reply
	local other_key -- a key of another type: another program holds the lock

	-- Executed once; "break" ends the command.  The most frequent commands come first.
	repeat
		if op == 'acquire' or op == 'acquire shared' then
			ACQUIRE()
			break
		end
		if op == 'release' or op == 'release shared' then
			RELEASE()
			break
		end
		if op == 'renew' or op == 'renew shared' then
			RENEW()
			break
		end
		CONFIRM()
	until true
	if other_key and type(reply) == 'table' then
		TELL_TYPE()
	end

	-- The replies replace the commands.
	arguments[i - 1] = reply
end

arguments[#arguments] = nil
return arguments
