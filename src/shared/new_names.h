/*
 * new_names.h
 *		Shared memory: names for which this server has asked the nodes lately, and the number of
 *		new names of each role.
 *
 * Each name leaves a counter at the nodes for LUA_COUNTER_KEEP_MS, and the first pass of a fence
 * leaves a row in redlock_fences for ever.  So redlock.max_new_names_per_hour bounds the new names
 * of a role.  The session's role counts: SECURITY DEFINER functions, like redlock_fence, do not
 * change the session's role.
 *
 * Names are kept as hashes, in a table of fixed size: a displaced name counts as new again.
 * Processes read and write the table without a lock: two processes at the same moment may count a
 * name twice.  Only new names take the lock of the roles.
 */
#ifndef REDLOCK_NEW_NAMES_H
#define REDLOCK_NEW_NAMES_H

typedef struct NewNames
{
	Oid role;
	int64 names;         /* in the last hour */
	int64 refused;       /* since the role's entry was made */
	bool refused_lately; /* within the last hour */
} NewNames;

/* The hint if a role gets no more new names. */
#define NEW_NAMES_STEP                                                                             \
	"Use fewer different names, or try again later. Or let a superuser raise "                     \
	"redlock.max_new_names_per_hour, for this role alone by ALTER ROLE."

/* Roles whose new names are counted.  The role with the fewest gives way to another role. */
#define NEW_NAMES_ROLES 128

/* postmaster */
extern void new_names_request(void);
extern void new_names_set_up(void); /* under AddinShmemInitLock */

/* A keyed hash: an outsider cannot make two names with the same hash. */
extern uint64 new_names_hash(const char *name, int len);

/*
 * Counts names before the nodes are asked.  Raises an error (53400), and counts nothing, if some
 * names are new and the role has no room for them.
 */
extern void new_names_ask(const uint64 *hashes, int count);

/* A row was added to redlock_fences. */
extern void new_names_add_row(void);

/* Fills in the roles; returns the number of roles. */
extern int new_names_list(NewNames list[NEW_NAMES_ROLES]);

#endif /* REDLOCK_NEW_NAMES_H */
