/*
 * lua.c
 *		The scripts that the nodes execute; see lua.h.
 *
 * They are written to be cheap: to begin a script costs a node as much as three
 * called commands, a called command as much as four arguments, and an argument as
 * much as a dozen lines; a function or a protected call costs as much as an
 * argument.  Numbers are compared as text where that will do.  So one script
 * executes many commands in one loop, and the acquire looks at the clock of the
 * node only when the counter is not there or was not raised for long.
 *
 * A command that fails must not fail the others of its call, which are of other
 * locks.  A node whose memory is full (maxmemory) refuses to write, though not to
 * delete or to shorten a life, until the script has changed something; from then on it
 * refuses nothing to this script.  So the first write of each command is one that
 * such a node takes, or may fail (pcall), and nothing was done.
 */
#include "protocol/lua.h"

#define QUOTE_NUMBER(number) #number
#define QUOTE(constant) QUOTE_NUMBER(constant)

#define SPAN QUOTE(LUA_SPAN)
#define CLOCK_BOUND QUOTE(LUA_CLOCK_BOUND_US)
#define COUNTER_END QUOTE(LUA_COUNTER_END)
#define COUNTER_KEEP QUOTE(LUA_COUNTER_KEEP_MS)
#define MARKER "'redlock:\\0marker'"

/* clang-format off */

/* The end of a command. */
#define REPLY(value) "reply = " value " break "

/* Is the value v of an earlier attempt of the same request? */
#define IS_EARLIER \
	"(sub(v, 1, 33) == sub(value, 1, 33) and sub(v, 34, 42) < sub(value, 34, 42)) "

/* Of whole numbers as text. */
#define LESS(a, b) "(#" a " < #" b " or #" a " == #" b " and " a " < " b ")"

#define TEXT(number) "string.format('%.0f', " number ")"

/* A key that is not a string was made by another.  Strings have no "err" either. */
#define READ_VALUE \
	"local v = pcall('GET', key) " \
	"if v and v.err then " REPLY("v") "end "

#define READ_COUNTER \
	"local k = key .. '\\0token' " \
	"local c = pcall('GET', k) " \
	"if c and c.err then " REPLY("c") "end "

/*
 * The marker must be the one that the client knows: a late release or renewal
 * can have made the counter on a node that lost its data.
 *
 * One that was sent twice is granted once.  The counter follows the clocks of
 * clients, within the bounds of the node's own, so that order outlives it; one
 * that ran ahead of time is kept for that much longer.  "near": as long as the
 * first six of its digits stay the same, for 2.8 hours.
 *
 * A full node says who has the lock all the same.  Where the counter can't be raised
 * (by the node's ACL), the key is taken back.
 */
#define ACQUIRE \
	"local ttl, p = a, b " \
	READ_COUNTER \
	"if c and not tonumber(c) then " \
		REPLY("redis.error_reply('ERR the counter is not a number')") "end " \
	"marker = marker or pcall('GET', " MARKER ") " \
	"if marker ~= known then " \
		REPLY("redis.error_reply('" LUA_FORGOT " its marker: the data of this node was lost')") "end " \
	"local n, keep = p, '" COUNTER_KEEP "' " \
	"local near = c and #c == #p and sub(c, 1, 6) == sub(p, 1, 6) " \
	"if not near then " \
		"local t = call('TIME') " \
		"local now = t[1] * 1000000 + t[2] " \
		"if p - now > " CLOCK_BOUND " then " \
			REPLY("redis.error_reply('" LUA_AHEAD " of the clock of this node: that of the client, by ' " \
			".. " TEXT("(p - now) / 1000000") " .. ' s')") "end " \
		"if now - p > " CLOCK_BOUND " then n = " TEXT("now - " CLOCK_BOUND) " end " \
	"end " \
	"if c and n - c < " SPAN " then " \
		"local raised = c + " SPAN " " \
		"if raised >= " COUNTER_END " then " \
			REPLY("redis.error_reply('" LUA_AHEAD " of all time: the counter')") "end " \
		"keep = " TEXT(COUNTER_KEEP " + math.max(0, raised - p) / 1000") " " \
		"n = " TEXT("raised") " " \
	"end " \
	"local set = pcall('SET', key, value, 'NX', 'PX', ttl) " \
	"if not set or set.err then " \
		READ_VALUE \
		"if v == value then " REPLY("c or '0'") "end " \
		"if v and not " IS_EARLIER "then " REPLY("{call('PTTL', key), v}") "end " \
		"set = set or pcall('SET', key, value, 'PX', ttl) " \
		"if set.err then " REPLY("set") "end " \
	"end " \
	"set = near and #n == #c and pcall('SETRANGE', k, 0, n) or pcall('SET', k, n, 'PX', keep) " \
	"if set ~= #n and set.err then " \
		"call('DEL', key) " \
		REPLY("set") "end " \
	REPLY("n")

/* If nothing was granted since, and the grant has not ended. */
#define CONFIRM \
	"local counter, token, keep = a, b, d " \
	READ_VALUE \
	READ_COUNTER \
	"if v ~= value or c ~= counter then " REPLY("0") "end " \
	"local set = pcall('SET', k, token, 'PX', keep) " \
	REPLY("set.err and set or 1")

/*
 * Extends, never shortens; a key that is not there is created.  The value is that of
 * renewals only, so where it stands nobody was granted anything since it was created.
 * A node that has no memory left for it extends the key of the grant as it is, whose
 * attempt is the one before.  One of an earlier attempt will not do: a late release of
 * that may delete it.
 */
#define RENEW \
	"local ttl, bound, keep = a, b, d " \
	READ_VALUE \
	READ_COUNTER \
	"if v ~= value then " \
		"if v and not " IS_EARLIER "then " REPLY("0") "end " \
		"if c and " LESS("bound", "c") " then " REPLY("c") "end " \
		"local set = pcall('SET', key, value, 'PX', ttl) " \
		"if set.err and not (v and sub(value, 34, 42) - sub(v, 34, 42) == 1) then " \
			REPLY("set") "end " \
	"end " \
	"if v and call('PTTL', key) < tonumber(ttl) then call('PEXPIRE', key, ttl) end " \
	"local raise = bound " \
	"if rest <= #argv[i] then raise = words('s', argv[i], rest) end " \
	"if c ~= raise and not (c and " LESS("raise", "c") ") then " \
		"local set = pcall('SET', k, raise, 'PX', keep) " \
		"if set.err then " REPLY("set") "end " \
	"end " \
	REPLY("1")

/*
 * Takes this attempt and earlier ones of the same request, not later ones.
 * Who may not publish can still release: waiters then find out by asking.  What is
 * kept is no attempt's any more.  That it says so is for people: a node that has no
 * memory left for it keeps the key all the same.  The counter comes last: such a node
 * lets a script write it that has changed something before, if only by a DEL.
 */
#define RELEASE \
	"local last, tombstone, keep = a, b, d " \
	"local done = 0 " \
	READ_VALUE \
	"if v and (v == value or " IS_EARLIER ") then " \
		"done = 1 " \
		"if last == '0' then " \
			"call('DEL', key) " \
			"done = 1 + (tonumber(pcall('PUBLISH', key, 'free')) or 0) " \
		"elseif last == '-1' then call('DEL', key) " \
		"else " \
			"call('PEXPIRE', key, last) " \
			"pcall('SET', key, sub(value, 1, 43) .. '" LUA_KEPT "' .. sub(value, 44), 'PX', last) " \
		"end " \
	"end " \
	"if tombstone ~= '0' then " \
		READ_COUNTER \
		"if not c or " LESS("c", "tombstone") " then " \
			"if done == 0 then call('DEL', k) end " \
			"call('SET', k, tombstone, 'PX', keep) " \
		"end " \
	"end " \
	REPLY("done")

const char *const lua_command_name[CORE_OP_RELEASE + 1] = {
	[CORE_OP_ACQUIRE] = "acquire",
	[CORE_OP_CONFIRM] = "confirm",
	[CORE_OP_RENEW] = "renew",
	[CORE_OP_RELEASE] = "release",
};

/* Replies take the places of commands. */
const char lua_script[] =
	"local call, pcall, argv = redis.call, redis.pcall, ARGV "
	"local sub, words = string.sub, struct.unpack "
	"local known, marker = argv[1], nil "
	"for i = 2, #argv do "
		"local op, key, value, a, b, d, rest = words('ssssss', argv[i]) "
		"local reply "
		"repeat "
			"if op == 'acquire' then " ACQUIRE "end "
			"if op == 'release' then " RELEASE "end "
			"if op == 'renew' then " RENEW "end "
			CONFIRM
		"until true "
		"argv[i - 1] = reply "
	"end "
	"argv[#argv] = nil "
	"return argv";

typedef char script_fits[sizeof(lua_script) <= LUA_SCRIPT_MAX ? 1 : -1];

const char lua_marker_script[] =
	"local t = redis.call('TIME') "
	"local now = t[1] * 1000000 + t[2] "
	"local m = redis.call('GET', " MARKER ") "
	"if not m then "
		"m = ARGV[1] "
		"if ARGV[2] ~= '' then m = m .. ' lost ' .. " TEXT("now") " end "
		"redis.call('SET', " MARKER ", m) "
	"end "
	"local at = tonumber(string.match(m, ' lost (%d+)$')) "
	"return {m, not at and 0 or now - at < ARGV[3] * 1000 and 1 or 2}";

/* clang-format on */
