/*
 * waiting_here.c
 *		The sessions of this server that wait for a lock; see waiting_here.h.
 *
 * A session waits in one of three places.  At the gate PostgreSQL's lock manager knows the session,
 * and asked_gate the name.  In the gate, the session has announced its wait by lease_park.  At the
 * nodes, the session owns the request in the lease table.  The owner of a queue for permits waits
 * for a permit.
 */
#include "postgres.h"

#include <unistd.h>

#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "protocol/permits.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/lease.h"
#include "shared/text.h"
#include "shared/waiting_here.h"

static void describe(WaitingHost *host);
static void count_at_gate(WaitingHost *host, uint64 hash);
static bool is_at_gate(PGPROC *process, LOCKMODE *mode);
static void count_at_nodes(WaitingHost *host, uint64 hash, const char *key, size_t key_len);
static bool waits(Lease *lease);

void
waiting_here(const char *key, size_t key_len, WaitingHost *host)
{
	char queue[LOCK_PREFIX_MAX + LOCK_NAME_MAX + PERMITS_SUFFIX_MAX + 1];
	size_t queue_len = permits_name(queue, key, key_len, PERMITS_QUEUE);
	size_t prefix_len = strlen(redlock_key_prefix);
	uint64 hash;

	memset(host, 0, sizeof(*host));
	describe(host);
	if (key_len <= prefix_len || memcmp(key, redlock_key_prefix, prefix_len) != 0)
		return; /* locks of other prefixes are no locks of this server */
	hash = lease_hash(key + prefix_len, key_len - prefix_len);
	count_at_gate(host, hash);
	count_at_nodes(host, hash, key, key_len);
	hash = lease_hash(queue + prefix_len, queue_len - prefix_len);
	count_at_gate(host, hash);
	count_at_nodes(host, hash, queue, queue_len);
}

static void
describe(WaitingHost *host)
{
	char machine[WAITING_NAME_MAX + 1] = "";

	host->host = lease_table->host_id;
	text_to_printable(host->cluster, sizeof(host->cluster), cluster_name, strlen(cluster_name));
	gethostname(machine, sizeof(machine) - 1);
	text_to_printable(host->machine, sizeof(host->machine), machine, strlen(machine));
}

/* Counts the sessions at the gate and in the gate of a name. */
static void
count_at_gate(WaitingHost *host, uint64 hash)
{
	for (int i = 0; i < MaxBackends; i++)
	{
		uint64 asked = pg_atomic_read_u64(&lease_table->asked_gate[i]);
		PGPROC *process = GetPGProcByNumber(i);
		LeaseParked parked = lease_parked(i);
		LOCKMODE mode;

		if (parked.hash == hash)
			waiting_count(&host->mode[parked.shared], redlock_clock_us() - parked.since_us);
		else if ((asked == hash || asked == ~hash) && is_at_gate(process, &mode))
		{
			TimestampTz since = (TimestampTz) pg_atomic_read_u64(&process->waitStart);

			/* the begin of a wait may be 0: see local_wait_find */
			waiting_count(&host->mode[mode == ShareLock],
						  since != 0 ? GetCurrentTimestamp() - since : 0);
		}
	}
}

/*
 * Does this process wait at a gate?  Reads without the lock manager's locks: the memory of a lock
 * stays there when the lock is freed, and a wrong look costs a wrong number.
 */
static bool
is_at_gate(PGPROC *process, LOCKMODE *mode)
{
	LOCK *lock = *(LOCK *volatile *) &process->waitLock;

	*mode = *(volatile LOCKMODE *) &process->waitLockMode;
	return lock != NULL && lock->tag.locktag_type == LOCKTAG_USERLOCK &&
		   *(volatile ProcWaitStatus *) &process->waitStatus == PROC_WAIT_STATUS_WAITING;
}

/* Counts the session that asks the nodes for a name, or that has a queue for permits. */
static void
count_at_nodes(WaitingHost *host, uint64 hash, const char *key, size_t key_len)
{
	Lease *lease = lease_find(hash);
	Lease copy;

	if (lease == NULL || pg_atomic_read_u32(&lease->wish) != WISH_HOLD)
		return;
	pg_read_barrier(); /* wait_began_us is older than the wish: see lease_ask */
	if (lease_copy(lease, &copy) && copy.key_len == key_len &&
		memcmp(copy.key, key, key_len) == 0 && waits(&copy))
		waiting_count(&host->mode[copy.shared], redlock_clock_us() - copy.wait_began_us);
}

/* The owner of a held queue waits for a permit. */
static bool
waits(Lease *lease)
{
	return pg_atomic_read_u32(&lease->wish) == WISH_HOLD && !lease->once &&
		   (lease_state(lease) == LEASE_WAITING ||
			(lease->is_queue && lease_validity_us(lease) > 0));
}
