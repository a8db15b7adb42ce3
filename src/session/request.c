/*
 * request.c
 *		Asking for a lease, and waiting for it; see request.h.
 *
 * First through the gate, where the sessions of this server queue; then into the
 * lease table, by a hand-over or by asking the nodes; then the broker's answer.  What
 * is under way is given up on each way out that is not a grant: an error, a time that
 * is over, the end of the session.  protocol/several.c decides in which order several
 * locks are asked for, kept and given back.
 */
#include "postgres.h"

#include <unistd.h>

#include "commands/dbcommands.h" /* get_database_name, up to 18 */
#include "common/pg_prng.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "protocol/permits.h"
#include "session/encoding.h"
#include "session/gate.h"
#include "session/loss.h"
#include "session/request.h"
#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/guc.h"
#include "shared/holder.h"
#include "shared/host_list.h"
#include "shared/new_names.h"
#include "shared/node_status.h"

/* How often a waiter looks whether there still is a broker. */
#define BROKER_CHECK_MS 1000
/* How long it may be missing, for a caller that gave no time to wait. */
#define BROKER_MISSING_US INT64CONST(3000000)

/* How long it may take to ask the nodes, or for a try, to tell what they said. */
#define BROKER_SILENT_US (BROKER_MISSING_US + 2 * redlock_node_timeout_ms * INT64CONST(1000))

/* How often it looks what another session was answered that asks to share the lock, when nobody
 * tells it. */
#define ANSWER_CHECK_MS 5

/* How often a waiter looks whether it still has a client. */
#define CLIENT_CHECK_MS 1000

/* A name of the request, in its order: the gate that was entered, and the lease asked for. */
typedef struct Asked
{
	uint64 hash;
	uint64 gate;
	bool at_gate;
	bool awaited; /* see LeaseTerms */
	Lease *lease; /* NULL: not yet asked for, or the caller's */
} Asked;

static Asked asked[SEVERAL_MAX];
static int asked_count = 0; /* the first ones of the request */
static bool parked = false; /* ... and stays in the gate of the next, while that is in use */
static int taken_count;     /* of which the caller has taken so many */
static int waited_for;      /* the last one that was waited for; -1: none */
static bool asks_nodes;     /* some are not handed over */
static int64 call_began_us;
static char skipped[1024];     /* of a call that is skipped: who has the lock, */
static bool skipped_elsewhere; /* ... and this may be another session of that server by now */
static int64 waits_since_us;   /* for other hosts: through the first gate; 0: not yet */
static int64 asked_us;         /* last */
static int64 broker_seen_us;   /* since then */
static int reserved_gates = 0;
static bool was_taken;             /* by who has another gate, or has lost this one */
static int64 unasked_since_us;     /* what another session waits for, and we, too; 0: asked */
static uint64 waiting_at_gate = 0; /* hash; to be poked if this session ends */
static const LockRequest *waiting; /* there */
static int free_permit;            /* see request_free_permit */
static uint32 wait_event = 0;
static bool watching = false; /* whether there still is a client */

static bool acquire_all(const LockRequest *request, int64 deadline_us);
static void let_others_give_back(const LockRequest *request, int from, int times,
								 int64 deadline_us);
static several_state look_at(const LockRequest *request, int name);
static bool ask(const LockRequest *request, int from, int64 deadline_us);
static bool gives_back_nothing(const LockRequest *request);
static bool may_await(const LockRequest *request, int name, int64 deadline_us);
static bool awaits_broker(const LockRequest *request, int name, int64 now_us, int64 deadline_us);
static void ask_nodes(const LockRequest *request, int from, const bool *opened,
					  LeaseCompany company);
static void note_new_names(const LockRequest *request, int from, const bool *opened);
static void reserve_gates(int count);
static void return_gates(void);
static void end_wait_at_gate(void);
static void give_up_on(const LockRequest *request, int name);
static void take_left(const LockRequest *request);
static void leave_idle(void);
static void give_back(const LockRequest *request, int from);
static void leave_gate(const LockRequest *request, const Asked *at);
static bool at_session_level(const LockRequest *request);
static bool enter_gate(const LockRequest *request, int name, int64 until_us);
static int64 at_gate_until_us(const LockRequest *request, int name, int64 deadline_us);
static void prepare_to_wait(void);
static void unwatch_client(void);
static int make_key(const LockName *name, char *key);
static LeaseOpened open_lease(const LockRequest *request, int name, int64 deadline_us);
static void describe_holder(const LockRequest *request, Lease *lease);
static void refuse_in_dispute(const LockRequest *request);
static bool wait_for_answer(const LockRequest *request, int name, int64 deadline_us);
static void wait_a_moment(int64 deadline_us, long at_most_ms);
static bool ends_by_lock_timeout(const LockRequest *request);
static void fail_held(const LockRequest *request, int name);
static void time_out(const LockRequest *request, int name);
static void note_skipped(const LockRequest *request, int name);
static Lease *lease_of(int name);
static bool was_asked_long(void);
static bool is_long(int64 now_us, int64 since_us);
static char *holder_text(const LockRequest *request, int name);
static char *here_text(uint64 hash);
static bool is_elsewhere(const LockRequest *request, Lease *lease);
static char *held_by_text(Lease *lease);
static int elsewhere_hint(void);
static void refuse_other_permits(const LockRequest *request, int name);
static void fail_other_permits(const LockRequest *request, int name, int permits, char *detail);
static char *permits_text(int permits);
static void fail_lost(const LockRequest *request, int name);
static void fail_unreachable(const LockRequest *request, int name, char *nodes);
static void fail_silent_broker(const LockRequest *request, int name);
static void fail_deadlock(const LockRequest *request, int name);
static void fail_table_full(void);

bool
request_acquire(const LockRequest *request, void (*hold)(const LockRequest *whole),
				const LockRequest *whole)
{
	volatile bool granted = false;

	call_began_us = request->began_us > 0 ? request->began_us : redlock_clock_us();
	taken_count = 0;
	free_permit = PERMITS_TAKEN_HERE;
	waited_for = -1;
	asks_nodes = was_taken = false;
	waits_since_us = unasked_since_us = 0;
	if (request->count > 1)
		reserve_gates(request->count);
	PG_TRY();
	{
		granted = acquire_all(request, request_deadline_us(request));
		if (granted)
			hold(whole);
		give_back(request, 0);
		return_gates();
	}
	PG_CATCH();
	{
		end_wait_at_gate();
		give_back(request, 0);
		return_gates();
		lease_park(0);
		unwatch_client();
		PG_RE_THROW();
	}
	PG_END_TRY();
	lease_park(0);
	unwatch_client();
	return granted;
}

Lease *
request_take(uint64 *gate)
{
	Asked *next = &asked[taken_count++];
	Lease *lease = next->lease;

	*gate = next->gate;
	next->at_gate = false;
	next->lease = NULL;
	return lease;
}

void
request_give_up(void)
{
	for (int i = 0; i < asked_count; i++)
		if (asked[i].lease != NULL)
			lease_release(asked[i].lease, NULL);
	leave_idle();
	asked_count = 0;
	parked = false;
	lease_park(0);
	return_gates();
	end_wait_at_gate();
}

/* Of a gate, in vain: what was left for us there must not wait for us. */
static void
end_wait_at_gate(void)
{
	if (waiting_at_gate != 0)
		lease_release_idle(waiting_at_gate);
	waiting_at_gate = 0;
}

static void
reserve_gates(int count)
{
	if (!lease_reserve_gates(count))
		ereport(ERROR, (errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						errmsg("too many redlocks are waited for on this server in calls for "
							   "several"),
						errdetail("Each of them takes a place in the server's lock table, of which "
								  "they may fill a quarter."),
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

/* False: another has one of them, and the caller has time for no more. */
static bool
acquire_all(const LockRequest *request, int64 deadline_us)
{
	int again = 0;

	for (;;)
	{
		several_state state[SEVERAL_MAX];
		several_step next;
		int first = asked_count; /* that is not granted */
		int from;

		if (asks_nodes)
			refuse_in_dispute(request);
		for (int i = asked_count - 1; i >= 0; i--)
		{
			state[i] = look_at(request, i);
			if (state[i] != SEVERAL_GRANTED)
				first = i;
		}
		if (request->terms.once && first < asked_count && state[first] == SEVERAL_REFUSED)
		{
			if (!several_try_again(first, again++))
			{
				fail_held(request, first);
				return false;
			}
			let_others_give_back(request, first, again, deadline_us);
			continue;
		}
		next = several_next(state, asked_count, request->count, &from);
		switch (next)
		{
			case SEVERAL_DONE:
				return true;
			case SEVERAL_ASK:
				if (!ask(request, from, deadline_us))
					return false;
				if (request->count == 1 && asked_count == 1 && !asks_nodes)
					return true; /* it was handed what is valid, and did not wait since */
				break;
			case SEVERAL_GIVE_BACK:
				give_back(request, from);
				break;
			case SEVERAL_WAIT_FOR_LAST:
			case SEVERAL_WAIT:
				if (next == SEVERAL_WAIT_FOR_LAST)
					pg_atomic_write_u32(&asked[first].lease->company, LEASE_ALONE);
				if (!wait_for_answer(request, first, deadline_us))
					return false;
				break;
		}
	}
}

/*
 * A try of several, which has those before this one.  Hosts that were refused these need about as
 * long to give back the others as this one needed to be refused.
 */
static void
let_others_give_back(const LockRequest *request, int from, int times, int64 deadline_us)
{
	int64 now_us = redlock_clock_us();
	int64 until_us = Min(now_us + times * (now_us - asked_us), deadline_us);

	give_back(request, from);
	while (redlock_clock_us() < until_us)
		wait_a_moment(until_us, BROKER_CHECK_MS);
}

static several_state
look_at(const LockRequest *request, int name)
{
	Lease *lease = asked[name].lease;
	LeaseState state = lease_state(lease);

	if (state == LEASE_HELD && lease_validity_us(lease) == 0)
		state = LEASE_LOST; /* whatever the broker has noticed */
	if (state == LEASE_WAITING || state == LEASE_REFUSED)
		refuse_other_permits(request, name);
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
			fail_unreachable(request, name, lease_missing_nodes(asked[name].lease));
			break;
		case LEASE_DEADLOCKED:
			fail_deadlock(request, name);
			break;
		case LEASE_LOST:
			fail_lost(request, name);
			break;
	}
	return pg_atomic_read_u32(&lease->company) == LEASE_AMONG_REFUSED ? SEVERAL_REFUSED
																	  : SEVERAL_ASKED;
}

/*
 * First through all gates, then ask for all.  Fewer are asked for where the owner of one
 * holds the lock and has lost its gate (to pg_advisory_unlock_all): it is asked for when
 * that one could enter the gate again.  Where a lease is detached, or to be shared, but not yet or
 * not any more, we stay in the gate, as nobody has to enter it before us, and keep our place.
 * False: the caller has time for no more.
 */
static bool
ask(const LockRequest *request, int from, int64 deadline_us)
{
	LeaseCompany company = request->count - from > 1 ? LEASE_AMONG : LEASE_ALONE;
	bool opened[SEVERAL_MAX];
	bool any_opened = false;

	if (parked && lease_gate_changed(asked[asked_count].hash))
		give_back(request, asked_count);
	if (parked)
		asked_count++; /* through that gate we are */
	parked = false;
	for (int i = asked_count; i < request->count; i++)
		if (!enter_gate(request, i, at_gate_until_us(request, i, deadline_us)))
			return false;
	for (int i = 0; i < asked_count; i++)
		if (asked[i].lease != NULL)
			(void) look_at(request, i); /* it may have been lost meanwhile */
	for (int i = from; i < request->count; i++)
	{
		LeaseOpened how =
			asked[i].lease != NULL ? LEASE_HANDED_OVER : open_lease(request, i, deadline_us);

		opened[i] = how == LEASE_OPENED;
		any_opened = any_opened || opened[i];
		if (how < LEASE_AWAITED)
			continue;
		if (how == LEASE_AWAITED ? !may_await(request, i, deadline_us)
								 : request->terms.once || redlock_clock_us() >= deadline_us)
		{
			give_up_on(request, i);
			return false;
		}
		asked[i].awaited = how == LEASE_AWAITED;
		was_taken = was_taken || how == LEASE_TAKEN;
		give_back(request, how == LEASE_TAKEN ? i : i + 1);
		parked = how != LEASE_TAKEN;
		asked_count = i;
		break;
	}
	if (any_opened)
		ask_nodes(request, from, opened, company);
	lease_park(parked && gives_back_nothing(request) ? asked[asked_count].hash : 0);
	if (asked_count == request->count)
		return true;
	if (!request->terms.once)
		prepare_to_wait();
	if (parked)
		wait_a_moment(deadline_us, request->terms.once ? ANSWER_CHECK_MS : BROKER_CHECK_MS);
	else
		wait_a_moment(deadline_us, 10 + pg_prng_uint32(&pg_global_prng_state) % 40);
	return true;
}

/* While it waits: what it has was granted, and it waits for more than a moment. */
static bool
gives_back_nothing(const LockRequest *request)
{
	for (int i = 0; i < asked_count; i++)
		if (lease_state(asked[i].lease) != LEASE_HELD)
			return false;
	return !request->terms.once;
}

/*
 * For the answer to another session that asks to share the lock.  That one may have more patience
 * with nodes that don't answer.
 */
static bool
may_await(const LockRequest *request, int name, int64 deadline_us)
{
	bool once = request->terms.once;
	int64 now_us = redlock_clock_us();
	int64 patience_us = redlock_node_timeout_ms * INT64CONST(1000) * (once ? 1 : 2);
	bool patient = now_us - call_began_us < patience_us;
	char *nodes;

	if (lease_is_unasked(request->names[name].hash))
		return awaits_broker(request, name, now_us, deadline_us);
	unasked_since_us = 0;
	if (!patient && (once || !request->terms.patient) &&
		(nodes = lease_unanswered(request->names[name].hash)) != NULL)
		fail_unreachable(request, name, nodes);
	return now_us < deadline_us && (!once || patient);
}

/*
 * What the other session asks for has not been asked of the nodes.  Nor has it at the end of many
 * waits that end while others come and go: that means something only if it lasts.
 */
static bool
awaits_broker(const LockRequest *request, int name, int64 now_us, int64 deadline_us)
{
	if (unasked_since_us == 0)
		unasked_since_us = now_us;
	if (now_us - unasked_since_us > BROKER_SILENT_US ||
		(now_us >= deadline_us && is_long(now_us, unasked_since_us)))
	{
		if (lease_broker_pid() == 0)
			request_fail_no_broker();
		fail_silent_broker(request, name);
	}
	return now_us < deadline_us;
}

/* For those of which a slot was opened; all of them can travel together. */
static void
ask_nodes(const LockRequest *request, int from, const bool *opened, LeaseCompany company)
{
	asks_nodes = true;
	refuse_in_dispute(request);
	note_new_names(request, from, opened);
	asked_us = broker_seen_us = redlock_clock_us();
	if (waits_since_us == 0)
		waits_since_us = asked_us;
	for (int i = from; i < asked_count; i++)
	{
		Lease *lease = asked[i].lease;

		if (!opened[i])
			continue;
		/* who waits for several waits for one after the other, and would be the last each time */
		lease->waits_since_us = waits_since_us;
		pg_atomic_write_u32(&lease->company, company);
		describe_holder(request, lease);
		lease_ask(lease);
	}
}

/* An error if too many of those that are asked for are new. */
static void
note_new_names(const LockRequest *request, int from, const bool *opened)
{
	uint64 hashes[SEVERAL_MAX];
	int count = 0;

	for (int i = from; i < asked_count; i++)
		if (opened[i])
			hashes[count++] = new_names_hash(request->names[i].utf8, request->names[i].utf8_len);
	new_names_ask(hashes, count);
}

/* A try is in vain, or the time is over, and another session of this server has the lock. */
static void
give_up_on(const LockRequest *request, int name)
{
	if (request->terms.once)
		fail_held(request, name);
	else
		time_out(request, name);
}

/*
 * Before a wait at another gate: what was left for the next through those before.  Else it would go
 * to another host, and we would be the last there.  In their order, as they are kept.
 */
static void
take_left(const LockRequest *request)
{
	for (int i = 0; i < asked_count; i++)
	{
		Asked *at = &asked[i];
		char key[LOCK_PREFIX_MAX + LOCK_NAME_MAX + 1];

		if (at->lease == NULL)
			at->lease = lease_take_left(at->hash, at->gate, key, make_key(&request->names[i], key),
										&request->terms);
		if (at->lease == NULL)
			break;
	}
}

/* What was left for the next through a gate must not wait for a lease that we do not ask for. */
static void
leave_idle(void)
{
	for (int i = 0; i < asked_count; i++)
		if (asked[i].at_gate && asked[i].lease == NULL)
			lease_release_idle(asked[i].hash);
}

/* Those from this one on. */
static void
give_back(const LockRequest *request, int from)
{
	leave_idle();
	if (parked && asked_count >= from)
	{
		leave_gate(request, &asked[asked_count]);
		parked = false;
	}
	for (; asked_count > from; asked_count--)
	{
		Asked *last = &asked[asked_count - 1];

		if (last->lease != NULL)
			lease_release(last->lease, gate_waiters);
		if (last->at_gate)
			leave_gate(request, last);
	}
}

static void
leave_gate(const LockRequest *request, const Asked *at)
{
	gate_leave(at->gate, request->terms.shared, at_session_level(request));
}

/* Who detaches what it acquires has left the gate before its transaction ends. */
static bool
at_session_level(const LockRequest *request)
{
	return request->terms.scope == SCOPE_SESSION || request->terms.scope == SCOPE_CALL;
}

/* False: a try, and another session of this server is before us; or time is over. */
static bool
enter_gate(const LockRequest *request, int name, int64 until_us)
{
	uint64 hash = request->names[name].hash;
	Asked *next = &asked[name];

	Assert(name == asked_count);
	waiting = request;
	waiting_at_gate = hash;
	waited_for = name;
	if (gate_enter(hash, was_taken, request->terms.shared, at_session_level(request), until_us,
				   prepare_to_wait, &next->gate))
	{
		waiting_at_gate = 0;
		next->hash = hash;
		next->at_gate = true;
		next->awaited = false;
		next->lease = NULL;
		asked_count++;
		if (waits_since_us == 0 && request->count > 1)
			waits_since_us = redlock_clock_us();
		return true;
	}
	if (until_us != GATE_DO_NOT_WAIT)
		end_wait_at_gate();
	waiting_at_gate = 0;
	request_refuse_other_permits(request, name, hash);
	give_up_on(request, name);
	return false;
}

/* Who gave a permit back in the lease table leaves its gate at once. */
static int64
at_gate_until_us(const LockRequest *request, int name, int64 deadline_us)
{
	if (!request->terms.once)
		return deadline_us;
	if (request->terms.permits > 0 && lease_is_idle(request->names[name].hash))
		return Min(redlock_clock_us() + PERMITS_PASS_US, deadline_us);
	return GATE_DO_NOT_WAIT;
}

/*
 * It may keep no snapshot that it does not need, and has to see that its client goes.  A waiter
 * whose client has gone must not go on waiting, and then hold the lock for
 * nobody.  PostgreSQL can look for that, by a timer that is off by default: it is on
 * for the length of the wait.
 */
static void
prepare_to_wait(void)
{
	if (waiting_at_gate != 0)
	{
		request_refuse_other_permits(waiting, waited_for, waiting_at_gate);
		take_left(waiting);
	}
	leave_idle();
	InvalidateCatalogSnapshot(); /* who waits without a snapshot has not this one either */
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

/* Returns its length. */
static int
make_key(const LockName *name, char *key)
{
	int prefix_len = strlen(redlock_key_prefix);

	memcpy(key, redlock_key_prefix, prefix_len);
	memcpy(key + prefix_len, name->utf8, name->utf8_len);
	return prefix_len + name->utf8_len;
}

/* Take a slot of the lease table, unless the name is in use: LEASE_AWAITED and what follows. */
static LeaseOpened
open_lease(const LockRequest *request, int name, int64 deadline_us)
{
	const LockName *wanted = &request->names[name];
	char key[LOCK_PREFIX_MAX + LOCK_NAME_MAX + 1];
	int key_len = make_key(wanted, key);
	LeaseTerms terms = request->terms;
	int64 began_us = 0;
	LeaseOpened opened;

	terms.awaited = asked[name].awaited;
	terms.awaits_tokens = true;
	for (;;)
	{
		int64 now_us;

		opened = lease_open(wanted->hash, asked[name].gate, key, key_len - wanted->utf8_len,
							key_len, &terms, &asked[name].lease);
		if (opened == LEASE_MORE_TOKENS)
		{
			/* no longer than the nodes may take to answer */
			terms.awaits_tokens = redlock_clock_us() < deadline_us;
			if (terms.awaits_tokens)
				wait_a_moment(deadline_us, 1);
			continue;
		}
		if (opened != LEASE_NO_SLOT)
			break;
		now_us = redlock_clock_us();
		if (began_us == 0)
			began_us = now_us;
		if (lease_broker_pid() == 0)
			request_fail_no_broker(); /* nobody frees what is released */
		if (now_us - began_us > BROKER_SILENT_US)
			fail_silent_broker(request, name);
		if (now_us >= deadline_us)
			break;
		wait_a_moment(deadline_us, 1);
	}
	if (opened == LEASE_NO_SLOT || opened == LEASE_TABLE_FULL)
		fail_table_full();
	if (opened == LEASE_TOO_MANY_JOINED)
		ereport(
			ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("the sessions of this server share too many redlocks"),
			 errdetail("Each that shares one takes a place in the server's lock table, of which "
					   "they may fill half."),
			 errhint("Raise max_locks_per_transaction, now %d, and restart the server.",
					 max_locks_per_xact)));
	return opened;
}

/* For people who look at the key with redis-cli. */
static void
describe_holder(const LockRequest *request, Lease *lease)
{
	static char text[LOCK_HOLDER_MAX + 1];
	static char host[64] = "";
	static char database[NAMEDATALEN * MAX_CONVERSION_GROWTH];
	static char user[NAMEDATALEN * MAX_CONVERSION_GROWTH];
	static Oid described = InvalidOid;
	static HolderWords words;
	static size_t size = 0; /* for which the text was written */
	bool detached = request->terms.scope == SCOPE_DETACHED;
	Oid role = detached ? GetUserId() : GetSessionUserId();
	int pid = detached ? 0 : MyProcPid;
	size_t room = lease_text_size(lease);

	/* what other hosts show of readers has more in front */
	if (lease->shared)
		room = Max(room, 2 * strlen(LOCK_READERS)) - strlen(LOCK_READERS);
	room = Min(room, (size_t) lease_text_size(lease));
	if (described != role)
	{
		char *database_name = get_database_name(MyDatabaseId);
		char *user_name = GetUserNameFromId(role, true);

		gethostname(host, sizeof(host) - 1);
		encoding_to_utf8(database, sizeof(database), database_name != NULL ? database_name : "");
		encoding_to_utf8(user, sizeof(user), user_name != NULL ? user_name : "");
		words.cluster = cluster_name;
		words.host = host;
		words.database = database;
		words.user = user;
		described = role;
		size = 0;
	}
	if (size != room || words.pid != pid || words.permits != lease->permits)
	{
		size = room;
		words.pid = pid;
		words.permits = lease->permits;
		holder_write(text, size, &words);
	}
	strlcpy(lease_holder(lease), text, lease_text_size(lease));
}

/*
 * All must say the same of how many may hold it.  Who holds it is shown by what its session
 * wrote of itself; of others nothing is known.
 */
static void
refuse_other_permits(const LockRequest *request, int name)
{
	char held_by[64];
	int permits;

	if (!lease_held_by_head(asked[name].lease, held_by, sizeof(held_by)))
		return;
	permits =
		strncmp(held_by, LOCK_READERS, strlen(LOCK_READERS)) == 0 ? 1 : holder_permits(held_by);
	if (permits > 0 && permits != Max(request->permits, 1))
		fail_other_permits(request, name, permits,
						   psprintf("It was granted to: %s.", held_by_text(asked[name].lease)));
}

void
request_refuse_other_permits(const LockRequest *request, int name, uint64 hash)
{
	int permits = lease_permits(hash);

	if (permits >= 0 && Max(permits, 1) != Max(request->permits, 1))
		fail_other_permits(request, name, permits,
						   "It is held or waited for on this server; see the view redlock_locks.");
}

static void
fail_other_permits(const LockRequest *request, int name, int permits, char *detail)
{
	ereport(
		ERROR,
		(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
		 errmsg("redlock \"%s\" is asked for %s, and others have it %s", request->names[name].name,
				permits_text(request->permits), permits_text(permits)),
		 errdetail_internal("%s", detail),
		 errhint("Let all callers say the same number of slots. A lock that has slots can't be "
				 "shared, detached, or acquired together with others.")));
}

static char *
permits_text(int permits)
{
	return permits > 1 ? psprintf("with %d slots", permits) : "without slots";
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
	if (dispute.left)
		ereport(
			ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("redlock \"%s\" is not acquired, since the nodes of this server were left for "
					"others",
					request->names[0].name),
			 errdetail_internal("%s", dispute.detail), errhint("%s", dispute.hint)));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("redlock \"%s\" is not acquired, since host \"%s\" has other settings and "
					"might get it too",
					request->names[0].name, dispute.name),
			 errdetail_internal("%s", dispute.detail),
			 errhint("%s Locks are acquired again when the hosts agree, or that one has been gone "
					 "for a minute; see the view redlock_hosts.",
					 dispute.hint)));
}

/*
 * For a while.  `name`: the first that is not granted.  False: another has it, and the
 * caller has time for no more.
 */
static bool
wait_for_answer(const LockRequest *request, int name, int64 deadline_us)
{
	int64 now_us = redlock_clock_us();

	waited_for = name;
	if (now_us >= deadline_us)
	{
		/* the nodes have refused it, and it waits for a recall */
		if (request->terms.once && pg_atomic_read_u32(&asked[name].lease->silent_nodes) == 0)
			fail_held(request, name);
		else
			time_out(request, name);
		return false;
	}
	if (lease_broker_pid() != 0)
		broker_seen_us = now_us;
	if (request->wait_ms <= 0)
	{
		/* no time was given that would bound this */
		if (now_us - broker_seen_us > BROKER_MISSING_US)
			request_fail_no_broker();
		if (now_us - asked_us > BROKER_SILENT_US &&
			(request->terms.once ||
			 pg_atomic_read_u32(&asked[name].lease->silent_nodes) == LEASE_NOT_ASKED))
			fail_silent_broker(request, name);
	}
	if (!request->terms.once)
		prepare_to_wait();
	wait_a_moment(deadline_us, BROKER_CHECK_MS);
	return true;
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

/* The sooner of `wait` and lock_timeout. */
int64
request_deadline_us(const LockRequest *request)
{
	int64 wait_ms = request->wait_ms;

	if (ends_by_lock_timeout(request))
		wait_ms = LockTimeout;
	else if (request->terms.once && !request->terms.patient)
		return PG_INT64_MAX; /* bounded by the core, if there is a broker */
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
request_wait_a_moment(int64 until_us)
{
	prepare_to_wait();
	wait_a_moment(until_us, BROKER_CHECK_MS);
}

void
request_end_wait(void)
{
	unwatch_client();
}

void
request_fail_held(const LockRequest *request)
{
	fail_held(request, 0);
}

void
request_time_out(const LockRequest *request)
{
	time_out(request, 0);
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

/* A try that was in vain: no error, unless the caller wants one. */
static void
fail_held(const LockRequest *request, int name)
{
	if (request->skip)
		note_skipped(request, name);
	if (request->skip || request->wait_ms != 0)
		return;
	ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					errmsg("redlock \"%s\" is held by another", request->names[name].name),
					errdetail_internal("%s", holder_text(request, name)),
					is_elsewhere(request, lease_of(name)) ? elsewhere_hint() : 0));
}

static void
time_out(const LockRequest *request, int name)
{
	bool by_lock_timeout = ends_by_lock_timeout(request);
	Lease *lease = lease_of(name);

	/* these are never called busy, nor skipped */
	if (lease != NULL && lease_broker_pid() == 0)
		request_fail_no_broker();
	if (lease != NULL && was_asked_long())
	{
		uint32 silent = pg_atomic_read_u32(&lease->silent_nodes);

		if (silent == LEASE_NOT_ASKED)
			fail_silent_broker(request, name);
		if (silent != 0)
			fail_unreachable(request, name, lease_missing_nodes(asked[name].lease));
	}
	if (request->skip && (request->terms.once || !by_lock_timeout))
	{
		note_skipped(request, name);
		return; /* the time that the call gave is over, not the session's */
	}
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not acquire redlock \"%s\" within %d ms (%s)", request->names[name].name,
					by_lock_timeout ? LockTimeout : (int) request->wait_ms,
					by_lock_timeout ? "lock_timeout" : "wait"),
			 errdetail_internal("%s", holder_text(request, name)),
			 is_elsewhere(request, lease) ? elsewhere_hint() : 0));
}

/* It may be asked for once more, by other slots; what is noted last is why. */
static void
note_skipped(const LockRequest *request, int name)
{
	Lease *lease = lease_of(name);
	char *text = holder_text(request, name);
	int len = pg_mbcliplen(text, strlen(text), sizeof(skipped) - 1);

	memcpy(skipped, text, len);
	skipped[len] = '\0';
	skipped_elsewhere = is_elsewhere(request, lease);
}

const char *
request_skipped(void)
{
	return skipped;
}

void
request_tell_skipped(const LockRequest *request)
{
	ereport(NOTICE, (errmsg("redlock \"%s\" is held by another; skipped", request->names[0].name),
					 errdetail_internal("%s", skipped), skipped_elsewhere ? elsewhere_hint() : 0));
}

/* NULL: it is not asked for, since another session of this server is before us. */
static Lease *
lease_of(int name)
{
	return name < asked_count ? asked[name].lease : NULL;
}

/*
 * Does it mean something that the broker or the nodes have not answered?  Not where
 * most of the time went by at the gate, and a moment was left for them.
 */
static bool
was_asked_long(void)
{
	return is_long(redlock_clock_us(), asked_us);
}

static bool
is_long(int64 now_us, int64 since_us)
{
	return now_us - since_us >= since_us - call_began_us ||
		   now_us - since_us >= redlock_node_timeout_ms * INT64CONST(1000);
}

/* A sentence. */
static char *
holder_text(const LockRequest *request, int name)
{
	Lease *lease = lease_of(name);
	char *held_by = lease != NULL ? held_by_text(lease) : NULL;

	if (request->permits > 0)
		return psprintf(
			"All of its %d slots are held, or kept by hold_at_least, or others wait for "
			"one.",
			request->permits);
	if (lease == NULL)
		return here_text(request->names[name].hash);
	return held_by != NULL ? psprintf("It was granted to: %s.", held_by)
						   : "The nodes have not told who holds it.";
}

/* A sentence on the session of this server that is before this one. */
static char *
here_text(uint64 hash)
{
	Lease *lease = lease_find(hash);
	Lease *copy = palloc(sizeof(Lease));
	const char *since;

	if (lease == NULL || !lease_copy(lease, copy) || copy->hash != hash || lease_stays(copy) ||
		pg_atomic_read_u32(&copy->wish) != WISH_HOLD)
		return "Another session of this server is before this one; see the view redlock_locks.";
	since = timestamptz_to_str(copy->since);
	if (lease_state(copy) != LEASE_HELD)
		return psprintf("Process %d of this server is before this one, and has asked for it since "
						"%s.",
						copy->owner_pid, since);
	if (copy->shared)
		return psprintf("Sessions of this server have shared it since %s; see the view "
						"redlock_locks.",
						since);
	if (copy->owner_pid == 0)
		return psprintf("It has been a detached lock of this server since %s; see the view "
						"redlock_locks.",
						since);
	return psprintf("Process %d of this server has held it since %s.", copy->owner_pid, since);
}

/* In a hand-over, or by keep_idle, another session of its server may have it by now. */
static bool
is_elsewhere(const LockRequest *request, Lease *lease)
{
	char held_by[64];

	return lease != NULL && request->permits == 0 && lease->kept_until == 0 &&
		   lease_held_by_head(lease, held_by, sizeof(held_by)) && holder_permits(held_by) > 0;
}

/* In the encoding of this database; NULL: not known. */
static char *
held_by_text(Lease *lease)
{
	char *held_by = lease_held_by_text(lease);

	return held_by != NULL ? encoding_from_utf8(held_by) : NULL;
}

static int
elsewhere_hint(void)
{
	return errhint("Another session of that server may have it by now: its view redlock_locks "
				   "tells which.");
}

/* It had been granted. */
static void
fail_lost(const LockRequest *request, int name)
{
	if (waited_for == name || waited_for < 0)
		loss_fail(request->names[name].name, loss_reason(asked[name].lease),
				  " right after it was granted");
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("the lease on redlock \"%s\" was lost while \"%s\" was waited for",
					request->names[name].name, request->names[waited_for].name),
			 errdetail_internal("%s", loss_reason(asked[name].lease)),
			 errhint("What this call had acquired is given back: ask for all again. A hold_at_most "
					 "must outlast the wait for the other locks.")));
}

static void
fail_unreachable(const LockRequest *request, int name, char *nodes)
{
	Lease *lease = lease_of(name);
	core_mask silent = lease != NULL ? pg_atomic_read_u32(&lease->silent_nodes) : PG_UINT32_MAX;
	char *advice = nodes[0] != '\0' ? node_status_advise(silent) : "";

	lease_count(COUNT_UNREACHABLE);
	if (!node_status_listed())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("redlock \"%s\" is not acquired, since no list of nodes is in force",
						request->names[name].name),
				 errhint("The server log says why redlock.nodes is not. Mend it and reload.")));
	ereport(ERROR, (errcode(ERRCODE_CONNECTION_FAILURE),
					errmsg("no quorum of redlock nodes could be reached for \"%s\"",
						   request->names[name].name),
					nodes[0] != '\0' ? errdetail("No usable answer from: %s.", nodes)
									 : errdetail("The answers came too late for a ttl of %d ms.",
												 request->terms.ttl_ms),
					advice[0] != '\0' ? errhint("%s See the view redlock_nodes.", advice)
					: !lease_table->standing.begun && lease_table->standing.says != HOST_WARNS
						? errhint("This host takes no locks before the nodes have told it whether "
								  "other hosts have the same settings. Try again; see the views "
								  "redlock_nodes and redlock_hosts.")
						: errhint("See the view redlock_nodes. A quorum is a majority of all nodes "
								  "in redlock.nodes, and of all in redlock.nodes_next while that "
								  "is set.")));
}

static void
fail_deadlock(const LockRequest *request, int name)
{
	pgstat_report_deadlock();
	ereport(
		ERROR,
		(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
		 errmsg("deadlock detected while waiting for redlock \"%s\"", request->names[name].name),
		 errdetail_internal("%s", encoding_from_utf8(lease_cycle_text(asked[name].lease))),
		 errhint("Roll back, release the locks that are held at session scope, and run the "
				 "transaction again. Deadlocks do not occur where all take their locks in the "
				 "same order.")));
}

static void
fail_silent_broker(const LockRequest *request, int name)
{
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("the redlock broker has not asked for \"%s\" in time",
						   request->names[name].name),
					errdetail("It is stopped or overloaded, or has started just now and is still "
							  "connecting to the nodes."),
					errhint("Try again. If the error stays, see the server log and process %d.",
							lease_broker_pid())));
}

void
request_fail_no_broker(void)
{
	if (!IsPostmasterEnvironment)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("redlocks can't be used in single-user mode"),
						errdetail("The broker, which talks to the nodes, is a background worker, "
								  "and single-user mode has none."),
						errhint("Start the server as usual, and try again.")));
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("the redlock broker is not running"),
					errhint("The server restarts it by itself. If it does not come up, see the "
							"server log, and whether max_worker_processes, now %d, is enough.",
							max_worker_processes)));
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
