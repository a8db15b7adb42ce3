/*
 * lua.h
 *		What the nodes execute: a script for the operations on locks, one for the
 *		marker, and what they keep.
 *
 * No PostgreSQL header, so that the scripts can be tested by themselves against
 * a real node.
 *
 *	 key       prefix || name in UTF-8
 *	 value     32 hex digits, ':', the attempt in nine digits, ' ', who holds it
 *	 counter   key || NUL || "token": the last fencing token, in digits; expires
 *			   some more than a day after it was granted
 *	 marker    LUA_MARKER, one for each node: random text that says that the node
 *			   has lost no data since it was written; if one who had seen an earlier
 *			   marker wrote it, followed by " lost " and the node's time in us; never
 *			   expires
 *
 * No name has a NUL in it, so counters and markers are not in the way of locks.
 * A release is told on the channel with the key's name.
 *
 * For the key the semantics are those of SET NX PX and of compare-and-delete, so
 * plain Redlock clients contend with us on the same key.
 *
 * The script has no KEYS.  ARGV[1] is the marker that the client knows, and each
 * argument behind it a command: six words, or seven, a NUL after each, of which the
 * sixth may be empty.  They are executed in order, and the reply is an array of what
 * each returns.  Each reads and checks before it writes: an error in that array
 * means that nothing was done, though a release may have deleted the key.  A node
 * whose memory is full refuses what needs some in this way, and executes each
 * release.  An error in place of the array is one of the whole node, and commands
 * before the one that met it may have been executed.
 *
 * Counters are whole numbers without leading zeros.
 *
 *	 acquire key value ttl proposal
 *			  ttl in ms; proposal: the client's wall clock in us.  Returns the counter
 *			  as text, or {ttl left in ms, value in the way}.
 *	 confirm key value counter token keep
 *			  counter: the one that was granted.  Returns 1, or 0: it or the value is
 *			  not there any more.
 *	 renew key value ttl bound keep [raise]
 *			  Returns 1; or 0: another's key is there; or the counter as text: it is
 *			  over the bound, and this value is not there.
 *	 release key value last tombstone keep
 *			  last: what becomes of the key: 0: it is deleted and waiters are told, -1:
 *			  it is deleted, else it is kept for so many ms, with LUA_KEPT in front of who
 *			  held it; tombstone, or 0: none.
 *			  Returns 0: the key was not there; else 1 + the waiters that were told.
 *
 * A "keep" is how long a counter that has to be written lives, in milliseconds.
 *
 *	 marker script: ARGV: random text for a new one; the marker that was seen here
 *			  before or ''; redlock.max_ttl in ms.
 *			  Returns {the marker, 0}, or if it tells of a loss {the marker, 1 if
 *			  that is less than max_ttl ago, else 2}.
 */
#ifndef REDLOCK_LUA_H
#define REDLOCK_LUA_H

#include "protocol/core.h"

#define LOCK_NAME_MAX 255    /* bytes of a resource's name in UTF-8 */
#define LOCK_PREFIX_MAX 63   /* bytes of redlock.key_prefix */
#define LOCK_HOLDER_MAX 159  /* bytes that say who holds a lock */
#define LOCK_SECRET_BYTES 16 /* random bytes of a lock's value */

/* The numbers have no suffix: the scripts' texts are made of them. */

/* Tokens that one grant is good for: the counter is raised by so many at least. */
#define LUA_SPAN 1001

/* Proposals may be this far ahead of a node's clock, or count as this far behind it. */
#define LUA_CLOCK_BOUND_US 3600000000

/* Counters are less than this: Lua counts in doubles. */
#define LUA_COUNTER_END 9007199254740992

/* How long a counter is kept beyond the time that it stands for. */
#define LUA_COUNTER_KEEP_MS 100000000

#define LUA_SCRIPT_MAX 4500 /* bytes of the one for locks */

#define LUA_MARKER "redlock:\0marker"
#define LUA_MARKER_MAX 63 /* bytes of its text */

/* What a release says of the key, if not for how long it is kept. */
#define LUA_DELETE_AND_TELL 0
#define LUA_DELETE (-1)

/* In the value of a key that is kept after its release. */
#define LUA_KEPT "kept "

/* Errors of the acquire begin with these. */
#define LUA_FORGOT "FORGOT"
#define LUA_AHEAD "AHEAD"

extern const char lua_script[];
extern const char *const lua_command_name[CORE_OP_RELEASE + 1];
extern const char lua_marker_script[];

#endif /* REDLOCK_LUA_H */
