/*
 * request.c
 *		Acquiring leases, and waiting for leases; see request.h.
 *
 * First the session enters the gate, where the sessions of this server queue.  Then it opens a
 * lease in the lease table: by a hand-over, or by asking the nodes.  Then it waits for the
 * broker's answer.  On each way out without a grant the request is cancelled: an error, a time
 * limit, the end of the session.  protocol/several.c decides the order in which several locks are
 * asked for, kept and released.  request_lease.c opens one lease.  request_errors.c raises the
 * errors.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"

#include "protocol/permits.h"
#include "session/request_internal.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/new_names.h"
#include "shared/wait_events.h"

/* How often a waiter looks whether a broker runs. */
#define BROKER_CHECK_MS 1000

/* How often a try in shared mode looks for the nodes' answer to another reader. */
#define ANSWER_CHECK_MS 5

/* First pause of a try that found no quorum; doubles each time. */
#define RECONNECT_US INT64CONST(10000)

/* How often a waiter looks whether its client is connected. */
#define CLIENT_CHECK_MS 1000

RequestNow request_now;

/* The request stays in the gate of the next name while another session uses that name. */
static bool parked = false;
static int taken_count;      /* number of leases that the caller has taken */
static bool asks_nodes;      /* some leases must come from the nodes */
static int64 waits_since_us; /* start of the wait, for other hosts; 0: not yet */
static int64 broker_seen_us; /* last sight of a broker, or start of the request or its last ask */
static int reserved_gates = 0;
static bool was_taken;         /* a lock's owner has another gate, or has lost the gate */
static int64 unasked_since_us; /* start of a wait for another session's unasked request; 0: none */
static int64 silent_since_us;  /* ... for a request without the nodes' answer */
static uint64 silent_request;  /* ... with this number */
static uint64 waiting_at_gate = 0; /* hash of the name at whose gate this session waits, or 0 */
static const LockRequest *waiting; /* the request that waits there */
static int free_permit;            /* see request_free_permit */
static bool watching = false;      /* the client is being watched */

static bool acquire_all(const LockRequest *request, int64 deadline_us);
static bool reconnect(const LockRequest *request, int64 deadline_us);
static void let_others_release(const LockRequest *request, int from, int times, int64 deadline_us);
static void release_and_wait(const LockRequest *request, int from, int64 until_us, WaitsFor what);
static several_state look_at(const LockRequest *request, int index);
static bool ask(const LockRequest *request, int from, int64 deadline_us);
static bool may_try_again(const LockRequest *request, LeaseOpened how);
static bool releases_nothing(const LockRequest *request);
static bool may_wait_for_reader(const LockRequest *request, int index, int64 deadline_us);
static bool may_wait_for_broker(const LockRequest *request, int index, int64 now_us,
								int64 deadline_us);
static void ask_nodes(const LockRequest *request, int from, const bool *opened,
					  LeaseCompany company);
static void note_new_names(const LockRequest *request, int from, const bool *opened);
static void reserve_gates(int count);
static void return_gates(void);
static void end_wait_at_gate(void);
static bool needs_broker(const LockRequest *request);
static void check_broker(const LockRequest *request);
static void give_up_on(const LockRequest *request, int index);
static void take_hand_overs(const LockRequest *request);
static void release_hand_overs(void);
static void release_from(int from);
static void leave_gate(const Asked *at);
static bool enter_gate(const LockRequest *request, int index, int64 until_us);
static int64 at_gate_until_us(const LockRequest *request, int index, int64 deadline_us);
static void prepare_to_wait(void);
static void unwatch_client(void);
static bool wait_for_answer(const LockRequest *request, int index, int64 deadline_us);
static WaitsFor awaits(const LockRequest *request, int index);

bool
request_acquire(const LockRequest *request)
{
	Assert(request_now.asked_count == 0 && !parked);
	request_now.call_began_us = request->began_us > 0 ? request->began_us : redlock_clock_us();
	request_now.gate_use.shared = request->terms.shared;
	/* for SCOPE_DETACHED too: the session leaves the gate before its transaction ends */
	request_now.gate_use.session_level =
		request->terms.scope == SCOPE_SESSION || request->terms.scope == SCOPE_CALL;
	taken_count = 0;
	free_permit = PERMITS_TAKEN_HERE;
	request_now.waited_for = -1;
	asks_nodes = was_taken = false;
	waits_since_us = unasked_since_us = silent_since_us = 0;
	broker_seen_us = redlock_clock_us();
	if (request->count > 1)
		reserve_gates(request->count);
	if (acquire_all(request, request_deadline_us(request)))
		return true;
	request_end();
	return false;
}

void
request_end(void)
{
	end_wait_at_gate();
	release_from(0);
	return_gates();
	lease_park(0, false);
	unwatch_client();
}

Lease *
request_take(uint64 *gate)
{
	Asked *next = &request_now.asked[taken_count++];
	Lease *lease = next->lease;

	*gate = next->gate;
	next->at_gate = false;
	next->lease = NULL;
	return lease;
}

void
request_cancel(void)
{
	for (int i = 0; i < request_now.asked_count; i++)
		if (request_now.asked[i].lease != NULL)
			lease_release(request_now.asked[i].lease, NULL);
	release_hand_overs();
	request_now.asked_count = 0;
	parked = false;
	lease_park(0, false);
	return_gates();
	end_wait_at_gate();
}

/* Ends a wait at a gate: a lease in hand-over must not wait for this session. */
static void
end_wait_at_gate(void)
{
	if (waiting_at_gate != 0)
		lease_release_hand_over(waiting_at_gate);
	waiting_at_gate = 0;
}

static void
reserve_gates(int count)
{
	if (!lease_reserve_gates(count))
		ereport(
			ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many redlocks are requested on this server in calls for several locks"),
			 errdetail("Each lock of such a call takes a place in the server's lock table. Such "
					   "calls may fill a quarter of the table."),
			 errhint("Try again later, or raise max_locks_per_transaction, now %d, and "
					 "restart the server.",
					 max_locks_per_xact)));
	reserved_gates = count;
}

static void
return_gates(void)
{
	if (reserved_gates > 0)
		lease_return_gates(reserved_gates);
	reserved_gates = 0;
}

/* Returns false if another session holds one of the locks, and the caller has no more time. */
static bool
acquire_all(const LockRequest *request, int64 deadline_us)
{
	int again = 0;

	for (;;)
	{
		several_state state[SEVERAL_MAX];
		several_step next;
		int first = request_now.asked_count; /* the first name without a grant */
		int from;

		if (asks_nodes)
			request_refuse_in_conflict(request);
		if (reconnect(request, deadline_us))
			continue;
		for (int i = request_now.asked_count - 1; i >= 0; i--)
		{
			state[i] = look_at(request, i);
			if (state[i] != SEVERAL_GRANTED)
				first = i;
		}
		if (request->terms.once && first < request_now.asked_count &&
			state[first] == SEVERAL_REFUSED)
		{
			if (!several_try_again(first, again++))
			{
				request_fail_held_at(request, first);
				return false;
			}
			let_others_release(request, first, again, deadline_us);
			continue;
		}
		next = several_next(state, request_now.asked_count, request->count, &from);
		switch (next)
		{
			case SEVERAL_DONE:
				return true;
			case SEVERAL_ASK:
				request_log_granted(request, from);
				if (!ask(request, from, deadline_us))
					return false;
				if (request->count == 1 && request_now.asked_count == 1 && !asks_nodes)
					return true; /* a valid hand-over, and no wait since */
				break;
			case SEVERAL_RELEASE:
				release_from(from);
				break;
			case SEVERAL_WAIT_FOR_LAST:
			case SEVERAL_WAIT:
				if (next == SEVERAL_WAIT_FOR_LAST)
					pg_atomic_write_u32(&request_now.asked[first].lease->company, LEASE_ALONE);
				if (!wait_for_answer(request, first, deadline_us))
					return false;
				break;
		}
	}
}

/*
 * A try without `wait` fails at once if no quorum of nodes is connected.  The broker may connect
 * again in a moment, so such a try pauses, and asks again until redlock.node_timeout is over.
 * Returns true if it has paused, without a lease or gate.
 */
static bool
reconnect(const LockRequest *request, int64 deadline_us)
{
	bool unreachable = false;
	int64 now_us;
	int64 until_us;

	if (!request->terms.once || request->terms.patient)
		return false;
	for (int i = 0; i < request_now.asked_count; i++)
		unreachable = unreachable || lease_state(request_now.asked[i].lease) == LEASE_UNREACHABLE;
	if (!unreachable)
		return false;
	now_us = redlock_clock_us();
	until_us = now_us + Max(now_us - request_now.call_began_us, RECONNECT_US);
	if (until_us >= deadline_us ||
		until_us >= request_now.call_began_us + redlock_node_timeout_ms * INT64CONST(1000))
		return false;
	release_and_wait(request, 0, until_us, WAITS_FOR_NODES);
	return true;
}

/*
 * For a try of several locks that has been granted the locks before `from`.  Hosts that were
 * refused these locks need about as long to release their later locks as this host needed to be
 * refused.
 */
static void
let_others_release(const LockRequest *request, int from, int times, int64 deadline_us)
{
	int64 now_us = redlock_clock_us();
	int64 until_us = now_us + times * (now_us - request_now.asked_us);

	release_and_wait(request, from, Min(until_us, deadline_us), WAITS_FOR_OTHER_HOST);
}

/* Releases the leases, and leaves the gates, from this name on; then waits. */
static void
release_and_wait(const LockRequest *request, int from, int64 until_us, WaitsFor what)
{
	release_from(from);
	while (redlock_clock_us() < until_us)
		request_wait_at_most(request, from, until_us, BROKER_CHECK_MS, what);
}

static several_state
look_at(const LockRequest *request, int index)
{
	Lease *lease = request_now.asked[index].lease;
	LeaseState state = lease_state(lease);

	if (state == LEASE_HELD && lease_validity_us(lease) == 0)
		state = LEASE_LOST; /* even if the broker has not noticed */
	if (state == LEASE_WAITING || state == LEASE_REFUSED)
		request_refuse_granted_permits(request, index);
	switch (state)
	{
		case LEASE_WAITING:
			break;
		case LEASE_HELD:
			return SEVERAL_GRANTED;
		case LEASE_REFUSED:
			free_permit = (int) pg_atomic_read_u32(&lease->free_permit);
			return SEVERAL_REFUSED;
		case LEASE_UNREACHABLE:
			free_permit = PERMITS_NONE_FREE;
			if (request->terms.once && request->terms.patient)
				return SEVERAL_REFUSED;
			request_fail_unreachable(request, index,
									 lease_missing_nodes(request_now.asked[index].lease));
			break;
		case LEASE_DEADLOCKED:
			request_fail_deadlock(request, index, lease_cycle_text(request_now.asked[index].lease));
			break;
		case LEASE_LOST:
			request_fail_lost(request, index);
			break;
	}
	return pg_atomic_read_u32(&lease->company) == LEASE_AMONG_REFUSED ? SEVERAL_REFUSED
																	  : SEVERAL_ASKED;
}

/*
 * Enters all gates, then asks for all leases.  If the owner of a lock has lost its gate (to
 * pg_advisory_unlock_all), asks only for the locks before; the session asks for the rest when the
 * owner can enter its gate again.  If a lock is detached, or is shared but not ready to join, the
 * session stays in the gate, and keeps its place there: no other session has to enter first.
 * Returns false if the caller has no more time.
 */
static bool
ask(const LockRequest *request, int from, int64 deadline_us)
{
	LeaseCompany company = request->count - from > 1 ? LEASE_AMONG : LEASE_ALONE;
	bool opened[SEVERAL_MAX];
	bool any_opened = false;
	uint64 deadlock;

	if (parked && lease_gate_changed(request_now.asked[request_now.asked_count].hash))
		release_from(request_now.asked_count);
	if (parked)
		request_now.asked_count++; /* the session is in the gate already */
	parked = false;
	for (int i = request_now.asked_count; i < request->count; i++)
		if (!enter_gate(request, i, at_gate_until_us(request, i, deadline_us)))
			return false;
	for (int i = 0; i < request_now.asked_count; i++)
		if (request_now.asked[i].lease != NULL)
			(void) look_at(request, i); /* the lease may have been lost at a gate */
	for (int i = from; i < request->count; i++)
	{
		LeaseOpened how = request_now.asked[i].lease != NULL
							  ? LEASE_HANDED_OVER
							  : request_open_lease(request, i, deadline_us);

		opened[i] = how == LEASE_OPENED;
		any_opened = any_opened || opened[i];
		if (how < LEASE_READER_ASKS)
			continue;
		if (how == LEASE_READER_ASKS ? !may_wait_for_reader(request, i, deadline_us)
			: request->terms.once    ? !may_try_again(request, how)
									 : redlock_clock_us() >= deadline_us)
		{
			give_up_on(request, i);
			return false;
		}
		request_now.asked[i].waited_for_grant = how == LEASE_READER_ASKS;
		was_taken = was_taken || how == LEASE_TAKEN;
		release_from(how == LEASE_TAKEN ? i : i + 1);
		parked = how != LEASE_TAKEN;
		request_now.asked_count = i;
		break;
	}
	if (any_opened)
		ask_nodes(request, from, opened, company);
	lease_park(parked && releases_nothing(request) ? request_now.asked[request_now.asked_count].hash
												   : 0,
			   request->terms.shared);
	if (request_now.asked_count == request->count)
		return true;
	if (parked && (deadlock = lease_parked_deadlock()) != 0)
		request_fail_deadlock(request, request_now.asked_count, lease_take_gate_cycle(deadlock));
	check_broker(request);
	if (request->terms.once && !parked)
		return true; /* the lease is taken: may_try_again */
	if (!request->terms.once)
		prepare_to_wait();
	request_wait_at_most(request, request_now.asked_count, deadline_us,
						 !parked               ? 10 + pg_prng_uint32(&pg_global_prng_state) % 40
						 : request->terms.once ? ANSWER_CHECK_MS
											   : BROKER_CHECK_MS,
						 WAITS_IN_QUEUE);
	return true;
}

/*
 * May a try ask once more?  A lease of readers keeps its gate when a loss of another name moves the
 * present gate.  A reader that finds the lease taken enters the lease's own gate.
 */
static bool
may_try_again(const LockRequest *request, LeaseOpened how)
{
	return how == LEASE_TAKEN && request->terms.shared && !was_taken;
}

/*
 * True if the request will release no lock during the wait: all its leases are granted, and it is
 * not a try.
 */
static bool
releases_nothing(const LockRequest *request)
{
	for (int i = 0; i < request_now.asked_count; i++)
		if (lease_state(request_now.asked[i].lease) != LEASE_HELD)
			return false;
	return !request->terms.once;
}

/*
 * May this session wait for the answer to another reader's request?  The other request may have
 * more patience with silent nodes.
 */
static bool
may_wait_for_reader(const LockRequest *request, int index, int64 deadline_us)
{
	bool once = request->terms.once;
	int64 now_us = redlock_clock_us();
	int64 patience_us = redlock_node_timeout_ms * INT64CONST(1000) * (once ? 1 : 2);
	bool patient = now_us - request_now.call_began_us < patience_us;
	uint64 number = 0;
	char *nodes;

	if (lease_is_unasked(request->names[index].hash))
		return may_wait_for_broker(request, index, now_us, deadline_us);
	unasked_since_us = 0;
	nodes = lease_unanswered(request->names[index].hash, &number);
	if (nodes == NULL)
		silent_since_us = 0;
	else if (silent_since_us == 0 || number != silent_request)
	{
		silent_since_us = now_us;
		silent_request = number;
	}
	if (nodes != NULL &&
		(once ? !patient : !request->terms.patient && now_us - silent_since_us >= patience_us))
		request_fail_unreachable(request, index, nodes);
	return now_us < deadline_us && (!once || patient);
}

/*
 * The broker has not asked the nodes for the other session's request.  At the end of each of many
 * short waits the same may be true of yet another request, so only a lasting silence means
 * something.
 */
static bool
may_wait_for_broker(const LockRequest *request, int index, int64 now_us, int64 deadline_us)
{
	if (unasked_since_us == 0)
		unasked_since_us = now_us;
	if (now_us - unasked_since_us > BROKER_SILENT_US ||
		(now_us >= deadline_us && request_is_long(now_us, unasked_since_us)))
	{
		if (lease_broker_pid() == 0)
			request_fail_no_broker();
		request_fail_silent_broker(request, index);
	}
	return now_us < deadline_us;
}

/* Asks the nodes for the opened leases.  The broker may send all requests together. */
static void
ask_nodes(const LockRequest *request, int from, const bool *opened, LeaseCompany company)
{
	asks_nodes = true;
	request_refuse_in_conflict(request);
	note_new_names(request, from, opened);
	request_now.asked_us = broker_seen_us = redlock_clock_us();
	if (waits_since_us == 0)
		waits_since_us = request_now.asked_us;
	for (int i = from; i < request_now.asked_count; i++)
	{
		Lease *lease = request_now.asked[i].lease;

		if (!opened[i])
			continue;
		/*
		 * from the first gate on: a request for several locks waits for one after the other, and
		 * should not be last each time
		 */
		lease->waits_since_us = waits_since_us;
		pg_atomic_write_u32(&lease->company, company);
		request_describe_holder(request, lease);
		lease_ask(lease);
	}
}

/* Raises an error if too many of the names are new. */
static void
note_new_names(const LockRequest *request, int from, const bool *opened)
{
	uint64 hashes[SEVERAL_MAX];
	int count = 0;

	for (int i = from; i < request_now.asked_count; i++)
		if (opened[i])
			hashes[count++] = new_names_hash(request->names[i].utf8, request->names[i].utf8_len);
	new_names_ask(hashes, count);
}

/* True if no `wait` of the caller bounds the wait for a missing or silent broker. */
static bool
needs_broker(const LockRequest *request)
{
	return request->wait_ms <= 0;
}

/* Called before each wait outside of a gate.  Raises an error if the broker is missing for long. */
static void
check_broker(const LockRequest *request)
{
	int64 now_us = redlock_clock_us();

	if (lease_broker_pid() != 0)
		broker_seen_us = now_us;
	else if (needs_broker(request) && now_us - broker_seen_us > GATE_BROKER_MISSING_US)
		request_fail_no_broker();
}

/* Ends a try or a wait: another session of this server has the lock. */
static void
give_up_on(const LockRequest *request, int index)
{
	if (request->terms.once)
		request_fail_held_at(request, index);
	else
		request_time_out_at(request, index);
}

/*
 * Before a wait at a later gate, takes over the leases in hand-over at the gates before, in order.
 * Otherwise these leases would go to another host, and this host would be last there.
 */
static void
take_hand_overs(const LockRequest *request)
{
	LeaseTerms terms = request->terms;

	terms.began_us = request_now.call_began_us;
	for (int i = 0; i < request_now.asked_count; i++)
	{
		Asked *at = &request_now.asked[i];
		char text[LOCK_PREFIX_MAX + LOCK_NAME_MAX + 1];
		LeaseKey key = {.hash = at->hash,
						.gate = at->gate,
						.text = text,
						.len = request_make_key(&request->names[i], text)};

		if (at->lease == NULL)
			at->lease = lease_take_hand_over(&key, &terms);
		if (at->lease == NULL)
			break;
	}
}

/*
 * Releases leases in hand-over at gates of this session that the session does not take over: each
 * would wait in vain.
 */
static void
release_hand_overs(void)
{
	for (int i = 0; i < request_now.asked_count; i++)
		if (request_now.asked[i].at_gate && request_now.asked[i].lease == NULL)
			lease_release_hand_over(request_now.asked[i].hash);
}

/* Releases the leases, and leaves the gates, from this name on. */
static void
release_from(int from)
{
	release_hand_overs();
	if (parked && request_now.asked_count >= from)
	{
		leave_gate(&request_now.asked[request_now.asked_count]);
		parked = false;
	}
	for (; request_now.asked_count > from; request_now.asked_count--)
	{
		Asked *last = &request_now.asked[request_now.asked_count - 1];

		if (last->lease != NULL)
			lease_release(last->lease, gate_waiters);
		if (last->at_gate)
			leave_gate(last);
	}
}

static void
leave_gate(const Asked *at)
{
	gate_leave(at->gate, request_now.gate_use);
}

/* Returns false if a try finds another session in the gate, or if the time is over. */
static bool
enter_gate(const LockRequest *request, int index, int64 until_us)
{
	uint64 hash = request->names[index].hash;
	Asked *next = &request_now.asked[index];
	GateLimits limits = {.deadline_us = until_us,
						 .needs_broker = needs_broker(request),
						 .broker_seen_us = broker_seen_us};
	GateOutcome outcome;

	Assert(index == request_now.asked_count);
	waiting = request;
	waiting_at_gate = hash;
	request_now.waited_for = index;
	outcome =
		gate_enter(hash, was_taken, request_now.gate_use, &limits, prepare_to_wait, &next->gate);
	broker_seen_us = limits.broker_seen_us;
	if (outcome == GATE_ENTERED)
	{
		waiting_at_gate = 0;
		next->hash = hash;
		next->at_gate = true;
		next->waited_for_grant = false;
		next->lease = NULL;
		request_now.asked_count++;
		if (waits_since_us == 0 && request->count > 1)
			waits_since_us = redlock_clock_us();
		return true;
	}
	if (until_us != GATE_DO_NOT_WAIT)
		end_wait_at_gate();
	waiting_at_gate = 0;
	if (outcome == GATE_NO_BROKER)
		request_fail_no_broker();
	if (outcome == GATE_DEADLOCK)
		request_fail_deadlock(request, index, lease_take_gate_cycle(limits.deadlock));
	request_refuse_other_permits(request, index, hash);
	give_up_on(request, index);
	return false;
}

/*
 * Until when to wait at the gate.  For an idle permit a try waits a moment: the releasing session
 * leaves the gate at once.
 */
static int64
at_gate_until_us(const LockRequest *request, int index, int64 deadline_us)
{
	if (!request->terms.once)
		return deadline_us;
	if (request->terms.permits > 0 && lease_lacks_holder(request->names[index].hash))
		return Min(redlock_clock_us() + PERMITS_PASS_US, deadline_us);
	return GATE_DO_NOT_WAIT;
}

/*
 * Called before a wait.  Drops the catalog snapshot, and watches the client: a waiter whose client
 * has gone must not go on, and then hold the lock in vain.  PostgreSQL's timer for this check is
 * off by default: it is on during the wait.
 */
static void
prepare_to_wait(void)
{
	if (waiting_at_gate != 0)
	{
		request_refuse_other_permits(waiting, request_now.waited_for, waiting_at_gate);
		take_hand_overs(waiting);
	}
	release_hand_overs();
	InvalidateCatalogSnapshot(); /* a catalog snapshot would hold back VACUUM */
	if (watching || client_connection_check_interval > 0 || MyProcPort == NULL ||
		!WaitEventSetCanReportClosed())
		return;
	watching = true;
	client_connection_check_interval = CLIENT_CHECK_MS;
	enable_timeout_after(CLIENT_CONNECTION_CHECK_TIMEOUT, CLIENT_CHECK_MS);
}

static void
unwatch_client(void)
{
	if (!watching)
		return;
	disable_timeout(CLIENT_CONNECTION_CHECK_TIMEOUT, false);
	client_connection_check_interval = 0;
	watching = false;
}

/*
 * Waits for a while.  `index`: the first name without a grant.  Returns false if another session
 * holds the lock, and the caller has no more time.
 */
static bool
wait_for_answer(const LockRequest *request, int index, int64 deadline_us)
{
	int64 now_us = redlock_clock_us();

	request_now.waited_for = index;
	if (now_us >= deadline_us)
	{
		/* the nodes have refused the lock, and the try waits for a recall */
		if (request->terms.once &&
			pg_atomic_read_u32(&request_now.asked[index].lease->silent_nodes) == 0)
			request_fail_held_at(request, index);
		else
			request_time_out_at(request, index);
		return false;
	}
	check_broker(request);
	if (needs_broker(request) && now_us - request_now.asked_us > BROKER_SILENT_US &&
		(request->terms.once ||
		 pg_atomic_read_u32(&request_now.asked[index].lease->silent_nodes) == LEASE_NOT_ASKED))
		request_fail_silent_broker(request, index);
	if (!request->terms.once)
		prepare_to_wait();
	request_wait_at_most(request, index, deadline_us, BROKER_CHECK_MS, awaits(request, index));
	return true;
}

/* Once a quorum has refused the lock, the session waits for another holder, not for the nodes. */
static WaitsFor
awaits(const LockRequest *request, int index)
{
	if (pg_atomic_read_u32(&request_now.asked[index].lease->silent_nodes) != 0)
		return WAITS_FOR_NODES;
	return request->permits > 0 ? WAITS_FOR_PERMIT : WAITS_FOR_OTHER_HOST;
}

void
request_wait_at_most(const LockRequest *request, int index, int64 deadline_us, long at_most_ms,
					 WaitsFor what)
{
	int64 left_us = deadline_us - redlock_clock_us();
	long timeout_ms = Min(at_most_ms, Max(left_us, 0) / 1000 + 1);

	if (log_lock_waits)
		timeout_ms = request_log_wait(request, index, timeout_ms);
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, timeout_ms,
					 wait_event(what));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/*
 * The sooner of `wait` and lock_timeout.  A try without `wait` ends by lock_timeout alone: the core
 * bounds the try.
 */
int64
request_deadline_us(const LockRequest *request)
{
	int64 wait_ms = request->wait_ms;

	if (request_ends_by_lock_timeout(request))
		wait_ms = LockTimeout;
	else if (request->terms.once && !request->terms.patient)
		return PG_INT64_MAX; /* the core bounds a try, if a broker runs */
	if (wait_ms < 0)
		return PG_INT64_MAX;
	return (request->began_us > 0 ? request->began_us : redlock_clock_us()) + wait_ms * 1000;
}

int
request_free_permit(void)
{
	return free_permit;
}

void
request_wait_for_permit(const LockRequest *request, int64 until_us)
{
	prepare_to_wait();
	request_wait_at_most(request, 0, until_us, BROKER_CHECK_MS, WAITS_FOR_PERMIT);
}

bool
request_ends_by_lock_timeout(const LockRequest *request)
{
	return LockTimeout > 0 && ((request->terms.once && !request->terms.patient) ||
							   request->wait_ms < 0 || LockTimeout < request->wait_ms);
}
