/*
 * lua.h
 *		What the nodes execute: one script for each core_op, and one for the
 *		marker.
 *
 * No PostgreSQL header, so that the scripts can be tested by themselves against
 * a real node.
 *
 *	 key       prefix || name in UTF-8
 *	 value     32 hex digits, ':', the attempt in nine digits, ' ', who holds it
 *	 counter   key || NUL || "token": the last fencing token, in digits; expires
 *			   a day after it was written
 *	 marker    prefix || NUL || "marker": says that the node has lost no data
 *			   since it was written; never expires
 *
 * No name has a NUL in it, so counters and markers are not in the way of locks.
 * A release is told on the channel with the key's name.
 *
 * For the key the semantics are those of SET NX PX and of compare-and-delete, so
 * plain Redlock clients contend with us on the same key.
 *
 * Each script reads and checks before it writes: an error means that nothing was
 * done.  ARGV[1] is always the value.  Counters are whole numbers without leading
 * zeros; a "keep" is how long a counter lives, in milliseconds.
 *
 *	 acquire  KEYS: key, marker.  ARGV: value; ttl in ms; proposal: the client's
 *			  wall clock in us; proposal - LUA_CLOCK_BOUND_US; proposal - span, the
 *			  tokens that a grant is good for; marker.
 *			  Returns the counter as text, or {ttl left in ms, value in the way}.
 *	 confirm  KEYS: key.  ARGV: value; counter that was granted; token; keep.
 *			  Returns 1, or 0: one of them is not there any more.
 *	 renew    KEYS: key.  ARGV: value; ttl in ms; bound; keep.
 *			  Returns 1, or 0: another's key is there, or a counter over the bound.
 *	 release  KEYS: key.  ARGV: value; what becomes of the key: 0: it is deleted and
 *			  waiters are told, -1: it is deleted, else it is kept for so many ms;
 *			  tombstone, or 0: none; keep.
 *			  Returns 0: the key was not there; else 1 + the waiters that were told.
 *	 marker   KEYS: marker.  ARGV: random text for a new one; the marker that was
 *			  seen here before or ''; redlock.max_ttl in ms.
 *			  Returns {the marker, 1 if it was written within max_ttl by one who
 *			  had seen an earlier one: data was lost; else 0}.
 */
#ifndef REDLOCK_LUA_H
#define REDLOCK_LUA_H

#include "core.h"

#define LUA_SCRIPTS 4 /* one for each core_op */

/* Proposals may be this far ahead of a node's clock, or count as this far behind it. */
#define LUA_CLOCK_BOUND_US INT64_C(3600000000)

/* Counters are less than this: Lua counts in doubles. */
#define LUA_COUNTER_END INT64_C(9007199254740992)

/* How long a counter is kept beyond the time that it stands for. */
#define LUA_COUNTER_KEEP_MS INT64_C(86400000)

/* Errors of the acquire begin with these. */
#define LUA_FORGOT "FORGOT"
#define LUA_AHEAD "AHEAD"

extern const char *const lua_script[LUA_SCRIPTS];
extern const char lua_marker_script[];

#endif /* REDLOCK_LUA_H */
