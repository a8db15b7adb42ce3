/*
 * new_names.h
 *		Shared memory: which names this server has asked the nodes for lately, and how many
 *		new ones each role has brought in.
 *
 * Each name leaves a counter at the nodes, for LUA_COUNTER_KEEP_MS, and the first pass of a
 * fence leaves a row in redlock_fences for ever.  So what a role can bring in is bounded, by
 * redlock.max_new_names_per_hour.  The role is that of the session: SECURITY DEFINER functions,
 * redlock_fence is one, do not change it.
 *
 * Names are kept as hashes, in a set of fixed size: a name that was put out by others counts as
 * new again.  The set is read and written without a lock: processes that do so at one moment
 * may count a name twice.  Only what is new takes the lock of the roles.
 */
#ifndef REDLOCK_NEW_NAMES_H
#define REDLOCK_NEW_NAMES_H

typedef struct NewNames
{
	Oid role;
	int64 names;   /* in the last hour */
	int64 refused; /* since its entry was made */
} NewNames;

/* Roles whose new names are counted.  The role with the fewest gives way to another role. */
#define NEW_NAMES_ROLES 128

/* postmaster */
extern void new_names_request(void);
extern void new_names_set_up(void); /* under AddinShmemInitLock */

/* A keyed hash: nobody outside of this server can make two names with one hash. */
extern uint64 new_names_hash(const char *name, int len);

/*
 * Counts names that the nodes are about to be asked for.  Error (53400), and nothing is counted:
 * some names are new, and the role has no room for them.
 */
extern void new_names_ask(const uint64 *hashes, int count);

/* A row was added to redlock_fences. */
extern void new_names_add_row(void);

/* The roles; returns how many. */
extern int new_names_list(NewNames list[NEW_NAMES_ROLES]);

#endif /* REDLOCK_NEW_NAMES_H */
