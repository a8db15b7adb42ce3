/*
 * lua.h
 *		The scripts that the nodes execute, for C; and the constants that scripts and C share.
 *		src/README.md says at lua_text which script has which commands.
 *
 * redlock.lua documents what the nodes keep and what each command does. scripts/lua_text.pl
 * makes lua_text.c of the scripts.  No PostgreSQL header, so that tests can run the scripts
 * against a real node.
 */
#ifndef REDLOCK_LUA_H
#define REDLOCK_LUA_H

#include "protocol/core.h"

#define LOCK_NAME_MAX 255    /* bytes of a resource's name in UTF-8 */
#define LOCK_PREFIX_MAX 63   /* bytes of redlock.key_prefix */
#define LOCK_HOLDER_MAX 159  /* bytes of the text that names a lock's holder */
#define LOCK_SECRET_BYTES 16 /* random bytes of a lock's value */
#define LUA_HOST_DIGITS 16   /* hex digits of a host's id */
#define LOCK_HOST_DIGITS LUA_HOST_DIGITS

/*
 * A name with the prefix LUA_ may stand in a script, and its value becomes part of the script.
 * So numbers have no suffix and no parentheses.
 */

/* tokens of one grant: each grant raises the counter at least by this number */
#define LUA_SPAN 1001

/*
 * largest distance of a proposal ahead of a node's clock; a proposal further behind counts as
 * this far behind
 */
#define LUA_CLOCK_BOUND_US 3600000000

/* counters are less than this, because Lua counts in doubles */
#define LUA_COUNTER_END 9007199254740992

/* digits of the largest counter */
#define LUA_COUNTER_DIGITS 16

/*
 * If a counter and a proposal have the same first digits, they are less than COUNTER_NEAR_MS
 * apart.  Then the node does not look at its clock.
 */
#define LUA_NEAR_DIGITS 7
#define COUNTER_NEAR_MS 1000000

/* how far a node's clock may be set forward before a counter expires too early */
#define COUNTER_MARGIN_MS 2600000

/*
 * How long a node keeps a counter beyond the time for which the counter stands, by the node's
 * clock.  A later proposal may be LUA_CLOCK_BOUND_US behind this clock.  A counter that was
 * raised to a near proposal keeps its former expiry.
 */
#define LUA_COUNTER_KEEP_MS 7200000

typedef char counter_keep_has_parts[LUA_COUNTER_KEEP_MS == LUA_CLOCK_BOUND_US / 1000 +
															   COUNTER_NEAR_MS + COUNTER_MARGIN_MS
										? 1
										: -1];

/* between the name of a lock and the number of a permit: see permits.h */
#define LUA_PERMIT "\001"

/* the key of a permit: key of the lock, number; the queue's key does not match */
#define LUA_PERMIT_PATTERN "^([^\001]*)\001(%d+)$"

/*
 * The number of permits in a value.  The value states the number if its 33rd and 43rd characters
 * are colons and its 60th is a blank.  The holder's text then begins with the number: see
 * holder.h.
 */
#define LUA_PERMITS_PATTERN "^[%da-f]+:%d+:[%da-f]+ permits=(1?%d?%d?%d) "

/*
 * A permit that ends at most this long before the lock's key counts as the longest permit.  Before
 * Redis 7.2 the clock goes on while a script executes, so a life copied from one key to another
 * grows by a millisecond at times.
 */
#define LUA_PERMIT_SLACK_MS 1000

#define LUA_SCRIPT_MAX 20000 /* bytes of the script for locks */

/* with a host's id: the channel of messages to the host */
#define LUA_HOST "redlock:\0host:"

#define LUA_MARKER "redlock:\0marker"
#define LUA_MARKER_MAX 63 /* bytes of the marker's text */

/* the list of hosts; also the prefix of further keys about hosts */
#define LUA_HOSTS "redlock:\0hosts"

/* a node drops a host that it has not seen for this long */
#define LUA_HOST_LIVES_MS 45000
#define LUA_SET_BACK_MS 1800000 /* entries survive a clock that is set back by less */

/* a host not seen for this long has a problem: each host writes more often */
#define LUA_HOST_SILENT_MS 15000

/* bytes of a host's facts, and of its configuration */
#define LUA_FACTS_MAX 256
#define LUA_CONFIG_MAX 6000

/* bytes of a mark, which names the list that replaced another list */
#define LUA_MARK_MAX 1100

/* limits of an answer about hosts: configurations, hosts, bytes */
#define LUA_CONFIGS_MAX 16
#define LUA_RECORDS_MAX 100
#define LUA_ANSWER_SIZE 32000

/* argument of a release, in place of the time for which the key is kept */
#define LUA_DELETE_AND_TELL 0
#define LUA_DELETE_AND_TELL_QUEUE -2
#define LUA_DELETE -1

/*
 * Largest part of a value that a node returns, in bytes.  Our own values fit, and so does every
 * text for people.
 */
#define LUA_HELD_MAX 255

/* before the holder's text, in the value of a key kept after a release */
#define LUA_KEPT "kept "

/*
 * Before the holder's text, else a blank.  With keep_idle the lease may be idle, and its host
 * then releases the lease when another host recalls it.
 */
#define LUA_MAY_IDLE "~"

/* before LUA_MAY_IDLE or the blank, if the lock is shared */
#define LUA_SHARED "="

/* for people, before the last reader to join a shared lock; this reader may have left */
#define LOCK_READERS "those who share it, last to join: "

/*
 * How long a waiting writer's host holds back new readers, after it last asked.  Longer than its
 * pause between two requests.
 */
#define LUA_BARRIER_MS 1000

/* for people, before a waiting writer: tells a reader why it is refused */
#define LUA_WAITED_FOR "those who share it, while it is waited for by "

/* how many readers hear of a writer behind the first waiting writer */
#define LUA_READERS_TOLD 16

/* how many readers a deadlock probe reaches */
#define LUA_READERS_ASKED 64

/* what inspect.lua and inspect_many.lua find under a lock's name */
#define LUA_KEY_NONE 0
#define LUA_KEY_STRING 1
#define LUA_KEY_OTHER 2
#define LUA_KEY_ERROR 3 /* of inspect_many.lua */

/* the longest life that inspect_many.lua tells, in ms */
#define LUA_LIFE_MAX 2147483647

/*
 * Keys that a step of scan.lua looks at; bytes that scan.lua or inspect_many.lua returns; bytes of
 * the longest key.
 */
#define LUA_SCAN_KEYS 250
#define LUA_KEYS_SIZE 16000
#define LUA_KEY_MAX 323

/* bytes of a note of run_note.lua; jobs with a note; notes that a call removes at most */
#define LUA_NOTE_MAX 1000
#define LUA_NOTES_MAX 10000
#define LUA_NOTES_PRUNED 10

/* what force_release.lua did */
#define LUA_FORCED_NOT 0
#define LUA_FORCED 1

/* how many expired readers a node removes at a time */
#define LUA_READERS_OVER 1000

/* in place of the time for which an acquire has waited */
#define LUA_TRY "try"

/* errors of an acquire begin with these */
#define LUA_FORGOT "FORGOT"
#define LUA_AHEAD "AHEAD"

/* the error of the marker's script begins with this; names of commands follow */
#define LUA_MISSING "MISSING"

/* the first words of commands; [1]: in shared mode */
extern const char *const lua_command_name[2][CORE_OP_RELEASE + 1];

extern const char lua_script[];
extern const char lua_marker_script[];
extern const char lua_hosts_script[];
extern const char lua_readers_script[];
extern const char lua_inspect_script[];
extern const char lua_inspect_many_script[];
extern const char lua_force_script[];
extern const char lua_scan_script[];
extern const char lua_run_note_script[];

#endif /* REDLOCK_LUA_H */
