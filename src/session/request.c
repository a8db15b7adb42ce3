/*
 * request.c
 *		Asking for a lease, and waiting for it; see request.h.
 *
 * First through the gate, where the sessions of this server queue; then into the
 * lease table, by a hand-over or by asking the nodes; then the broker's answer.  What
 * is under way is given up on each way out that is not a grant: an error, a time that
 * is over, the end of the session.
 */
#include "postgres.h"

#include <unistd.h>

#include "commands/dbcommands.h" /* get_database_name, up to 18 */
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/lsyscache.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "session/gate.h"
#include "session/loss.h"
#include "session/request.h"
#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/guc.h"
#include "shared/host_list.h"
#include "shared/node_status.h"
#include "shared/text.h"

/* How often a waiter looks whether there still is a broker. */
#define BROKER_CHECK_MS 1000
/* How long it may be missing, for a caller that gave no time to wait. */
#define BROKER_MISSING_US INT64CONST(3000000)

/* How long it may take to ask the nodes, or for a try, to tell what they said. */
#define BROKER_SILENT_US (BROKER_MISSING_US + 2 * redlock_node_timeout_ms * INT64CONST(1000))

/* How often a waiter looks whether it still has a client. */
#define CLIENT_CHECK_MS 1000

/*
 * A lease asked for and not yet taken by the caller; the gate that was entered for it; when
 * the call began, and it was asked for.
 */
static Lease *asking = NULL;
static uint64 asking_gate;
static int64 call_began_us;
static int64 asked_us;
static uint64 waiting_at_gate = 0; /* hash; to be poked if this session ends */
static uint32 wait_event = 0;
static bool watching = false; /* whether there still is a client */

static LeaseState ask(const LockRequest *request, int64 deadline_us);
static void give_up(const LockRequest *request, bool at_gate);
static bool enter_gate(const LockRequest *request, int64 deadline_us);
static void watch_client(void);
static void unwatch_client(void);
static LeaseOpened open_lease(const LockRequest *request, int64 deadline_us);
static void describe_holder(Lease *lease);
static void refuse_in_dispute(const LockRequest *request);
static LeaseState wait_for_answer(const LockRequest *request, int64 deadline_us);
static void wait_a_moment(int64 deadline_us, long at_most_ms);
static int64 deadline_of(const LockRequest *request);
static bool ends_by_lock_timeout(const LockRequest *request);
static void fail_held(const LockRequest *request, Lease *lease);
static void time_out(const LockRequest *request, Lease *lease);
static bool was_asked_long(void);
static char *holder_text(Lease *lease);
static void fail_unreachable(const LockRequest *request, Lease *lease);
static void fail_silent_broker(const LockRequest *request);
static void fail_deadlock(const LockRequest *request, Lease *lease);
static void fail_table_full(void);

/* First through the gate, then ask the nodes. */
int64
request_acquire(const LockRequest *request, int64 (*hold)(const LockRequest *request))
{
	int64 deadline_us;
	volatile int64 token = 0;
	volatile bool at_gate = false;

	call_began_us = redlock_clock_us();
	deadline_us = deadline_of(request);
	PG_TRY();
	{
		LeaseState state;

		do
		{
			at_gate = enter_gate(request, deadline_us);
			state = at_gate ? ask(request, deadline_us) : LEASE_REFUSED;
			if (state == LEASE_HELD)
				token = hold(request);
			else
				give_up(request, at_gate);
			at_gate = false;
			if (state == LEASE_WAITING)
				wait_a_moment(deadline_us, 10 + pg_prng_uint32(&pg_global_prng_state) % 40);
		} while (state == LEASE_WAITING);
	}
	PG_CATCH();
	{
		give_up(request, at_gate);
		unwatch_client();
		PG_RE_THROW();
	}
	PG_END_TRY();
	unwatch_client();
	return token;
}

Lease *
request_take(uint64 *gate)
{
	Lease *lease = asking;

	*gate = asking_gate;
	asking = NULL;
	return lease;
}

void
request_give_up(void)
{
	if (asking != NULL)
		lease_release(asking, NULL);
	asking = NULL;
	if (waiting_at_gate != 0)
		lease_release_idle(waiting_at_gate);
	waiting_at_gate = 0;
}

/*
 * At the gate.  LEASE_HELD: `asking` was granted.  LEASE_REFUSED: the caller has
 * time for no more.  LEASE_WAITING: the owner holds the lock and has lost its gate
 * (to pg_advisory_unlock_all); come back when it could enter it again.
 */
static LeaseState
ask(const LockRequest *request, int64 deadline_us)
{
	LeaseState state = LEASE_WAITING;
	LeaseOpened opened = open_lease(request, deadline_us);

	if (opened == LEASE_HANDED_OVER)
		return LEASE_HELD; /* and seen to be valid just now */
	if (opened != LEASE_TAKEN)
	{
		state = wait_for_answer(request, deadline_us);
		/* the nodes have refused it, and it waits for a recall */
		if (state == LEASE_WAITING && request->terms.once &&
			pg_atomic_read_u32(&asking->silent_nodes) == 0)
			state = LEASE_REFUSED;
		if (state == LEASE_UNREACHABLE)
			fail_unreachable(request, asking);
		if (state == LEASE_DEADLOCKED)
			fail_deadlock(request, asking);
		if (state == LEASE_LOST)
			loss_fail(request->name, asking, " right after it was granted");
	}
	else if (!request->terms.once && redlock_clock_us() < deadline_us)
		return LEASE_WAITING;
	else if (request->terms.once)
		state = LEASE_REFUSED;

	if (state == LEASE_WAITING)
		time_out(request, asking);
	else if (state == LEASE_REFUSED && request->wait_ms == 0)
		fail_held(request, asking);
	return state == LEASE_HELD ? LEASE_HELD : LEASE_REFUSED;
}

static void
give_up(const LockRequest *request, bool at_gate)
{
	if (asking != NULL)
		lease_release(asking, NULL);
	asking = NULL;
	if (at_gate)
		gate_leave(asking_gate, request->scope != SCOPE_TRANSACTION);
}

/* False: a try, and another session of this server is before us; or time is over. */
static bool
enter_gate(const LockRequest *request, int64 deadline_us)
{
	bool entered;

	PG_TRY();
	{
		waiting_at_gate = request->hash;
		entered = gate_enter(request->hash, request->scope != SCOPE_TRANSACTION,
							 request->terms.once ? GATE_DO_NOT_WAIT : deadline_us, watch_client,
							 &asking_gate);
	}
	PG_CATCH();
	{
		waiting_at_gate = 0;
		lease_release_idle(request->hash);
		PG_RE_THROW();
	}
	PG_END_TRY();
	waiting_at_gate = 0;
	if (entered)
		return true;
	if (!request->terms.once)
	{
		lease_release_idle(request->hash);
		time_out(request, NULL);
	}
	else if (request->wait_ms == 0)
		fail_held(request, NULL);
	return false;
}

/*
 * A waiter whose client has gone must not go on waiting, and then hold the lock for
 * nobody.  PostgreSQL can look for that, by a timer that is off by default: it is on
 * for the length of the wait.
 */
static void
watch_client(void)
{
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
 * Take a slot of the lease table and ask.  Sets `asking`, unless the name is in use:
 * LEASE_TAKEN.
 */
static LeaseOpened
open_lease(const LockRequest *request, int64 deadline_us)
{
	char key[LOCK_PREFIX_MAX + LOCK_NAME_MAX + 1];
	int prefix_len = strlen(redlock_key_prefix);
	LeaseOpened opened;

	memcpy(key, redlock_key_prefix, prefix_len);
	memcpy(key + prefix_len, request->utf8, request->utf8_len);

	while ((opened = lease_open(request->hash, asking_gate, key, prefix_len,
								prefix_len + request->utf8_len, &request->terms, &asking)) ==
		   LEASE_NO_SLOT)
	{
		if (lease_broker_pid() == 0)
			request_fail_no_broker(); /* nobody frees what is released */
		if (redlock_clock_us() >= deadline_us)
			break;
		wait_a_moment(deadline_us, 1);
	}
	if (opened == LEASE_HANDED_OVER || opened == LEASE_TAKEN)
		return opened;
	if (opened != LEASE_OPENED)
		fail_table_full();

	refuse_in_dispute(request);
	asking->scope = request->scope;
	describe_holder(asking);
	asked_us = redlock_clock_us();
	lease_ask(asking);
	return LEASE_OPENED;
}

/* For people who look at the key with redis-cli. */
static void
describe_holder(Lease *lease)
{
	static char text[256];
	static Oid described = InvalidOid;

	if (described != GetSessionUserId())
	{
		char host[64] = "";
		char *database = get_database_name(MyDatabaseId);
		char *user = GetUserNameFromId(GetSessionUserId(), true);

		gethostname(host, sizeof(host) - 1);
		snprintf(text, sizeof(text), "host=%s database=%s pid=%d user=%s", host,
				 database ? database : "", MyProcPid, user ? user : "");
		described = GetSessionUserId();
	}
	text_to_printable(lease_holder(lease), lease_text_size(lease), text, strlen(text));
}

/*
 * The nodes might grant what another host holds.  A lease that was left by another session
 * of this server is no new one, and goes on.
 */
static void
refuse_in_dispute(const LockRequest *request)
{
	HostDispute dispute;

	if (redlock_on_disagreement != ON_DISAGREEMENT_REFUSE || !host_list_in_dispute())
		return;
	host_list_dispute(&dispute);
	if (dispute.name[0] == '\0')
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("redlock \"%s\" is not acquired, since host \"%s\" has other settings and "
					"might get it too",
					request->name, dispute.name),
			 errdetail_internal("%s", dispute.detail),
			 errhint("%s Locks are acquired again when the hosts agree, or that one has been gone "
					 "for a minute; see the view redlock_hosts.",
					 dispute.hint)));
}

/* Returns LEASE_WAITING if the time is over. */
static LeaseState
wait_for_answer(const LockRequest *request, int64 deadline_us)
{
	int64 began_us = redlock_clock_us();
	int64 broker_seen_us = began_us;

	for (;;)
	{
		LeaseState state = lease_state(asking);
		int64 now_us;

		refuse_in_dispute(request);
		if (state == LEASE_HELD && lease_validity_us(asking) == 0)
			return LEASE_LOST; /* whatever the broker has noticed */
		if (state != LEASE_WAITING)
			return state;

		now_us = redlock_clock_us();
		if (now_us >= deadline_us)
			return LEASE_WAITING;
		if (lease_broker_pid() != 0)
			broker_seen_us = now_us;
		if (request->wait_ms <= 0)
		{
			/* no time was given that would bound this */
			if (now_us - broker_seen_us > BROKER_MISSING_US)
				request_fail_no_broker();
			if (now_us - began_us > BROKER_SILENT_US &&
				(request->terms.once ||
				 pg_atomic_read_u32(&asking->silent_nodes) == LEASE_NOT_ASKED))
				fail_silent_broker(request);
		}
		if (!request->terms.once)
			watch_client();
		wait_a_moment(deadline_us, BROKER_CHECK_MS);
	}
}

static void
wait_a_moment(int64 deadline_us, long at_most_ms)
{
	int64 left_us = deadline_us - redlock_clock_us();
	long timeout_ms = Min(at_most_ms, Max(left_us, 0) / 1000 + 1);

	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, timeout_ms,
					 REDLOCK_WAIT_EVENT(wait_event, "RedlockAcquire"));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
}

/* The sooner of `wait` and lock_timeout, from now. */
static int64
deadline_of(const LockRequest *request)
{
	int64 wait_ms = request->wait_ms;

	if (ends_by_lock_timeout(request))
		wait_ms = LockTimeout;
	else if (request->terms.once)
		return PG_INT64_MAX; /* bounded by the core, if there is a broker */
	if (wait_ms < 0)
		return PG_INT64_MAX;
	return redlock_clock_us() + wait_ms * 1000;
}

static bool
ends_by_lock_timeout(const LockRequest *request)
{
	return LockTimeout > 0 &&
		   (request->terms.once || request->wait_ms < 0 || LockTimeout < request->wait_ms);
}

/*
 * Errors
 */

static void
fail_held(const LockRequest *request, Lease *lease)
{
	if (request->skip)
		return;
	ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					errmsg("redlock \"%s\" is held by another", request->name),
					errdetail_internal("%s", holder_text(lease))));
}

static void
time_out(const LockRequest *request, Lease *lease)
{
	bool by_lock_timeout = ends_by_lock_timeout(request);

	/* these are never called busy, nor skipped */
	if (lease != NULL && lease_broker_pid() == 0)
		request_fail_no_broker();
	if (lease != NULL && was_asked_long())
	{
		uint32 silent = pg_atomic_read_u32(&lease->silent_nodes);

		if (silent == LEASE_NOT_ASKED)
			fail_silent_broker(request);
		if (silent != 0)
			fail_unreachable(request, lease);
	}
	if (request->skip)
		return;
	ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					errmsg("could not acquire redlock \"%s\" within %d ms (%s)", request->name,
						   by_lock_timeout ? LockTimeout : (int) request->wait_ms,
						   by_lock_timeout ? "lock_timeout" : "wait"),
					errdetail_internal("%s", holder_text(lease))));
}

/*
 * Does it mean something that the broker or the nodes have not answered?  Not where
 * most of the time went by at the gate, and a moment was left for them.
 */
static bool
was_asked_long(void)
{
	int64 out_us = redlock_clock_us() - asked_us;

	return out_us >= asked_us - call_began_us ||
		   out_us >= redlock_node_timeout_ms * INT64CONST(1000);
}

/* A sentence. */
static char *
holder_text(Lease *lease)
{
	char *held_by = lease != NULL ? lease_held_by_text(lease) : NULL;

	if (lease == NULL)
		return "Another session of this server holds it or waits for it; see the view "
			   "redlock_locks.";
	return held_by != NULL ? psprintf("It is held by: %s.", held_by)
						   : "The nodes have not told who holds it.";
}

static void
fail_unreachable(const LockRequest *request, Lease *lease)
{
	char *nodes = lease_missing_nodes(lease);

	if (!node_status_listed())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("redlock \"%s\" is not acquired, since no list of nodes is in force",
						request->name),
				 errhint("The server log says why redlock.nodes is not. Mend it and reload.")));
	ereport(ERROR, (errcode(ERRCODE_CONNECTION_FAILURE),
					errmsg("no quorum of redlock nodes could be reached for \"%s\"", request->name),
					nodes[0] != '\0' ? errdetail("No usable answer from: %s.", nodes)
									 : errdetail("The answers came too late for a ttl of %d ms.",
												 request->terms.ttl_ms),
					errhint("See the view redlock_nodes. A quorum is a majority of all nodes in "
							"redlock.nodes, and of all in redlock.nodes_next while that is set.")));
}

static void
fail_deadlock(const LockRequest *request, Lease *lease)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
			 errmsg("deadlock detected while waiting for redlock \"%s\"", request->name),
			 errdetail_internal("%s", lease_cycle_text(lease)),
			 errhint("Roll back, release the locks that are held at session scope, and run the "
					 "transaction again. Deadlocks do not occur where all take their locks in the "
					 "same order.")));
}

static void
fail_silent_broker(const LockRequest *request)
{
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("the redlock broker has not asked for \"%s\" in time", request->name),
					errdetail("It is stopped or overloaded, or has started just now and is still "
							  "connecting to the nodes."),
					errhint("Try again. If the error stays, see the server log and process %d.",
							lease_broker_pid())));
}

void
request_fail_no_broker(void)
{
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("the redlock broker is not running"),
					errhint("The server restarts it by itself. If it does not come up, see the "
							"server log.")));
}

static void
fail_table_full(void)
{
	ereport(
		ERROR,
		(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
		 errmsg("too many redlocks are held or asked for on this server"),
		 lease_table->max_locks < redlock_max_locks
			 ? errdetail("The server's lock table has room for %d, less than redlock.max_locks, "
						 "which is %d.",
						 lease_table->max_locks, redlock_max_locks)
			 : 0,
		 lease_table->max_locks < redlock_max_locks
			 ? errhint("Raise max_locks_per_transaction, now %d, and restart the server.",
					   max_locks_per_xact)
			 : errhint("Raise redlock.max_locks, now %d, and restart the server.",
					   redlock_max_locks)));
}
