-- redlock.lua
--		The script that a node executes for commands on locks.
--
-- lua_text.c is made from this file by scripts/lua_text.pl, which puts constants of lua.h in the
-- places of their names, LUA_SPAN and others, texts in the places of tostring() of them, and
-- pieces in the places of their uses (see below).  Where an error of a node names a line of
-- user_script, count the lines of lua_script in lua_text.c.
--
-- What a node keeps
-- -----------------
--
--	 key       prefix || name in UTF-8
--	 value     32 hex digits, ':', the attempt in nine digits, ':', the host's id in 16 hex
--			   digits, LUA_SHARED or nothing, ' ' or LUA_MAY_STAY, who holds it.  Characters 1
--			   to 33 say which request it is of, 34 to 42 which attempt of that, 44 to 59 the
--			   server on which it was asked for.
--	 counter   key || NUL || "token": the last fencing token, in digits, a whole number
--			   without leading zeros; expires LUA_COUNTER_KEEP_MS after the time that it stands
--			   for, or after it was written, whichever is later: see lua.h
--	 marker    LUA_MARKER, one for each node: see marker.lua
--	 readers   key || NUL || "readers", a hash, which counts only while the value says LUA_SHARED;
--			   who makes the key anew drops it.  The value is that of the reader who came last,
--			   with LUA_MAY_STAY if one of them had it, and the key lives as long as the longest
--			   of them.  For each reader, by characters 1 to 33 of its value: 34 to 59, ':', the
--			   counter that it was granted, ':', when it ends, in ms by the node's clock.
--			   "since": no exclusive lock was granted since the counter was that.
--	 barrier   key || NUL || "barrier": of who waits for the exclusive lock while it is shared:
--			   the counter, ':', its value.  It holds new readers back until the counter is
--			   LUA_SPAN more, since then somebody had it, or for LUA_BARRIER_MS after it asked
--			   last.
--
--	 permit    key || LUA_PERMIT || its number: the key of a lock with a value and a counter of its
--			   own.  While a node has a permit, the key of the lock itself is there, too, and lives
--			   as long as the longest of the permits: its value is that of the permit which was
--			   written last.  It says how many permits there are, holds the lock for nobody, and
--			   keeps out every caller who says another number, or none.
-- A key of another type under the lock's name (Redisson's are hashes) is like a plain client's
-- string: the lock is held.  The other keys are ours alone.  One of another type there is a fault of
-- that node, which can't tell what it granted: commands that need that key fail.
--
-- No name has a NUL in it, so counters and markers are not in the way of locks.  For the key
-- the semantics are those of SET NX PX and of compare-and-delete, so plain Redlock clients
-- contend with us on the same key, and take a shared lock for one that is held.
--
-- What a node tells
-- -----------------
--
-- Messages are words, a NUL after each.
--
--	 to the channel with the key's name, at a release that says so:
--			   free, and what the release says from its sixth word on
--	 to the channel of a host, LUA_HOST || its id, at an acquire that is refused since
--	 that host has the key; of a try only where its value says LUA_MAY_STAY:
--			   want key, the id of the host that asks, how long it has waited, or LUA_TRY
--	 to the channels of the hosts that share the lock, at an exclusive acquire that is refused; of
--	 up to LUA_READERS_TOLD, unless it has the barrier; of a try only where the value says
--	 LUA_MAY_STAY: the same
--	 to the channel with the name of a queue's key, at the release of a permit:
--			   permit, and its number
--
-- A node returns LUA_HELD_MAX bytes of a value at most: values of ours are shorter, and people see
-- less of others.
--
-- Who may not publish can ask and release all the same.
--
-- A call
-- ------
--
-- There are no KEYS.  ARGV[1] is the marker that the client knows, and each argument after
-- it a command: six words or more, a NUL after each.  They are executed in order, and the reply
-- is an array of what each returns.
--
--	 acquire key value ttl proposal waited [permits]
--			  ttl in ms; proposal: the client's wall clock in us; waited: for how many us it
--			  has, or LUA_TRY: it does not wait; permits: the key is of one of so many.  Returns
--			  the counter as text, or {ttl left in ms, value in the way, how many hosts wait for
--			  its release}, and of a permit another that is free, or 0.  Who has the barrier is
--			  told that nobody waits: it asks in time to keep that.
--	 confirm key value counter token ""
--			  counter: the one that was granted.  Returns 1, or 0: it or the value is not
--			  there any more.
--	 renew key value ttl bound raise
--			  raise: what the counter becomes at least, the bound or more.  Returns 1; or 0:
--			  another's key is there; or the counter as text: it is over the bound, and this
--			  value is not there.
--	 release key value last tombstone token [host waited] ...
--			  last: what becomes of the key: LUA_DELETE_AND_TELL: it is deleted and waiters are
--			  told, LUA_DELETE_AND_TELL_QUEUE: and who waits for any permit,
--			  LUA_DELETE: it is deleted, else it is kept for so many ms, with LUA_KEPT in
--			  front of who held it; tombstone: what the counter becomes at least, or 0;
--			  token: of the lease that ends, or 0; then the hosts whose turn is next, in
--			  order, and for how many us each has waited, by the clock of the one that
--			  releases.  Returns 1, or 0: the key was not there.
--
-- Each with " shared" behind its name is the same for a reader: it is there, or not, beside
-- others.
--
--	 acquire  is refused by an exclusive lock, and by a barrier; it raises the counter, too.
--	 confirm  raises the counter to the token, if this reader is there as it was granted: others
--			  may have raised it since.
--	 renew	  a reader that is not there comes back if the bound is not less than "since".  One that
--			  is there by its acquire was granted a counter, which will do as well.
--	 release  the last reader takes the key along; waiters are told then.  The tombstone raises
--			  "since", too.
--
-- Failures
-- --------
--
-- A command that fails must not fail the others of its call, which are of other locks.  So
-- each reads and checks before it writes: an error in the array means that nothing was done,
-- though a release may have deleted the key.  An error in place of the array is one of the
-- whole node, and commands before the one that met it may have been executed.
--
-- Only readers get their life by a command of its own.  So PEXPIRE comes first, which the node's ACL
-- may refuse, then HSET, then PEXPIRE again, in case that HSET has made the key.  Otherwise a reader
-- whose PEXPIRE is refused would stay for ever.
--
-- A node whose memory is full (maxmemory) refuses to write, though not to delete or to
-- shorten a life, until the script has called a command that changes something; from then on it
-- refuses nothing to this script.  So the first write of each command is one that such a node
-- takes, or may fail (try), and nothing was done.  All releases are executed there.  So are the
-- other commands for a name whose key or counter is there: they delete before, as a change, a
-- key that never is.  A name that the node does not know would add to what it keeps, and is
-- refused, also behind other commands: a call of several asks first, by writing nothing to the
-- marker.
--
-- Pieces
-- ------
--
-- A function whose name is in capitals is no function in the script that a node executes:
-- scripts/lua_text.pl puts its body in the place of each use, and the arguments in the places of
-- the parameters.  So a piece reads and sets the locals of the command, a local of a piece is one
-- of the command, and "break" ends the command.
--
-- What it costs
-- -------------
--
-- To begin a script costs a node as much as three called commands, a called command as much
-- as four arguments, and an argument as much as a dozen lines; a function or a protected call
-- costs as much as an argument.  So one script executes many commands in one loop, and calls no
-- function of its own; numbers are compared as text where that will do; and an acquire looks at the
-- clock of the node only when the counter is not there or was not raised for long.

local call, try, arguments = redis.call, redis.pcall, ARGV
local sub, find, match, read_words = string.sub, string.find, string.match, struct.unpack
local known_marker = arguments[1]
local marker -- of this node; read by the first acquire

-- Is the node full?  An error then.  A command in front of an acquire may let all of them write.
local full = #arguments > 2 and try('SETRANGE', LUA_MARKER, 0, '')
full = type(full) == 'table' and string.find(full.err, 'OOM', 1, true) and full
-- A value of ours has colons at 33 and 43, and the digits of this form end before the 60th character.
-- A shared lock has LUA_SHARED at 60.  The tests of single characters are cheaper than the match, so
-- they come first.  A match must not run through millions of digits: the script cuts a long value
-- before, or has tested the character at 60.
local form = '^[%da-f]+:%d+:[%da-f]+()=?[ ~]'

--
-- Slices of a value
--

-- Of a value that has the form of ours: 33, 9, 16 characters and one.
function REQUEST(value) return sub(value, 1, 33) end
function ATTEMPT(value) return sub(value, 34, 42) end
function HOST(value) return sub(value, 44, 59) end
function KIND(value) return sub(value, 60, 60) end -- ' ', LUA_MAY_STAY or LUA_SHARED

-- What a reply carries of a value that may be a stranger's.
function SHOWN(value) return sub(value, 1, LUA_HELD_MAX) end

-- Whether a value may be ours, and whether it is; of any string.
function COLONS(value) return sub(value, 33, 33) == ':' and sub(value, 43, 43) == ':' end
function NO_COLONS(value) return sub(value, 33, 33) ~= ':' or sub(value, 43, 43) ~= ':' end
function IS_OURS(value) return COLONS(value) and match(value, form) == 60 end
-- Whether it is the value of a reader.
function IS_SHARED(value) return KIND(value) == LUA_SHARED and IS_OURS(value) end

-- The number of permits, as text; nil or false where the key of a lock does not stand for permits.
function PERMITS(value) return COLONS(value) and KIND(value) == ' ' and match(value, LUA_PERMITS_PATTERN) end

-- An earlier attempt of the same request.
function IS_EARLIER(held, value) return (sub(held, 1, 33) == sub(value, 1, 33) and sub(held, 34, 42) < sub(value, 34, 42)) end

-- A reader's entry in the hash: the attempt, the counter that it was granted, when it ends.
function ATTEMPT_IN(entry) return sub(entry, 1, 9) end
function GRANTED_IN(entry) return match(entry, ':(%d+):%d+$') end

--
-- Numbers and clocks
--

-- Two numbers as text: the longer is the larger; of two that are as long, the one that sorts after.
function IS_LESS(a, b) return (#a < #b or #a == #b and a < b) end

-- The node's clock in ms.
function MS_OF(time) return time[1] * 1000 + math.floor(time[2] / 1000) end

-- How long a counter lives that is `ahead` ms ahead of the node's clock.
function COUNTER_LIFE(ahead) return math.floor(LUA_COUNTER_KEEP_MS + math.max(0, ahead)) end

-- Sets ahead: of a counter, in ms.
function LOOK_HOW_FAR_AHEAD(counter)
	local time = call('TIME')
	local ahead = counter / 1000 - time[1] * 1000 - time[2] / 1000
end

--
-- Reading
--

-- Ends the command with what a protected call returned, if that is an error.  A string has no "err".
function RETURN_ERROR(found)
	if found and found.err then
		reply = found
		break
	end
end

-- The same after a write, which returns something always.
function RETURN_FAILURE(set)
	if set.err then
		reply = set
		break
	end
end

-- Sets held: the value of the key; '' if a key of another type is there; false if none is.
function GET_HELD()
	local held = try('GET', key)
	if held and held.err then
		if not match(held.err, '^WRONGTYPE') then
			reply = held
			break
		end
		held = ''
	end
end

-- Sets counter and counter_key.  A counter that is not a string was made by another program, which
-- is an error.
function GET_COUNTER()
	local counter_key = key .. '\0token'
	local counter = try('GET', counter_key)
	RETURN_ERROR(counter)
end

-- Sets since and waiter, the two parts of the barrier, if there is one.
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

-- A change of nothing, after which a full node lets this script write.
function CHANGE_NOTHING()
	try('DEL', key .. '\0none')
end

-- What a host is told whose lock another host waits for.
function WANT() return 'want\0' .. key .. '\0' .. HOST(value) .. '\0' .. word6 .. '\0' end

-- Adds `reader` to the readers who are there.  Sets set: an error, or not.
function JOIN_READERS()
	set = try('PEXPIRE', readers, life)
	if type(set) ~= 'table' then
		set = try('HSET', readers, request, reader)
	end
end

-- Makes the key for the first reader, and the hash anew.  Sets set: an error, and nothing is there.
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

--
-- acquire
--

-- The marker must be the one that the client knows.  A counter does not prove that this node has
-- its data: a late release or renewal can have made it since.
function CHECK_MARKER()
	marker = marker or try('GET', LUA_MARKER)
	if marker ~= known_marker then
		reply = redis.error_reply(LUA_FORGOT .. ' its marker: the data of this node was lost')
		break
	end
end

-- Sets raised: what the counter becomes, and near: the counter is near to that.
--
-- The counter follows the clocks of clients, within the bounds of the node's own, so that order
-- outlives it.  Proposal and counter are near as long as their first LUA_NEAR_DIGITS are the same:
-- then no clock is needed.  The counter is raised by LUA_SPAN at least.
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

-- Of a permit.  Sets permits, lock and queue, and bar and barred, a key and its value, if these bar
-- the permit: only the first host in the queue gets one, and a holder of the lock itself, or of a
-- permit of another number, bars all permits.
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

-- A reader's.  Ends the command if this attempt is granted already, or refused; else the reader is
-- there, and was_shared says whether others were there before.  "No" must mean that this request is
-- not there: the barrier refuses no reader who is.
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
		if IS_OURS(held) and (word6 ~= LUA_TRY or KIND(held) == LUA_MAY_STAY) then
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
		local may_stay = sub(held, 61, 61) == LUA_MAY_STAY and LUA_MAY_STAY or sub(value, 61, 61)
		call('SET', key, sub(value, 1, 60) .. may_stay .. sub(value, 62), 'PX', life)
	end
end

-- A writer's.  Sets set: the key is this attempt's; or an error; or false: a key is there, or a bar.
-- A full node tells the holder's value, too.  The script grants a repeated acquire once; a later
-- attempt replaces an earlier attempt of the same request.
function ACQUIRE_AS_WRITER()
	set = not barred and (full or try('SET', key, value, 'NX', 'PX', ttl))
	if set and set.err and counter then
		CHANGE_NOTHING()
		set = try('SET', key, value, 'NX', 'PX', ttl)
	end
end

-- To a writer whose key was not set: a repeated grant, an error, a refusal; or the key replaces that
-- of an earlier attempt.
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

	-- The lock's key bars an earlier attempt, too, whose permit would not count.
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

-- Sets reply, and tells the holder's host, or the readers' hosts, that this host waits.
function REFUSE_WRITER()
	held = SHOWN(held)
	local want = WANT()
	local in_front = false -- of those who wait for readers
	local maybe_ours = COLONS(held)
	if maybe_ours and KIND(held) == LUA_SHARED and match(held, form) == 60 then
		STAND_IN_FRONT()
		TELL_READERS()
	elseif maybe_ours and (word6 ~= LUA_TRY or KIND(held) == LUA_MAY_STAY)
			and match(held, form) == 60 then
		try('PUBLISH', LUA_HOST .. HOST(held), want)
	end
	reply = {call('PTTL', key), held, not in_front and WAITERS()}
	if permits > 0 then
		NAME_A_FREE_PERMIT()
	end
end

-- Sets the barrier, unless another writer has it, and in_front: this writer has it.
function STAND_IN_FRONT()
	local barrier = try('GET', key .. '\0barrier')
	SPLIT_BARRIER()
	if word6 ~= LUA_TRY and counter and not (barrier and barrier.err) and (not since
			or REQUEST(waiter) == REQUEST(value) or counter - since >= LUA_SPAN) then
		in_front = true
		try('SET', key .. '\0barrier', counter .. ':' .. value, 'PX', LUA_BARRIER_MS)
	end
end

-- The first writer tells all readers, as often as it asks.  Readers whose time is over are removed.
function TELL_READERS()
	local readers, told, over = key .. '\0readers', 0, {}
	local found = (word6 ~= LUA_TRY or sub(held, 61, 61) == LUA_MAY_STAY)
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

-- Adds to the reply the number of the next permit that is free, or 0.
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

-- SETRANGE is cheap and leaves the life of the counter as it was, so it is for a counter that stays
-- near.  Where the counter can't be raised (by the node's ACL), the key is taken back.
function WRITE_COUNTER()
	if near and sub(raised, 1, LUA_NEAR_DIGITS) == sub(counter, 1, LUA_NEAR_DIGITS) then
		set = try('SETRANGE', counter_key, 0, raised)
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

-- The key of the lock lives as long as this permit, at least.
function WRITE_LOCK_OF_PERMIT()
	local life = math.max(ttl, call('PTTL', lock))
	set = try('SET', lock, value, 'PX', life)
	if set.err then
		call('DEL', key)
		reply = set
		break
	end
end

-- Reads key, value, word4 to word6 and, of a permit, how many there are.  Sets reply: the counter, or
-- a refusal, or an error.
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
-- release: takes this attempt and earlier ones of the same request, not later ones
--

-- The last reader takes the key along.  Sets done, and shared: by others yet.
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

-- Deletes the key, or keeps it for so long.  A key that is kept is no attempt's any more.  That it
-- says so is for people: a node that has no memory left for the value keeps the key all the same.
function RELEASE_AS_WRITER()
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
	if find(key, LUA_PERMIT, 1, true) then
		RELEASE_LOCK_OF_PERMIT()
	end
end

-- The last permit takes the key of the lock along; hold_at_least extends that key.
function RELEASE_LOCK_OF_PERMIT()
	local lock, number = match(key, LUA_PERMIT_PATTERN)
	if last == tostring(LUA_DELETE_AND_TELL_QUEUE) then
		try('PUBLISH', lock .. LUA_PERMIT, 'permit\0' .. number .. '\0')
	end
	local lock_held = try('GET', lock)
	local permits = lock_held and not lock_held.err and PERMITS(lock_held)
	if permits and tonumber(last) > 0 then
		call('PEXPIRE', lock, math.max(last, call('PTTL', lock)))
	elseif permits then
		local keys = {key}
		for n = 1, tonumber(permits) do
			keys[n + 1] = lock .. LUA_PERMIT .. n
		end
		if try('EXISTS', unpack(keys)) == 0 then
			call('DEL', lock)
		end
	end
end

-- The counter comes last: a full node lets a script write it that has changed something before, if
-- only by a DEL.
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
	local shared -- by others yet

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
-- renew: extends, never shortens; a key that is not there is created.  The value is that of renewals
-- only, so where it stands nobody was granted anything since it was created.
--

-- Reads held and counter.  Ends the command unless the reader is there, with its new life.
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

-- Reads held, which is not this value, and counter.  Ends the command unless the key is this
-- attempt's now: it was not there, or was an earlier attempt's.
function RENEW_AS_WRITER()
	if held and not IS_EARLIER(held, value) then
		reply = 0
		break
	end
	if counter and IS_LESS(bound, counter) then
		reply = SHOWN(counter)
		break
	end

	local set = try('SET', key, value, 'PX', ttl)
	if set.err and (held or counter) then
		CHANGE_NOTHING()
		set = try('SET', key, value, 'PX', ttl)
	end
	RETURN_FAILURE(set)
end

-- The key of the lock lives as long as the permit's, unless the value is a stranger's.
function RENEW_LOCK_OF_PERMIT()
	local lock = match(key, LUA_PERMIT_PATTERN)
	local lock_held = try('GET', lock)
	if not lock_held then
		CHANGE_NOTHING()
		try('SET', lock, value, 'PX', call('PTTL', key))
	elseif not lock_held.err and PERMITS(lock_held)
			and call('PTTL', lock) < call('PTTL', key) then
		call('PEXPIRE', lock, call('PTTL', key))
	end
end

-- Reads key, value and word4 to word6.  Sets reply: 1, or 0, or the counter, or an error.
function RENEW()
	local ttl, bound, raise = word4, word5, word6

	GET_HELD()
	GET_COUNTER()
	if op ~= 'renew' then
		RENEW_AS_READER()
	elseif held ~= value then
		RENEW_AS_WRITER()
	elseif call('PTTL', key) < tonumber(ttl) then
		call('PEXPIRE', key, ttl)
	end
	if find(key, LUA_PERMIT, 1, true) then
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
-- confirm: if nothing was granted since, and the grant has not ended
--

-- Ends the command unless the counter is to be raised.
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

-- The refusal tells people the type, and of a lock of Redisson its client.  Without the rights for
-- that the lock is refused all the same.
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
	local other_key -- of another type: another program holds the lock that is asked for

	-- What follows is executed once; "break" ends the command.  The most frequent come first.
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

	-- Replies take the places of commands.
	arguments[i - 1] = reply
end

arguments[#arguments] = nil
return arguments
