-- run_note.lua
--		The script that keeps the last recorded run of each job at a node, for redlock_last_run.
--
-- See redlock.lua for how the script becomes C.
--
-- What a node keeps
-- -----------------
--
--    prefix, NUL, "runs"                hash: for each job, which is the name of a lock, the note of
--                                       its last run: see run_note.c
--    prefix, NUL, "runs", NUL, "ends"   sorted set: the jobs, by the time at which the note expires,
--                                       in ms by the node's clock
--
-- A note counts only if both keys have the job.  A node keeps LUA_NOTES_MAX jobs at most: the note
-- that expires first makes room.  Each call removes LUA_NOTES_PRUNED notes at most.  Both keys
-- expire with the last note.  No lock has these keys: no name contains a NUL.
--
-- ARGV: prefix; job; a note, or '' for a question; how long to keep the note, in ms.
--
-- Writes the note, unless the node has a note of a newer run: see run_note_compare.  A noted token
-- too far ahead of the node's clock is no host's, and the note gives way.
--
-- Returns the note that the node has then, or ''.

local call, match = redis.call, string.match
local runs, ends = ARGV[1] .. '\0runs', ARGV[1] .. '\0runs\0ends'
local job, note = ARGV[2], ARGV[3]
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local noted = call('HGET', runs, job) or ''
local until_ms = tonumber(call('ZSCORE', ends, job) or 0)
if until_ms <= now or #noted > LUA_NOTE_MAX then
	noted = ''
end
if note == '' then
	return noted
end

local token, started = match(noted, '^(%d+)%z(%d+)%z')
if token and tonumber(token) <= now * 1000 + LUA_CLOCK_BOUND_US then
	local own_token, own_started = match(note, '^(%d+)%z(%d+)%z')
	local ahead = token - own_token
	if ahead > 0 or ahead == 0 and started - own_started > 0 then
		return noted
	end
end

local function keep(key)
	if call('PTTL', key) < tonumber(ARGV[4]) then
		call('PEXPIRE', key, ARGV[4])
	end
end

-- A full node refuses this command, which changes nothing.  After the first write of a script, a
-- node no longer looks at its memory.
call('SETRANGE', LUA_MARKER, 0, '')

-- The order is for users that lack a right: no key stays for ever, and without the right to remove
-- notes, none is added to a full set.
keep(runs)
local surplus = until_ms == 0 and -LUA_NOTES_MAX or -1 - LUA_NOTES_MAX
for _ = 1, LUA_NOTES_PRUNED do
	local first = call('ZRANGE', ends, 0, 0, 'WITHSCORES')
	if not first[1] or tonumber(first[2]) > now and not call('ZRANGE', ends, surplus, surplus)[1] then
		break
	end
	call('HDEL', runs, first[1])
	call('ZREM', ends, first[1])
end
call('ZADD', ends, string.format('%.0f', now + ARGV[4]), job)
keep(ends)
call('HSET', runs, job, note)
keep(runs)
return note
