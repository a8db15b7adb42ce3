/*
 * lua.c
 *		The scripts that the nodes execute; see lua.h.
 *
 * Counters and tokens stay text, as the commands bring them, on the common path:
 * turning numbers into text and back costs more than all the rest.
 */
#include "lua.h"

/* The constants are those of lua.h. */
#define CLOCK_BOUND "3600000000"
#define COUNTER_END "9007199254740992"
#define COUNTER_KEEP "86400000"

/* Reads the key and the counter, together with what else is named. */
#define READ(more)                                                                                 \
	"local k = KEYS[1] .. '\\0token' "                                                             \
	"local got = redis.call('MGET', KEYS[1], k" more ") "                                          \
	"local v, c = got[1], got[2] or '0' "

/* Is the value ours, of this attempt or of an earlier one of the same request? */
#define IS_OURS                                                                                    \
	"local ours = v and (v == ARGV[1] or string.sub(v, 1, 33) == string.sub(ARGV[1], 1, 33) "      \
	"and string.sub(v, 34, 42) < string.sub(ARGV[1], 34, 42)) "

/* Of whole numbers as text. */
#define LESS(a, b) "(#" a " < #" b " or #" a " == #" b " and " a " < " b ")"

#define TEXT(number) "string.format('%.0f', " number ")"

const char *const lua_script[LUA_SCRIPTS] = {
	/*
	 * One that was sent twice is granted once.  The counter follows the clocks of
	 * clients, within the bounds of the node's own, so that order outlives it; one
	 * that ran ahead of time is kept for that much longer.
	 */
	[CORE_OP_ACQUIRE] = READ(
		", KEYS[2]") "if got[3] ~= ARGV[6] then "
					 "return redis.error_reply('" LUA_FORGOT
					 " its marker: the data of this node was lost') end "
					 "if v then " IS_OURS "if v == ARGV[1] then return c end "
					 "if not ours then return {redis.call('PTTL', KEYS[1]), v} end end "
					 "local p, keep = ARGV[3], '" COUNTER_KEEP "' "
					 "if " LESS(
						 "c",
						 "ARGV[4]") " then "
									"local t, mine = redis.call('TIME'), tonumber(p) "
									"local now = t[1] * 1000000 + t[2] "
									"if mine > now + " CLOCK_BOUND
									" then return redis.error_reply('" LUA_AHEAD
									" of the clock of this node: that of the client, by ' .. " TEXT(
										"(mine - now) / 1000000") " .. ' s') end "
																  "if mine < now - " CLOCK_BOUND
																  " then p = " TEXT(
																	  "now - " CLOCK_BOUND) " end "
																							"end "
																							"if"
																							" " LESS(
																								"AR"
																								"GV"
																								"[5"
																								"]",
																								"c") " then "
																									 "local n = tonumber(c) + ARGV[3] - ARGV[5] "
																									 "if n >= " COUNTER_END
																									 " then return redis.error_reply('" LUA_AHEAD
																									 " of all time: the counter') end "
																									 "p = " TEXT("n") " keep = " TEXT(
																										 COUNTER_KEEP
																										 " + math.max(0, n - ARGV[3]) / 1000") " end "
																																			   "if not redis.call('SET', KEYS[1], ARGV[1], v and 'XX' or 'NX', 'PX', ARGV[2]) then "
																																			   "return redis.error_reply('WRONGTYPE the key is not a string') end "
																																			   "redis.call('SET', k, p, 'PX', keep) "
																																			   "return p",

	/* If nothing was granted since, and the grant has not ended. */
	[CORE_OP_CONFIRM] = READ("") "if v ~= ARGV[1] or c ~= ARGV[2] then return 0 end "
								 "redis.call('SET', k, ARGV[3], 'PX', ARGV[4]) "
								 "return 1",

	/* Extends, never shortens; a key that is not there is created. */
	[CORE_OP_RENEW] = READ("") IS_OURS "if v and not ours or " LESS(
		"ARGV[3]", "c") " then return 0 end "
						"if v == ARGV[1] then "
						"if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then "
						"redis.call('PEXPIRE', KEYS[1], ARGV[2]) end "
						"elseif not redis.call('SET', KEYS[1], ARGV[1], v and 'XX' or 'NX', 'PX', "
						"ARGV[2]) then "
						"return 0 end "
						"if c ~= ARGV[3] then redis.call('SET', k, ARGV[3], 'PX', ARGV[4]) end "
						"return 1",

	/*
	 * Takes this attempt and earlier ones of the same request, not later ones.
	 * Who may not publish can still release: waiters then find out by asking.
	 */
	[CORE_OP_RELEASE] =
		"local v = redis.call('GET', KEYS[1]) " IS_OURS "if ARGV[3] ~= '0' then "
		"local k = KEYS[1] .. '\\0token' "
		"local c = redis.call('GET', k) or '0' "
		"if " LESS("c", "ARGV[3]") " then redis.call('SET', k, ARGV[3], 'PX', ARGV[4]) end end "
								   "if not ours then return 0 end "
								   "if ARGV[2] == '0' then "
								   "redis.call('DEL', KEYS[1]) "
								   "local told = redis.pcall('PUBLISH', KEYS[1], 'free') "
								   "return 1 + (tonumber(told) or 0) end "
								   "if ARGV[2] == '-1' then return redis.call('DEL', KEYS[1]) end "
								   "return redis.call('PEXPIRE', KEYS[1], ARGV[2])"};

/* "lost" and the time: when one who knew better found no marker. */
const char lua_marker_script[] =
	"local t = redis.call('TIME') "
	"local now = t[1] * 1000000 + t[2] "
	"local m = redis.call('GET', KEYS[1]) "
	"if not m then "
	"m = ARGV[1] "
	"if ARGV[2] ~= '' then m = m .. ' lost ' .. " TEXT(
		"now") " end "
			   "redis.call('SET', KEYS[1], m) end "
			   "local at = tonumber(string.match(m, ' lost (%d+)$')) "
			   "return {m, at and math.abs(now - at) < ARGV[3] * 1000 and 1 or 0}";
