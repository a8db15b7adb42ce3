/*
 * lua.c
 *		The scripts that the nodes execute; see lua.h.
 *
 * They are written to be cheap: an argument costs a node as much as a dozen lines,
 * a command that is called as much as ten arguments, and to turn numbers into text
 * more than to compare them.  So the acquire looks at the clock of the node only
 * when the counter is not there or was not raised for long.
 */
#include "lua.h"

#define QUOTE_NUMBER(number) #number
#define QUOTE(constant) QUOTE_NUMBER(constant)

#define SPAN QUOTE(LUA_SPAN)
#define CLOCK_BOUND QUOTE(LUA_CLOCK_BOUND_US)
#define COUNTER_END QUOTE(LUA_COUNTER_END)
#define COUNTER_KEEP QUOTE(LUA_COUNTER_KEEP_MS)
#define MARKER "'redlock:\\0marker'"

#define COUNTER_KEY "KEYS[1] .. '\\0token'"

/* clang-format off */

/* Is the value v of an earlier attempt of the same request? */
#define IS_EARLIER \
	"(string.sub(v, 1, 33) == string.sub(ARGV[1], 1, 33) " \
	"and string.sub(v, 34, 42) < string.sub(ARGV[1], 34, 42)) "

/* Of whole numbers as text. */
#define LESS(a, b) "(#" a " < #" b " or #" a " == #" b " and " a " < " b ")"

#define TEXT(number) "string.format('%.0f', " number ")"

#define READ \
	"local k = " COUNTER_KEY " " \
	"local got = redis.call('MGET', KEYS[1], k) " \
	"local v, c = got[1], got[2] or '0' "

#define DELETE_AND_TELL \
	"redis.call('DEL', KEYS[1]) " \
	"return 1 + (tonumber(redis.pcall('PUBLISH', KEYS[1], 'free')) or 0) "

const char *const lua_script[LUA_SCRIPTS] = {
	/*
	 * The marker must be the one that the client knows: a late release or renewal
	 * can have made the counter on a node that lost its data.
	 *
	 * One that was sent twice is granted once.  The counter follows the clocks of
	 * clients, within the bounds of the node's own, so that order outlives it; one
	 * that ran ahead of time is kept for that much longer.  "near": as long as the
	 * first six of its digits stay the same, for 2.8 hours.
	 */
	[CORE_OP_ACQUIRE] =
		"local k = " COUNTER_KEY " "
		"local got = redis.call('MGET', k, " MARKER ") "
		"if got[2] ~= ARGV[4] then return "
			"redis.error_reply('" LUA_FORGOT " its marker: the data of this node was lost') end "
		"local c, p, keep = got[1], ARGV[3], '" COUNTER_KEEP "' "
		"local n = p "
		"local near = c and #c == #p and string.sub(c, 1, 6) == string.sub(p, 1, 6) "
		"if not near then "
			"local t = redis.call('TIME') "
			"local now = t[1] * 1000000 + t[2] "
			"if p - now > " CLOCK_BOUND " then return "
				"redis.error_reply('" LUA_AHEAD " of the clock of this node: that of the client, by ' "
				".. " TEXT("(p - now) / 1000000") " .. ' s') end "
			"if now - p > " CLOCK_BOUND " then n = " TEXT("now - " CLOCK_BOUND) " end "
		"end "
		"if c and n - c < " SPAN " then "
			"local raised = c + " SPAN " "
			"if raised >= " COUNTER_END " then return "
				"redis.error_reply('" LUA_AHEAD " of all time: the counter') end "
			"keep = " TEXT(COUNTER_KEEP " + math.max(0, raised - p) / 1000") " "
			"n = " TEXT("raised") " "
		"end "
		"if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then "
			"local v = redis.call('GET', KEYS[1]) "
			"if v == ARGV[1] then return c or '0' end "
			"if not " IS_EARLIER "then return {redis.call('PTTL', KEYS[1]), v} end "
			"redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2]) "
		"end "
		"if near and #n == #c then redis.call('SETRANGE', k, 0, n) "
		"else redis.call('SET', k, n, 'PX', keep) end "
		"return n",

	/* If nothing was granted since, and the grant has not ended. */
	[CORE_OP_CONFIRM] =
		READ
		"if v ~= ARGV[1] or c ~= ARGV[2] then return 0 end "
		"redis.call('SET', k, ARGV[3], 'PX', ARGV[4]) "
		"return 1",

	/* Extends, never shortens; a key that is not there is created. */
	[CORE_OP_RENEW] =
		READ
		"if v and v ~= ARGV[1] and not " IS_EARLIER "or " LESS("ARGV[3]", "c") " then return 0 end "
		"if v == ARGV[1] then "
			"if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then "
				"redis.call('PEXPIRE', KEYS[1], ARGV[2]) end "
		"elseif not redis.call('SET', KEYS[1], ARGV[1], v and 'XX' or 'NX', 'PX', ARGV[2]) then "
			"return 0 end "
		"if c ~= ARGV[3] then redis.call('SET', k, ARGV[3], 'PX', ARGV[4]) end "
		"return 1",

	/*
	 * Takes this attempt and earlier ones of the same request, not later ones.
	 * Who may not publish can still release: waiters then find out by asking.
	 */
	[CORE_OP_RELEASE] =
		READ
		"if " LESS("c", "ARGV[3]") " then redis.call('SET', k, ARGV[3], 'PX', ARGV[4]) end "
		"if not v or v ~= ARGV[1] and not " IS_EARLIER "then return 0 end "
		"if ARGV[2] == '0' then " DELETE_AND_TELL "end "
		"if ARGV[2] == '-1' then return redis.call('DEL', KEYS[1]) end "
		"return redis.call('PEXPIRE', KEYS[1], ARGV[2])",

	[LUA_DONE] =
		"local v = redis.call('GET', KEYS[1]) "
		"if not v or v ~= ARGV[1] and not " IS_EARLIER "then return 0 end "
		DELETE_AND_TELL
};

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
