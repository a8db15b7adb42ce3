/*
 * local_wait.c
 *		What a process of this server waits for; see local_wait.h.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/fmgrprotos.h"

#include "broker/local_wait.h"
#include "shared/compat.h"
#include "shared/text.h"

static bool gate_wait(PGPROC *process, LocalWait *wait);
static void describe_lock(const LOCKTAG *tag, LocalWait *wait);
static bool is_gate(const LOCKTAG *tag);
static uint64 gate_of(const LOCKTAG *tag);

bool
local_wait_may_be(PGPROC *process)
{
	return *(volatile ProcWaitStatus *) &process->waitStatus == PROC_WAIT_STATUS_WAITING ||
		   (*(volatile uint32 *) &process->wait_event_info & 0xFF000000) == PG_WAIT_IPC ||
		   lease_parked(REDLOCK_PROCNO(process)).hash != 0;
}

/*
 * The leader of a parallel query waits as long as a worker does.  Of several such waits the oldest
 * counts, since a lasting wait is then found by the next probe, too.  The begin of a wait may be
 * 0: to solve a deadlock, some minor versions of PostgreSQL reorder the queue, and clear the begin
 * of the process that wakes the others.
 */
bool
local_wait_find(PGPROC *process, LocalWait *wait)
{
	int pid = process->pid;
	BlockedProcsData *data = GetBlockerStatusData(pid);
	uint64 first_us = PG_UINT64_MAX;

	wait->in_gate = false;
	wait->request = wait->shared = NULL;
	for (int i = 0; i < data->nlocks; i++)
	{
		const LockInstanceData *lock = &data->locks[i];
		bool blocked = lock->leaderPid == pid && lock->waitLockMode != NoLock;
		PGPROC *member = blocked ? BackendPidGetProc(lock->pid) : NULL;
		uint64 since_us = member != NULL ? pg_atomic_read_u64(&member->waitStart) : first_us;

		if (since_us >= first_us)
			continue;
		first_us = since_us;
		wait->number = lease_wait_number(REDLOCK_PROCNO(member), (int64) since_us);
		describe_lock(&lock->locktag, wait);
	}
	return first_us != PG_UINT64_MAX || gate_wait(process, wait);
}

/*
 * Describes a wait to share a lock: another session asks for the lock, or a writer of another host
 * waits.  Returns false if there is none.
 */
static bool
gate_wait(PGPROC *process, LocalWait *wait)
{
	LeaseParked parked = lease_parked(REDLOCK_PROCNO(process));
	Lease *lease = parked.hash != 0 ? lease_find(parked.hash) : NULL;

	if (lease == NULL || !lease->shared)
		return false;
	if (lease_state(lease) == LEASE_HELD)
		wait->shared = lease;
	else if (lease_state(lease) == LEASE_WAITING)
		wait->request = lease;
	else
		return false;
	wait->in_gate = true;
	wait->number = lease_wait_number(REDLOCK_PROCNO(process), parked.since_us);
	local_wait_describe(lease, wait->what);
	return true;
}

/*
 * Describes a lock of the lock manager.  A gate is shown as the lock of the owner that holds the
 * gate.
 */
static void
describe_lock(const LOCKTAG *tag, LocalWait *wait)
{
	Lease *lease = is_gate(tag) ? lease_at_gate(gate_of(tag)) : NULL;

	if (lease != NULL)
		local_wait_describe(lease, wait->what);
	else
	{
		StringInfoData text;

		initStringInfo(&text);
		DescribeLockTag(&text, tag);
		strlcpy(wait->what, text.data, sizeof(wait->what));
	}
	wait->request = lease != NULL && lease_state(lease) == LEASE_WAITING ? lease : NULL;
}

static bool
is_gate(const LOCKTAG *tag)
{
	return tag->locktag_type == LOCKTAG_USERLOCK && tag->locktag_field4 == 0;
}

static uint64
gate_of(const LOCKTAG *tag)
{
	return (uint64) tag->locktag_field2 << 32 | tag->locktag_field3;
}

void
local_wait_describe(const Lease *lease, char what[SCRIPT_WHAT_SIZE])
{
	const char *name = lease_name(lease);
	char shown[SCRIPT_WHAT_SIZE - sizeof("redlock \"\"...") + 1];

	text_to_utf8(shown, sizeof(shown), name, strlen(name));
	snprintf(what, SCRIPT_WHAT_SIZE, "redlock \"%s\"%s", shown,
			 strlen(shown) < strlen(name) ? "..." : "");
}

int
local_wait_blockers(int pid, const LocalWait *wait, int *pids, int most)
{
	ArrayType *array;
	int count;

	array = DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids, Int32GetDatum(pid)));
	count = Min(ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)), most);
	memcpy(pids, ARR_DATA_PTR(array), count * sizeof(int));
	if (count == 0 && wait->request != NULL)
		pids[count++] = wait->request->owner_pid; /* PostgreSQL does not see this wait */
	return count;
}
