/*
 * new_names.c
 *		Names that are new to this server; see new_names.h.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/acl.h"

#include "protocol/lua.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/new_names.h"

#define LOCK_NAME "redlock_pg names"

#define HOUR_US INT64CONST(3600000000)
#define MINUTE_US INT64CONST(60000000)

/* A name is known while its counter lives, less a minute. */
#define KNOWN_MINUTES ((int64) LUA_COUNTER_KEEP_MS / 60000 - 1)

/* Half a megabyte holds up to 65536 names: sets fill unevenly. */
#define SETS 8192
#define NAMES_OF_SET 8

/* Of a name: 40 bits of the hash, and the minute of the last request.  0: no name. */
#define MINUTE_BITS 24
#define MINUTE_MASK ((UINT64CONST(1) << MINUTE_BITS) - 1)

typedef struct Role
{
	Oid role;     /* InvalidOid: free */
	int64 hour;   /* by redlock_clock_us() */
	int64 names;  /* in this hour */
	int64 before; /* in the hour before */
	int64 refused;
	int64 refused_us; /* time of the last refusal; 0: none */
	int64 told_us;    /* time of the log message about a lack of room; 0: none */
} Role;

typedef struct Names
{
	LWLock *lock; /* for the roles */
	uint64 seed;
	Role role[NEW_NAMES_ROLES];
	pg_atomic_uint64 name[SETS][NAMES_OF_SET];
} Names;

static Names *names = NULL;

static bool note(uint64 hash, bool asked, int64 minute);
static void bring_in(int count);
static Role *role_of(Oid role, int64 hour);
static int64 in_last_hour(const Role *role, int64 now_us);
static void fail(Oid role, int64 used, bool tell);

void
new_names_request(void)
{
	RequestAddinShmemSpace(sizeof(Names));
	RequestNamedLWLockTranche(LOCK_NAME, 1);
}

void
new_names_set_up(void)
{
	bool found;

	names = ShmemInitStruct("redlock_pg names", sizeof(Names), &found);
	if (found)
		return;
	memset(names, 0, sizeof(Names));
	names->lock = &GetNamedLWLockTranche(LOCK_NAME)->lock;
	if (!pg_strong_random(&names->seed, sizeof(names->seed)))
		ereport(ERROR, (errcode(ERRCODE_INTERNAL_ERROR),
						errmsg("could not generate a random id for this server")));
	for (int i = 0; i < SETS; i++)
		for (int j = 0; j < NAMES_OF_SET; j++)
			pg_atomic_init_u64(&names->name[i][j], 0);
}

uint64
new_names_hash(const char *name, int len)
{
	return hash_bytes_extended((const unsigned char *) name, len, names->seed);
}

void
new_names_ask(const uint64 *hashes, int count)
{
	int64 minute = redlock_clock_us() / MINUTE_US;
	int fresh = 0;

	for (int i = 0; i < count; i++)
		fresh += !note(hashes[i], false, minute);
	if (fresh == 0)
		return;
	bring_in(fresh);
	for (int i = 0; i < count; i++)
		(void) note(hashes[i], true, minute);
}

/*
 * Returns whether the name is known, and refreshes the minute of a known name.  With `asked`,
 * inserts an unknown name in place of the oldest name of the set, and returns true.
 */
static bool
note(uint64 hash, bool asked, int64 minute)
{
	pg_atomic_uint64 *set = names->name[hash % SETS];
	uint64 mark = (hash & ~MINUTE_MASK) | ((uint64) minute & MINUTE_MASK);
	int64 oldest = -1;
	int place = 0;

	for (int i = 0; i < NAMES_OF_SET; i++)
	{
		uint64 other = pg_atomic_read_u64(&set[i]);
		int64 age = other == 0 ? PG_INT64_MAX : (minute - (int64) other) & MINUTE_MASK;

		if (other != 0 && (other & ~MINUTE_MASK) == (hash & ~MINUTE_MASK))
		{
			if (!asked && age > KNOWN_MINUTES)
				return false;
			if (other != mark)
				pg_atomic_write_u64(&set[i], mark);
			return true;
		}
		if (age > oldest)
		{
			oldest = age;
			place = i;
		}
	}
	if (asked)
		pg_atomic_write_u64(&set[place], mark);
	return asked;
}

void
new_names_add_row(void)
{
	bring_in(1);
}

static void
bring_in(int count)
{
	Oid id = GetSessionUserId();
	int64 limit = redlock_max_new_names_per_hour;
	bool limited = limit >= 0 && !superuser_arg(id);
	int64 now_us = redlock_clock_us();
	int64 used;
	bool refused;
	bool tell = false;
	Role *role;

	LWLockAcquire(names->lock, LW_EXCLUSIVE);
	role = role_of(id, now_us / HOUR_US);
	used = in_last_hour(role, now_us);
	refused = limited && used + count > limit;
	if (!refused)
		role->names += count;
	else
	{
		role->refused++;
		role->refused_us = now_us;
		tell = role->told_us == 0 || now_us - role->told_us > HOUR_US;
		if (tell)
			role->told_us = now_us;
	}
	LWLockRelease(names->lock);
	if (refused)
		fail(id, used, tell);
}

/*
 * Returns the entry of a role.  If there is no room, replaces the role with the fewest new names.
 * The caller has the lock.
 */
static Role *
role_of(Oid id, int64 hour)
{
	Role *role = &names->role[0];
	int64 least = PG_INT64_MAX;

	for (int i = 0; i < NEW_NAMES_ROLES; i++)
	{
		Role *other = &names->role[i];
		int64 used = other->role == InvalidOid ? -1 : in_last_hour(other, hour * HOUR_US);

		if (other->role == id)
		{
			role = other;
			break;
		}
		if (used < least)
		{
			least = used;
			role = other;
		}
	}
	if (role->role != id)
		*role = (Role){.role = id, .hour = hour};
	if (role->hour != hour)
	{
		role->before = role->hour == hour - 1 ? role->names : 0;
		role->names = 0;
		role->hour = hour;
	}
	return role;
}

/* Counts the names of the hour before as if spread evenly over that hour. */
static int64
in_last_hour(const Role *role, int64 now_us)
{
	int64 hour = now_us / HOUR_US;
	int64 left_us = HOUR_US - now_us % HOUR_US;

	if (role->hour == hour)
		return role->names + (role->before * left_us + HOUR_US - 1) / HOUR_US;
	if (role->hour == hour - 1)
		return (role->names * left_us + HOUR_US - 1) / HOUR_US;
	return 0;
}

static void
fail(Oid role, int64 used, bool tell)
{
	char *name = GetUserNameFromId(role, true);

	if (name == NULL)
		name = psprintf("%u", role);
	if (tell)
		ereport(LOG, (errmsg("role \"%s\" gets no more new redlock names for now", name),
					  errdetail("The role has brought in " INT64_FORMAT " within an hour.", used),
					  errhint("See the view redlock_roles, and the view redlock_nodes for the "
							  "memory left at the nodes.")));
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("role \"%s\" brings in too many new redlock names", name),
			 errdetail("The role has brought in " INT64_FORMAT
					   " names or rows of redlock_fences within an hour that were new to this "
					   "server, and redlock.max_new_names_per_hour is %d.",
					   used, redlock_max_new_names_per_hour),
			 errhint(NEW_NAMES_STEP)));
}

int
new_names_list(NewNames list[NEW_NAMES_ROLES])
{
	int64 now_us = redlock_clock_us();
	int count = 0;

	LWLockAcquire(names->lock, LW_SHARED);
	for (int i = 0; i < NEW_NAMES_ROLES; i++)
	{
		const Role *role = &names->role[i];

		if (role->role != InvalidOid)
			list[count++] =
				(NewNames){role->role, in_last_hour(role, now_us), role->refused,
						   role->refused_us != 0 && now_us - role->refused_us < HOUR_US};
	}
	LWLockRelease(names->lock);
	return count;
}
