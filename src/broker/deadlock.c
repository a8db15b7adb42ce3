/*
 * deadlock.c
 *		Deadlocks across hosts; see deadlock.h.
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "common/pg_prng.h"
#include "lib/ilist.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/array.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"

#include "broker/deadlock.h"
#include "broker/subscription.h"
#include "broker/timers.h"
#include "driver/turns.h"
#include "shared/compat.h"
#include "shared/host_list.h"
#include "shared/text.h"

/* Probes of this server's own waits in a second, their first ones too; the others are late. */
#define SENDS_PER_S 400

/*
 * For probes, of whatever host, in a second: how often one is passed on, or the lock manager looked
 * at, which locks all of it, twice.  Each wait that probes are of has an equal part of it, which it
 * may use up at once, whatever the others ask for; it falls to one of so many places.  A probe goes
 * the whole way, and its wait owes what that costs.  Hosts may be hostile: of what they owe
 * together there is a limit, too.  What is beyond all that is dropped, and comes again.  A probe
 * that comes home, or to a process that does not wait, costs no more than to read it, and is not
 * counted.
 */
#define LOOKS_PER_S 400
#define LOOKS_MOST_PER_S (2 * LOOKS_PER_S)
#define PLACES 256

/*
 * A session at the gate waits for the holder, like the session ahead of it that asks the nodes.  So
 * a probe follows the wait for the holder first.  The queue itself counts only between two cycles
 * that no session of their own can break.  After PATIENT_PROBES probes, a probe also follows the
 * queue (by_queue).  When such a probe has come home for PATIENCE_US and deadlock_timeout, each
 * session of a cycle has had the time to end the cycle, however seldom it looks.  Then the session
 * ahead in the queue is ended, though it only stands in the way.
 */
#define PATIENT_PROBES 8
#define PATIENCE_US (3 * PROBE_AGAIN_MAX_US)

/* Processes of this server that one probe visits. */
#define VISITS_MAX 64

/* What is known of a request that waits; a place for each entry of the lease table. */
typedef struct Wait
{
	Timer timer;     /* of the next probe: set while the request waits; comes first */
	dlist_node link; /* in waiting, as long */
	uint64 held_by;  /* the host that has the lock; 0: unknown */
	bool by_readers; /* hosts share it */
	ProbeMemory memory;
} Wait;

/* A wait in the lock manager. */
typedef struct LocalWait
{
	uint64 number;  /* when it began */
	Lease *request; /* it waits behind one that waits for another host, or NULL */
	Lease *shared;  /* it may not join those who share it, since others want it, or NULL */
	char what[SCRIPT_WHAT_SIZE];
} LocalWait;

/* A process that the probe has to look at, and by which path it came there. */
typedef struct Visit
{
	int pid;
	ScriptProbe probe;
} Visit;

static const Driver *driver;
static Wait *waits;
static dlist_head waiting = DLIST_STATIC_INIT(waiting);
static int probing; /* of these, how many have sent a probe */
static pairingheap *timers;
StaticAssertDecl(PROBE_STEPS_MAX *(2 * SCRIPT_SERVER_SIZE + SCRIPT_WHAT_SIZE + 90) <= CYCLE_SIZE,
				 "the longest cycle can be told");

/* Until when it is paid for what was sent, and for what was looked at. */
static int64 sends_us;
static int64 looks_us;
static int64 place_us[PLACES];
static uint64 place_seed;

static bool may_send(int64 now_us);
static bool may_explore(const ScriptProbe *probe, int64 now_us);
static void count_look(const ScriptProbe *probe, int64 now_us);
static int64 *place_of(const ScriptProbe *probe);
static int places_in_use(int64 now_us);
static void send_probe(Lease *lease, int64 now_us);
static void send_on(ScriptProbe *probe, Lease *lease, int64 now_us);
static void tell_holder(ScriptProbe *probe, Lease *lease, int64 now_us);
static int find_readers(const Lease *lease, uint32 number, int pids[VISITS_MAX]);
static void choose(int pid, int pids[VISITS_MAX / 2], int *count);
static int compare_pids(const void *a, const void *b);
static bool is_gate(const LOCKTAG *tag);
static uint64 gate_of(const LOCKTAG *tag);
static void explore(ScriptProbe *probe, const Lease *held, int64 now_us);
static bool was_told(Lease *const *told, int count, const Lease *request);
static void tell_who_wants(ScriptProbe *probe, const Lease *lease, int64 now_us);
static int find_blockers(int pid, const LocalWait *wait, int pids[VISITS_MAX]);
static bool add_step(ScriptProbe *probe, int pid, uint64 wait, bool remote, const char *what);
static Lease *wait_of(int pid);
static bool is_asked_for(Lease *lease);
static uint64 number_of(const Lease *lease);
static uint64 local_number(PGPROC *process, int64 since_us);
static bool may_wait(PGPROC *process);
static bool local_wait(PGPROC *process, LocalWait *wait);
static bool gate_wait(PGPROC *process, LocalWait *wait);
static void describe_redlock(const Lease *lease, char what[SCRIPT_WHAT_SIZE]);
static void describe_lock(const LOCKTAG *tag, LocalWait *wait);
static void come_home(ScriptProbe *probe, Lease *lease, int64 now_us);
static char *cycle_text(const ScriptProbe *probe);

void
deadlock_init(const Driver *of_leases)
{
	driver = of_leases;
	waits = MemoryContextAllocExtended(TopMemoryContext, lease_table->entries * sizeof(Wait),
									   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	timers = timers_make();
	place_seed = pg_prng_uint64(&pg_global_prng_state);
}

void
deadlock_wait(Lease *lease, int64 now_us)
{
	Wait *wait = &waits[lease_index(lease)];

	if (wait->timer.at_us != 0)
		return;
	timers_set(timers, &wait->timer, now_us + DeadlockTimeout * INT64CONST(1000));
	dlist_push_tail(&waiting, &wait->link);
}

void
deadlock_end(Lease *lease)
{
	Wait *wait = &waits[lease_index(lease)];

	wait->held_by = 0;
	wait->by_readers = false;
	if (wait->timer.at_us == 0)
		return;
	timers_set(timers, &wait->timer, 0);
	dlist_delete(&wait->link);
	if (wait->memory.sent > 0)
		probing--;
	memset(&wait->memory, 0, sizeof(wait->memory));
}

void
deadlock_held_by(Lease *lease, uint64 host, bool by_readers)
{
	waits[lease_index(lease)].held_by = host;
	waits[lease_index(lease)].by_readers = by_readers;
}

int64
deadlock_on_time(int64 now_us)
{
	Timer *timer;

	while ((timer = timers_first(timers)) != NULL && timer->at_us <= now_us)
	{
		Lease *lease = lease_at((Wait *) timer - waits);
		int64 again_us;

		if (pg_atomic_read_u32(&lease->company) == LEASE_ALONE)
		{
			if (!may_send(now_us))
				return now_us + INT64CONST(1000000) / SENDS_PER_S;
			send_probe(lease, now_us);
		}
		/* at random: of probes that are dropped, it is not always the same ones */
		again_us = probe_again_us(lease->drive.core.waiting, probing);
		again_us += (int64) pg_prng_uint64_range(&pg_global_prng_state, 0, again_us / 2);
		timers_set(timers, timer, now_us + again_us * 4 / 5);
	}
	return timer != NULL ? timer->at_us : PG_INT64_MAX;
}

/* So many in a second, and as many at once after a second of nothing. */
static bool
may_send(int64 now_us)
{
	int64 until_us = Max(sends_us, now_us) + INT64CONST(1000000) / SENDS_PER_S;

	if (until_us > now_us + INT64CONST(1000000))
		return false;
	sends_us = until_us;
	return true;
}

/* Does its wait owe nothing for longer than a second? */
static bool
may_explore(const ScriptProbe *probe, int64 now_us)
{
	return Max(*place_of(probe), looks_us) <= now_us + INT64CONST(1000000);
}

static void
count_look(const ScriptProbe *probe, int64 now_us)
{
	int64 *place = place_of(probe);

	*place = Max(*place, now_us);
	*place += places_in_use(now_us) * INT64CONST(1000000) / LOOKS_PER_S;
	looks_us = Max(looks_us, now_us) + INT64CONST(1000000) / LOOKS_MOST_PER_S;
}

/* By the wait that it is of; strangers may say what they like, but don't know where that is. */
static int64 *
place_of(const ScriptProbe *probe)
{
	const ProbeStep *first = &probe->path.step[0];

	return &place_us[hash_combine64(hash_combine64(place_seed, first->host), first->wait) % PLACES];
}

/* Those that have owed something in the last second. */
static int
places_in_use(int64 now_us)
{
	int count = 0;

	for (int i = 0; i < PLACES; i++)
		count += place_us[i] > now_us - INT64CONST(1000000);
	return count;
}

/* The first step of a path. */
static void
send_probe(Lease *lease, int64 now_us)
{
	ProbeMemory *memory = &waits[lease_index(lease)].memory;
	ScriptProbe probe;

	if (memory->sent == 0)
		probing++;
	probe.path.count = 0;
	probe.path.by_queue = false;
	probe.path.number = ++memory->sent;
	send_on(&probe, lease, now_us);
}

/* From a request to the host that has the lock. */
static void
send_on(ScriptProbe *probe, Lease *lease, int64 now_us)
{
	char what[SCRIPT_WHAT_SIZE];

	describe_redlock(lease, what);
	if (add_step(probe, lease->owner_pid, number_of(lease), true, what))
		tell_holder(probe, lease, now_us);
}

static void
tell_holder(ScriptProbe *probe, Lease *lease, int64 now_us)
{
	const Wait *wait = &waits[lease_index(lease)];
	char text[SCRIPT_PROBE_MAX];
	size_t len;

	probe->shared = lease->shared;
	len = script_write_probe(text, lease->key, lease->key_len, probe);
	if (wait->by_readers && !lease->shared)
		subscription_say_to_readers(lease, text, len, now_us);
	else if (wait->held_by != 0 && wait->held_by != lease_table->host_id)
		subscription_say(wait->held_by, text, len, now_us);
}

/*
 * It asks for what the holders of this server's lease wait for.  One that is detached has none.
 * Who wants to share it does not wait for those who do, but for who wants it alone and waits for
 * them.
 */
void
deadlock_hear(ScriptProbe *probe, int64 now_us)
{
	Lease *lease = subscription_lease(probe->key, probe->key_len);
	bool in_the_way;

	if (lease == NULL)
		return;
	if (lease_state(lease) == LEASE_HELD)
		in_the_way = !(lease->shared && probe->shared) &&
					 pg_atomic_read_u32(&lease->wish) == WISH_HOLD && lease_owner_lives(lease);
	else
		in_the_way = probe->shared && !lease->shared && waits[lease_index(lease)].by_readers &&
					 wait_of(lease->owner_pid) == lease;
	if (in_the_way && may_explore(probe, now_us))
		explore(probe, lease, now_us);
}

/*
 * Those that share it, and wait; of many so many at random that half of those that a probe visits
 * are left.  Returns how many.  They are in the order of their numbers, as a cycle is to be seen
 * twice, and begin elsewhere every few probes, as what the last ones send may be beyond what
 * other hosts do for a wait.
 */
static int
find_readers(const Lease *lease, uint32 number, int pids[VISITS_MAX])
{
	int chosen[VISITS_MAX / 2];
	uint32 first = murmurhash32(number / 4);
	int count = 0;
	dlist_iter iter;

	dlist_foreach(iter, &waiting)
	{
		Lease *request = lease_at(dlist_container(Wait, link, iter.cur) - waits);

		if (lease_is_shared_by(lease, request->owner_procno) && is_asked_for(request))
			choose(request->owner_pid, chosen, &count);
	}
	for (int i = 0; i < MaxBackends; i++)
		if (lease_is_shared_by(lease, i) && may_wait(GetPGProcByNumber(i)))
			choose(GetPGProcByNumber(i)->pid, chosen, &count);
	count = Min(count, VISITS_MAX / 2);
	qsort(chosen, count, sizeof(int), compare_pids);
	for (int i = 0; i < count; i++)
		pids[i] = chosen[(first % count + i) % count];
	return count;
}

/* One after so many; each has the same chance to be there at the end. */
static void
choose(int pid, int pids[VISITS_MAX / 2], int *count)
{
	int at = *count;

	if (at >= VISITS_MAX / 2)
		at = (int) pg_prng_uint64_range(&pg_global_prng_state, 0, at);
	if (at < VISITS_MAX / 2)
		pids[at] = pid;
	(*count)++;
}

static int
compare_pids(const void *a, const void *b)
{
	return *(const int *) a - *(const int *) b;
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

/*
 * Breadth first, over the processes of this server.  A session waits for one thing at a
 * time: for a lock of another host, for the lock manager, in a gate, or for none of them.
 */
static void
explore(ScriptProbe *probe, const Lease *held, int64 now_us)
{
	static MemoryContext context = NULL;
	MemoryContext old;
	Visit *visits;
	Lease *told[VISITS_MAX];
	int told_count = 0;
	int pids[VISITS_MAX] = {held->owner_pid};
	int count = 1;

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "redlock probe", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	visits = palloc(VISITS_MAX * sizeof(Visit));
	if (held->shared)
		count = find_readers(held, probe->path.number, pids);
	for (int i = 0; i < count; i++)
	{
		visits[i].pid = pids[i];
		visits[i].probe = *probe;
	}
	for (int i = 0; i < count; i++)
	{
		Visit *visit = &visits[i];
		Lease *lease = wait_of(visit->pid);
		PGPROC *process;
		LocalWait wait;
		int blocking[VISITS_MAX];
		int blockers;

		if (lease != NULL)
		{
			const ProbeStep *first = &visit->probe.path.step[0];

			if (first->host == lease_table->host_id && first->wait == number_of(lease))
				come_home(&visit->probe, lease, now_us);
			else
			{
				count_look(probe, now_us);
				send_on(&visit->probe, lease, now_us);
			}
			continue;
		}
		process = BackendPidGetProc(visit->pid);
		if (process == NULL || !may_wait(process))
			continue;
		count_look(probe, now_us);
		if (!local_wait(process, &wait) ||
			!add_step(&visit->probe, visit->pid, wait.number, false, wait.what))
			continue;
		if (wait.shared != NULL)
		{
			tell_who_wants(&visit->probe, wait.shared, now_us);
			continue;
		}
		if (wait.request != NULL)
		{
			if (!was_told(told, told_count, wait.request))
			{
				told[told_count++] = wait.request;
				tell_holder(&visit->probe, wait.request, now_us);
			}
			if (visit->probe.path.number <= PATIENT_PROBES)
				continue;
			visit->probe.path.by_queue = true;
		}
		blockers = find_blockers(visit->pid, &wait, blocking);
		for (int b = 0; b < blockers && count < VISITS_MAX; b++)
		{
			bool known = blocking[b] == 0; /* a prepared transaction waits for nobody */

			for (int v = 0; v < count && !known; v++)
				known = visits[v].pid == blocking[b];
			if (known)
				continue;
			visits[count].pid = blocking[b];
			visits[count++].probe = visit->probe;
		}
	}
	MemoryContextSwitchTo(old);
	MemoryContextReset(context);
}

/* Of many that wait behind one request the first is enough. */
static bool
was_told(Lease *const *told, int count, const Lease *request)
{
	for (int i = 0; i < count; i++)
		if (told[i] == request)
			return true;
	return false;
}

/* They know whether they do so yet. */
static void
tell_who_wants(ScriptProbe *probe, const Lease *lease, int64 now_us)
{
	const Waiters *hosts = turns_told(driver, lease_index(lease));
	char text[SCRIPT_PROBE_MAX];
	size_t len;

	probe->shared = true;
	len = script_write_probe(text, lease->key, lease->key_len, probe);
	for (int i = 0; hosts != NULL && i < hosts->count; i++)
	{
		count_look(probe, now_us);
		subscription_say(hosts->waiter[i].host, text, len, now_us);
	}
}

static int
find_blockers(int pid, const LocalWait *wait, int pids[VISITS_MAX])
{
	ArrayType *array;
	int count;

	array = DatumGetArrayTypeP(DirectFunctionCall1(pg_blocking_pids, Int32GetDatum(pid)));
	count = Min(ArrayGetNItems(ARR_NDIM(array), ARR_DIMS(array)), VISITS_MAX - 1);
	memcpy(pids, ARR_DATA_PTR(array), count * sizeof(int));
	if (count == 0 && wait->request != NULL)
		pids[count++] = wait->request->owner_pid; /* it waits in the gate */
	return count;
}

/* False: the probe goes no further. */
static bool
add_step(ScriptProbe *probe, int pid, uint64 wait, bool remote, const char *what)
{
	ProbeStep step = {lease_table->host_id, wait, remote};
	ScriptStep *text = &probe->text[probe->path.count];

	if (probe_visit(&probe->path, &step) != PROBE_GO_ON)
		return false;
	text->pid = pid;
	strlcpy(text->server, host_list_own_name(), sizeof(text->server));
	text_to_utf8(text->what, sizeof(text->what), what, strlen(what));
	return true;
}

/*
 * The request with which this process waits for the nodes, or NULL.  Of several it may give
 * some back, and does not wait before it has.
 */
static Lease *
wait_of(int pid)
{
	dlist_iter iter;

	dlist_foreach(iter, &waiting)
	{
		Lease *lease = lease_at(dlist_container(Wait, link, iter.cur) - waits);

		if (lease->owner_pid == pid && is_asked_for(lease))
			return lease;
	}
	return NULL;
}

static bool
is_asked_for(Lease *lease)
{
	return pg_atomic_read_u32(&lease->company) == LEASE_ALONE &&
		   pg_atomic_read_u32(&lease->wish) == WISH_HOLD && lease_state(lease) == LEASE_WAITING;
}

/* Of a request: no other has it, as the entry is another lease's when it is freed. */
static uint64
number_of(const Lease *lease)
{
	return (uint64) lease_index(lease) << 32 | lease->drive.generation;
}

/*
 * Of a wait that is no request of its own, and began then.  A number of one of these has another
 * form, and that of a process has 18 bits.
 */
static uint64
local_number(PGPROC *process, int64 since_us)
{
	return UINT64CONST(1) << 62 | ((uint64) since_us << 18 & ((UINT64CONST(1) << 62) - 1)) |
		   (uint64) REDLOCK_PROCNO(process);
}

/*
 * False: it waits neither in the lock manager nor in a gate.  No lock is taken for that: a wait
 * that begins just now is found by the next probe.  The leader of a parallel query waits for its
 * workers in other ways, and they may wait for locks.
 */
static bool
may_wait(PGPROC *process)
{
	int64 since_us;

	return *(volatile ProcWaitStatus *) &process->waitStatus == PROC_WAIT_STATUS_WAITING ||
		   (*(volatile uint32 *) &process->wait_event_info & 0xFF000000) == PG_WAIT_IPC ||
		   lease_parked(REDLOCK_PROCNO(process), &since_us) != 0;
}

/*
 * False: this process waits neither in the lock manager nor in a gate.  The leader of a parallel
 * query waits as long as one of its workers does; of several such waits the one that began first
 * counts, as it is there at the next probe, too, if it lasts.  A wait may have no time: some minor
 * versions of PostgreSQL clear the one of a process that wakes others while it waits, as it has
 * moved them in the queue instead of a deadlock.
 */
static bool
local_wait(PGPROC *process, LocalWait *wait)
{
	int pid = process->pid;
	BlockedProcsData *data = GetBlockerStatusData(pid);
	uint64 first_us = PG_UINT64_MAX;

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
		wait->number = local_number(member, (int64) since_us);
		describe_lock(&lock->locktag, wait);
	}
	return first_us != PG_UINT64_MAX || gate_wait(process, wait);
}

/* It wants to share a lock that another session asks for, or that others want alone. */
static bool
gate_wait(PGPROC *process, LocalWait *wait)
{
	int64 since_us;
	uint64 hash = lease_parked(REDLOCK_PROCNO(process), &since_us);
	Lease *lease = hash != 0 ? lease_find(hash) : NULL;

	if (lease == NULL || !lease->shared)
		return false;
	if (lease_state(lease) == LEASE_HELD)
		wait->shared = lease;
	else if (waits[lease_index(lease)].timer.at_us != 0 && lease_state(lease) == LEASE_WAITING)
		wait->request = lease;
	else
		return false;
	wait->number = local_number(process, since_us);
	describe_redlock(lease, wait->what);
	return true;
}

/* A long name is cut, with ... behind the quote. */
static void
describe_redlock(const Lease *lease, char what[SCRIPT_WHAT_SIZE])
{
	const char *name = lease_name(lease);
	char shown[SCRIPT_WHAT_SIZE - sizeof("redlock \"\"...") + 1];

	text_to_utf8(shown, sizeof(shown), name, strlen(name));
	snprintf(what, SCRIPT_WHAT_SIZE, "redlock \"%s\"%s", shown,
			 strlen(shown) < strlen(name) ? "..." : "");
}

/* A gate belongs to the lease whose owner holds it. */
static void
describe_lock(const LOCKTAG *tag, LocalWait *wait)
{
	Lease *lease = is_gate(tag) ? lease_at_gate(gate_of(tag)) : NULL;

	if (lease != NULL)
		describe_redlock(lease, wait->what);
	else
	{
		StringInfoData text;

		initStringInfo(&text);
		DescribeLockTag(&text, tag);
		strlcpy(wait->what, text.data, sizeof(wait->what));
	}
	wait->request = NULL;
	if (lease != NULL && waits[lease_index(lease)].timer.at_us != 0 &&
		lease_state(lease) == LEASE_WAITING)
		wait->request = lease;
}

/* The session is told when its cycle was seen twice. */
static void
come_home(ScriptProbe *probe, Lease *lease, int64 now_us)
{
	Wait *wait = &waits[lease_index(lease)];

	switch (probe_judge(&wait->memory, &probe->path, now_us,
						DeadlockTimeout * INT64CONST(1000) + PATIENCE_US))
	{
		case PROBE_KNOWN:
			break;
		case PROBE_ONCE:
			timers_set(timers, &wait->timer, now_us);
			break;
		case PROBE_DEADLOCK:
			(void) lease_tell_deadlock(lease, cycle_text(probe)); /* else at the next probe */
			break;
	}
}

/* As PostgreSQL tells its own deadlocks. */
static char *
cycle_text(const ScriptProbe *probe)
{
	StringInfoData text;

	initStringInfo(&text);
	for (int i = 0; i < probe->path.count; i++)
	{
		const ScriptStep *step = &probe->text[i];
		const ScriptStep *next = &probe->text[(i + 1) % probe->path.count];

		appendStringInfo(&text,
						 "%sProcess %d of server %s waits for %s; blocked by process %d of "
						 "server %s.",
						 i > 0 ? "\n" : "", step->pid, step->server, step->what, next->pid,
						 next->server);
	}
	return text.data;
}
