/*
 * lua.h
 *		What the nodes execute: redlock.lua, for the commands on locks, marker.lua, hosts.lua,
 *		for the list of hosts, and readers.lua, for what readers are told; for C; and what these
 *		share with it.
 *
 * What the nodes keep and what the commands do is told in redlock.lua.  lua_text.c is
 * made from these by scripts/lua_text.pl.  No PostgreSQL header, so that the scripts
 * can be tested by themselves against a real node.
 */
#ifndef REDLOCK_LUA_H
#define REDLOCK_LUA_H

#include "protocol/core.h"

#define LOCK_NAME_MAX 255    /* bytes of a resource's name in UTF-8 */
#define LOCK_PREFIX_MAX 63   /* bytes of redlock.key_prefix */
#define LOCK_HOLDER_MAX 159  /* bytes that say who holds a lock */
#define LOCK_SECRET_BYTES 16 /* random bytes of a lock's value */
#define LOCK_HOST_DIGITS 16  /* hex digits of a host's id */

/*
 * What is named LUA_ may stand in the scripts, whose texts are made of it.  So numbers
 * have no suffix and no parentheses.
 */

/* Tokens that one grant is good for: the counter is raised by so many at least. */
#define LUA_SPAN 1001

/* Proposals may be this far ahead of a node's clock, or count as this far behind it. */
#define LUA_CLOCK_BOUND_US 3600000000

/* Counters are less than this: Lua counts in doubles. */
#define LUA_COUNTER_END 9007199254740992

/* Digits of the largest of them. */
#define LUA_COUNTER_DIGITS 16

/*
 * A node need not look at its clock where a counter and a proposal have the same first digits:
 * then they are less than COUNTER_NEAR_MS apart.
 */
#define LUA_NEAR_DIGITS 7
#define COUNTER_NEAR_MS 1000000

/* So far a node's clock may be set forward before a counter expires too early. */
#define COUNTER_MARGIN_MS 2600000

/*
 * How long a counter is kept beyond the time that it stands for, by the node's clock.  A later
 * proposal may be LUA_CLOCK_BOUND_US behind that clock, and a counter that was raised to a near one
 * expires when the former would have.
 */
#define LUA_COUNTER_KEEP_MS 7200000

typedef char counter_keep_has_parts[LUA_COUNTER_KEEP_MS == LUA_CLOCK_BOUND_US / 1000 +
															   COUNTER_NEAR_MS + COUNTER_MARGIN_MS
										? 1
										: -1];

/* Between the name of a lock and the number of a permit: see permits.h. */
#define LUA_PERMIT "\001"

/* Of the key of a permit: the key of the lock, and the number.  Not of that of the queue. */
#define LUA_PERMIT_PATTERN "^([^\001]*)\001(%d+)$"

/*
 * The number of permits in a value that says it, if the 33rd and 43rd characters are colons and the
 * 60th is a blank.  The holder's text begins with this number: see holder.h.
 */
#define LUA_PERMITS_PATTERN "^[%da-f]+:%d+:[%da-f]+ permits=(1?%d?%d?%d) "

#define LUA_SCRIPT_MAX 20000 /* bytes of the one for locks */

/* Before a host's id: the channel of what it is told. */
#define LUA_HOST "redlock:\0host:"

#define LUA_MARKER "redlock:\0marker"
#define LUA_MARKER_MAX 63 /* bytes of its text */

/* The list of hosts, and before what else is kept for it. */
#define LUA_HOSTS "redlock:\0hosts"

/* A host that was not seen for so long is gone. */
#define LUA_HOST_LIVES_MS 45000

/* One that was not seen for so long was not in order: each writes more often. */
#define LUA_HOST_SILENT_MS 15000

/* Bytes of what a host says of itself, and of what it must agree about. */
#define LUA_FACTS_MAX 256
#define LUA_CONFIG_MAX 6000

/* Bytes of a mark: by which list of nodes another one was replaced. */
#define LUA_MARK_MAX 800

/* Configurations that a host is told of, hosts in an answer, and its bytes: with one more. */
#define LUA_CONFIGS_MAX 16
#define LUA_RECORDS_MAX 100
#define LUA_ANSWER_SIZE 32000

/* What a release says of the key, if not for how long it is kept. */
#define LUA_DELETE_AND_TELL 0
#define LUA_DELETE_AND_TELL_QUEUE -2
#define LUA_DELETE -1

/* Bytes that a node returns of a value at most.  One of ours fits, and each text that is shown. */
#define LUA_HELD_MAX 255

/* In the value of a key that is kept after its release. */
#define LUA_KEPT "kept "

/* Before who holds the lock, else ' ': by keep_idle nobody may, and the host gives it up then. */
#define LUA_MAY_STAY "~"

/* Before that, if the lock is shared. */
#define LUA_SHARED "="

/* Before who came last of those who share a lock, for people.  That one may have left. */
#define LOCK_READERS "those who share it, last to join: "

/* So long a host that waits for the exclusive lock holds new readers back, from when it asked last:
 * longer than it takes to ask again. */
#define LUA_BARRIER_MS 1000

/* Before who waits for it alone, to one who may not share it meanwhile; for people. */
#define LUA_WAITED_FOR "those who share it, while it is waited for by "

/* So many readers are told by who is not the first to wait for them, of whose turn comes later. */
#define LUA_READERS_TOLD 16

/* So many readers are asked for whom they wait. */
#define LUA_READERS_ASKED 64

/* Of readers whose time is over, so many are forgotten at a time. */
#define LUA_READERS_OVER 1000

/* In place of the time for which an acquire has waited. */
#define LUA_TRY "try"

/* Errors of the acquire begin with these. */
#define LUA_FORGOT "FORGOT"
#define LUA_AHEAD "AHEAD"

/* The first words of commands: [1] of those who share the lock. */
extern const char *const lua_command_name[2][CORE_OP_RELEASE + 1];

extern const char lua_script[];
extern const char lua_marker_script[];
extern const char lua_hosts_script[];
extern const char lua_readers_script[];

#endif /* REDLOCK_LUA_H */
