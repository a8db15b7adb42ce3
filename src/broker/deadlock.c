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
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/memutils.h"

#include "broker/deadlock.h"
#include "broker/local_wait.h"
#include "broker/subscription.h"
#include "broker/timers.h"
#include "driver/turns.h"
#include "protocol/probe_budget.h"
#include "shared/alarm.h"
#include "shared/host_list.h"
#include "shared/text.h"

/*
 * Probes per second that this host starts for its own waits.  A probe beyond the limit is sent
 * late.
 */
#define SENDS_PER_S 400

/*
 * A session at the gate waits for the holder, like the session ahead that asks the nodes.  So a
 * probe first follows the wait for the holder.  The queue matters only between two cycles that no
 * session of either cycle can break.  After PATIENT_PROBES probes, a probe also follows the queue
 * (by_queue).  After PATIENCE_US and deadlock_timeout of such probes, every session of a cycle has
 * had time to end its cycle.  Then the broker ends the wait behind in the queue.
 */
#define PATIENT_PROBES 8
#define PATIENCE_US (3 * PROBE_AGAIN_MAX_US)

/* A request that waits; one for each entry of the lease table. */
typedef struct Wait
{
	Timer timer;     /* of the next probe; 0: does not wait; must be first */
	dlist_node link; /* in `waiting`, while the timer is set */
	uint64 held_by;  /* the holder's host; 0: unknown */
	bool by_readers; /* hosts share the lock */
	ProbeMemory memory;
} Wait;

/* A process to visit, and the path that leads there. */
typedef struct Visit
{
	int pid;
	ScriptProbe probe;
} Visit;

/* The ways of one probe through the processes of this host. */
typedef struct Exploration
{
	int count;
	Visit visits[PROBE_VISITS_MAX];
	int told_count;
	Lease *told[PROBE_VISITS_MAX]; /* requests whose holders got the probe */
} Exploration;

static const Driver *driver;
static Wait *waits;
static dlist_head waiting = DLIST_STATIC_INIT(waiting);
static int probing; /* how many of `waiting` have sent a probe */
static pairingheap *timers;
StaticAssertDecl(PROBE_STEPS_MAX *(2 * SCRIPT_SERVER_SIZE + SCRIPT_WHAT_SIZE + 90) <= CYCLE_SIZE,
				 "the longest cycle can be told");

/* The time until which the budget of sends is spent; over a second ahead: nothing is left. */
static int64 sends_us;
static ProbeBudget looks;

static bool may_send(int64 now_us);
static void send_probe(Lease *lease, int64 now_us);
static void send_on(ScriptProbe *probe, Lease *lease, int64 now_us);
static void tell_holder(ScriptProbe *probe, Lease *lease, int64 now_us);
static int find_readers(const Lease *lease, uint32 number, int pids[PROBE_VISITS_MAX]);
static void choose(int pid, int pids[PROBE_VISITS_MAX / 2], int *count);
static int compare_pids(const void *a, const void *b);
static void explore(ScriptProbe *probe, const Lease *held, int visits, int64 now_us);
static void visit(Exploration *way, Visit *at, const ScriptProbe *probe, int64 now_us);
static void visit_blockers(Exploration *way, const Visit *at, const LocalWait *wait);
static void add_visit(Exploration *way, int pid, const ScriptProbe *probe);
static bool was_told(Lease *const *told, int count, const Lease *request);
static void probe_waiting_writers(ScriptProbe *probe, const Lease *lease, int64 now_us);
static bool add_step(ScriptProbe *probe, int pid, uint64 wait, bool remote, const char *what);
static bool find_wait(PGPROC *process, LocalWait *wait);
static Lease *wait_of(int pid);
static bool is_asked_for(Lease *lease);
static uint64 number_of(const Lease *lease);
static void come_home(ScriptProbe *probe, Lease *lease, int64 now_us);
static uint64 wait_behind(const ScriptProbe *probe, const Lease *lease);
static void end_wait_behind(const ScriptProbe *probe, uint64 wait, int64 now_us);
static char *cycle_text(const ScriptProbe *probe);

void
deadlock_init(const Driver *of_leases)
{
	driver = of_leases;
	waits = MemoryContextAllocExtended(TopMemoryContext, lease_table->entries * sizeof(Wait),
									   MCXT_ALLOC_HUGE | MCXT_ALLOC_ZERO);
	timers = timers_make();
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
		/* randomized: a full budget must not drop the same wait's probe each time */
		again_us = probe_again_us(lease->drive.core.waiting, probing);
		again_us += (int64) pg_prng_uint64_range(&pg_global_prng_state, 0, again_us / 2);
		timers_set(timers, timer, now_us + again_us * 4 / 5);
	}
	return timer != NULL ? timer->at_us : PG_INT64_MAX;
}

/*
 * Spends one of SENDS_PER_S.  An idle second leaves the budget of a second to spend at once.
 * False: nothing is left.
 */
static bool
may_send(int64 now_us)
{
	int64 until_us = Max(sends_us, now_us) + INT64CONST(1000000) / SENDS_PER_S;

	if (until_us > now_us + INT64CONST(1000000))
		return false;
	sends_us = until_us;
	return true;
}

/* Starts a probe of this request's wait. */
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

/* Adds a request's wait to the path, and sends the probe to the holder's host. */
static void
send_on(ScriptProbe *probe, Lease *lease, int64 now_us)
{
	char what[SCRIPT_WHAT_SIZE];

	local_wait_describe(lease, what);
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
 * Explores what this host's holders of the probe's lock wait for.  A detached lock has no session
 * that could wait.
 *
 * A reader waits for no other reader, but for a writer that waits for the readers.  So a reader's
 * probe is of interest here if a session of this host waits in exclusive mode for the readers.
 *
 * A probe beyond the budget is dropped; the sender sends another.  A probe that comes home costs
 * nothing, nor does a visit to a process that does not wait.
 */
void
deadlock_hear(ScriptProbe *probe, int64 now_us)
{
	Lease *lease = subscription_lease(probe->key, probe->key_len);
	bool in_the_way;
	int visits;

	if (lease == NULL)
		return;
	if (lease_state(lease) == LEASE_HELD)
		in_the_way = !(lease->shared && probe->shared) &&
					 pg_atomic_read_u32(&lease->wish) == WISH_HOLD && lease_owner_lives(lease);
	else
		in_the_way = probe->shared && !lease->shared && waits[lease_index(lease)].by_readers &&
					 wait_of(lease->owner_pid) == lease;
	visits = in_the_way ? probe_budget_visits(&looks, &probe->path, now_us) : 0;
	if (visits > 0)
		explore(probe, lease, visits, now_us);
}

/*
 * Finds sessions that share the lease and wait.  Returns their number, and their pids in pids.
 *
 * Takes at most half of PROBE_VISITS_MAX sessions, at random: the other half is for the sessions
 * behind these.  Sorts the pids, because two probes must find the same cycle.  Every four probes
 * another pid comes first, because the budget of other hosts may not reach the last pids.
 */
static int
find_readers(const Lease *lease, uint32 number, int pids[PROBE_VISITS_MAX])
{
	int chosen[PROBE_VISITS_MAX / 2];
	uint32 first = murmurhash32(number / 4);
	int count = 0;
	dlist_iter iter;

	dlist_foreach(iter, &waiting)
	{
		Lease *request = lease_at(dlist_container(Wait, link, iter.cur) - waits);

		if (lease_has_reader(lease, request->owner_procno) && is_asked_for(request))
			choose(request->owner_pid, chosen, &count);
	}
	for (int i = 0; i < MaxBackends; i++)
		if (lease_has_reader(lease, i) && local_wait_may_be(GetPGProcByNumber(i)))
			choose(GetPGProcByNumber(i)->pid, chosen, &count);
	count = Min(count, PROBE_VISITS_MAX / 2);
	qsort(chosen, count, sizeof(int), compare_pids);
	for (int i = 0; i < count; i++)
		pids[i] = chosen[(first % count + i) % count];
	return count;
}

/* Adds a pid to a random sample of PROBE_VISITS_MAX / 2; count is the number of pids offered so
 * far. */
static void
choose(int pid, int pids[PROBE_VISITS_MAX / 2], int *count)
{
	int at = *count;

	if (at >= PROBE_VISITS_MAX / 2)
		at = (int) pg_prng_uint64_range(&pg_global_prng_state, 0, at);
	if (at < PROBE_VISITS_MAX / 2)
		pids[at] = pid;
	(*count)++;
}

static int
compare_pids(const void *a, const void *b)
{
	return *(const int *) a - *(const int *) b;
}

/*
 * Follows the probe breadth first over the processes of this host, from the holders of `held`.  A
 * session waits for one lock at a time: at the nodes, in the lock manager or in a gate.  The probe
 * leaves this host at each wait for another host, and is judged where the first wait of its path
 * is found.
 */
static void
explore(ScriptProbe *probe, const Lease *held, int visits, int64 now_us)
{
	static MemoryContext context = NULL;
	MemoryContext old;
	Exploration *way;
	int pids[PROBE_VISITS_MAX] = {held->owner_pid};
	int count = 1;

	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "redlock probe", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(context);
	way = palloc(sizeof(Exploration));
	way->count = way->told_count = 0;
	if (held->shared)
		count = find_readers(held, probe->path.number, pids);
	for (int i = 0; i < count; i++)
		add_visit(way, pids[i], probe);
	for (int i = 0; i < Min(way->count, visits); i++)
		visit(way, &way->visits[i], probe, now_us);
	MemoryContextSwitchTo(old);
	MemoryContextReset(context);
}

/* Finds what a process waits for.  The probe goes on to the holders, or ends here. */
static void
visit(Exploration *way, Visit *at, const ScriptProbe *probe, int64 now_us)
{
	const ProbeStep *first = &at->probe.path.step[0];
	Lease *lease = wait_of(at->pid);
	PGPROC *process;
	LocalWait wait;

	if (lease != NULL && first->host == lease_table->host_id && first->wait == number_of(lease))
		come_home(&at->probe, lease, now_us);
	else if (lease != NULL)
	{
		probe_budget_pay(&looks, &probe->path, now_us);
		send_on(&at->probe, lease, now_us);
	}
	if (lease != NULL)
		return;
	process = BackendPidGetProc(at->pid);
	if (process == NULL || !local_wait_may_be(process))
		return;
	probe_budget_pay(&looks, &probe->path, now_us);
	if (!find_wait(process, &wait) || !add_step(&at->probe, at->pid, wait.number, false, wait.what))
		return;
	if (wait.shared != NULL)
	{
		probe_waiting_writers(&at->probe, wait.shared, now_us);
		return;
	}
	if (wait.request != NULL)
	{
		if (!was_told(way->told, way->told_count, wait.request))
		{
			way->told[way->told_count++] = wait.request;
			tell_holder(&at->probe, wait.request, now_us);
		}
		if (at->probe.path.number <= PATIENT_PROBES)
			return;
		at->probe.path.by_queue = true;
	}
	visit_blockers(way, at, &wait);
}

/* Adds the processes that this one waits for, each once. */
static void
visit_blockers(Exploration *way, const Visit *at, const LocalWait *wait)
{
	int blocking[PROBE_VISITS_MAX];
	int blockers = local_wait_blockers(at->pid, wait, blocking, PROBE_VISITS_MAX - 1);

	for (int b = 0; b < blockers && way->count < PROBE_VISITS_MAX; b++)
	{
		bool known = blocking[b] == 0; /* a prepared transaction does not wait */

		for (int v = 0; v < way->count && !known; v++)
			known = way->visits[v].pid == blocking[b];
		if (!known)
			add_visit(way, blocking[b], &at->probe);
	}
}

static void
add_visit(Exploration *way, int pid, const ScriptProbe *probe)
{
	way->visits[way->count].pid = pid;
	way->visits[way->count++].probe = *probe;
}

/*
 * Was the holder of this request told of the probe already?  Of many sessions behind one request
 * the first is enough.
 */
static bool
was_told(Lease *const *told, int count, const Lease *request)
{
	for (int i = 0; i < count; i++)
		if (told[i] == request)
			return true;
	return false;
}

/*
 * Sends the probe to the hosts that wait for this shared lease in exclusive mode.  Each of them
 * checks whether it still waits.
 */
static void
probe_waiting_writers(ScriptProbe *probe, const Lease *lease, int64 now_us)
{
	const Waiters *hosts = turns_told(driver, lease_index(lease));
	char text[SCRIPT_PROBE_MAX];
	size_t len;

	probe->shared = true;
	len = script_write_probe(text, lease->key, lease->key_len, probe);
	for (int i = 0; hosts != NULL && i < hosts->count; i++)
	{
		probe_budget_pay(&looks, &probe->path, now_us);
		subscription_say(hosts->waiter[i].host, text, len, now_us);
	}
}

/* Adds a wait of this host to the path.  False: the probe goes no further. */
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

/* Finds the wait of a process on this host.  A request behind which it waits must itself wait. */
static bool
find_wait(PGPROC *process, LocalWait *wait)
{
	if (!local_wait_find(process, wait))
		return false;
	if (wait->request != NULL && waits[lease_index(wait->request)].timer.at_us == 0)
		wait->request = NULL;
	return !wait->in_gate || wait->shared != NULL || wait->request != NULL;
}

/*
 * Returns the request with which this process waits for a lock of another host, or NULL.  A call
 * for several locks may still release some locks: such a request does not count (LeaseCompany).
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

/*
 * The number of a request's wait.  The generation changes when the entry is freed, so no other
 * request of this host has the number.
 */
static uint64
number_of(const Lease *lease)
{
	return (uint64) lease_index(lease) << 32 | lease->drive.generation;
}

/*
 * Judges a probe that came home, and ends this session's wait if its cycle was seen twice.  A
 * first sighting sends the second probe at once.
 */
static void
come_home(ScriptProbe *probe, Lease *lease, int64 now_us)
{
	Wait *wait = &waits[lease_index(lease)];
	int64 patience_us = DeadlockTimeout * INT64CONST(1000) + PATIENCE_US;
	uint64 behind;

	if (probe->path.by_queue && !probe->path.step[probe->path.count - 1].remote)
		patience_us *= 1 + probe_larger_queues(&probe->path);
	switch (probe_judge(&wait->memory, &probe->path, now_us, patience_us))
	{
		case PROBE_KNOWN:
			break;
		case PROBE_ONCE:
			timers_set(timers, &wait->timer, now_us);
			break;
		case PROBE_DEADLOCK:
			behind = probe->path.by_queue ? wait_behind(probe, lease) : 0;
			/* if there is no room for the text, the next probe comes */
			if (behind != 0)
				end_wait_behind(probe, behind, now_us);
			else
				(void) lease_tell_deadlock(lease, cycle_text(probe));
			break;
	}
}

/*
 * The last wait of a path that came home, if the process waits at the gate behind this request; or
 * 0.  The request is then only in the way: its holder is the holder for which that process waits.
 */
static uint64
wait_behind(const ScriptProbe *probe, const Lease *lease)
{
	const int last = probe->path.count - 1;
	PGPROC *process = last > 0 ? BackendPidGetProc(probe->text[last].pid) : NULL;
	LocalWait wait;

	if (process == NULL || !find_wait(process, &wait) || wait.request != lease ||
		wait.number != probe->path.step[last].wait)
		return 0;
	return wait.number;
}

/* Wakes the victim: a late victim would get the error after the end of the cycle. */
static void
end_wait_behind(const ScriptProbe *probe, uint64 wait, int64 now_us)
{
	PGPROC *process;

	if (!lease_tell_gate_deadlock(wait, cycle_text(probe), now_us))
		return;
	LWLockAcquire(ProcArrayLock, LW_SHARED); /* keeps the process from ending */
	process = BackendPidGetProcWithLock(probe->text[probe->path.count - 1].pid);
	if (process != NULL)
	{
		alarm_ring_gate(process->pid);
		SetLatch(&process->procLatch);
	}
	LWLockRelease(ProcArrayLock);
}

/*
 * The cycle in the words of PostgreSQL's own deadlock DETAIL; the caller's memory context owns the
 * text.
 */
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
