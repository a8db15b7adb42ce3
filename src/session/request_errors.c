/*
 * request_errors.c
 *		Errors of a request, and texts about the holder of a lock.
 *
 * request_fail_held_at and request_time_out_at end a try or a wait in vain.  Each raises an error,
 * or notes the reason for a call that skips, or does neither: the request decides.
 */
#include "postgres.h"

#include "commands/dbcommands.h" /* get_database_name, up to 18 */
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/proc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "protocol/permits.h"
#include "session/encoding.h"
#include "session/loss.h"
#include "session/request_internal.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/holder.h"
#include "shared/host_list.h"
#include "shared/node_status.h"

/* The reason of a skipped call. */
static const char *skipped_name;
static char skipped[1024];     /* text about the holder */
static bool skipped_elsewhere; /* ... by now perhaps another session of the holder's server */

static void note_skipped(const LockRequest *request, int index);
static Lease *lease_of(int index);
static bool was_asked_long(void);
static void refuse_overdue(const LockRequest *request, int index);
static Lease *copy_here(uint64 hash);
static char *holder_text(const LockRequest *request, int index);
static char *here_text(uint64 hash);
static char *owner_text(const Lease *lease);
static bool is_elsewhere(const LockRequest *request, Lease *lease);
static char *held_by_text(Lease *lease);
static int elsewhere_hint(void);
static void fail_other_permits(const LockRequest *request, int index, int permits, char *detail);
static char *permits_text(int permits);

/*
 * Raises an error if the holder on another host has another number of permits, as a majority of
 * the nodes says.  The holder's own text tells the number; without such a text nothing is known.
 */
void
request_refuse_granted_permits(const LockRequest *request, int index)
{
	Lease *lease = request_now.asked[index].lease;
	core_mask members = lease->drive.core.members;
	core_mask other = pg_atomic_read_u32(&lease->other_permits) & members;
	char held_by[64];
	int permits;

	if (pg_popcount32(other) < core_quorum(members) ||
		!lease_held_by_head(lease, held_by, sizeof(held_by)))
		return;
	permits =
		strncmp(held_by, LOCK_READERS, strlen(LOCK_READERS)) == 0 ? 1 : holder_permits(held_by);
	if (permits > 0 && permits != Max(request->permits, 1))
		fail_other_permits(request, index, permits,
						   psprintf("The lock was granted to: %s.", held_by_text(lease)));
}

void
request_refuse_other_permits(const LockRequest *request, int index, uint64 hash)
{
	int permits = lease_permits(hash);

	if (permits >= 0 && Max(permits, 1) != Max(request->permits, 1))
		fail_other_permits(
			request, index, permits,
			"The lock is held or waited for on this server; see the view redlock_locks.");
}

static void
fail_other_permits(const LockRequest *request, int index, int permits, char *detail)
{
	ereport(
		ERROR,
		(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
		 errmsg("redlock \"%s\" is requested %s, but held or requested %s",
				request->names[index].name, permits_text(request->permits), permits_text(permits)),
		 errdetail_internal("%s", detail),
		 errhint("Give the same number of permits in all calls. A lock with permits can't be "
				 "shared, detached, or acquired in one call with further locks.")));
}

static char *
permits_text(int permits)
{
	return permits > 1 ? psprintf("with %d permits", permits) : "without permits";
}

/*
 * Raises an error in a configuration conflict: the nodes might grant a lock that another host
 * holds.  A hand-over asks no node, so goes on.
 */
void
request_refuse_in_conflict(const LockRequest *request)
{
	HostConflict conflict;

	if (redlock_on_disagreement != ON_DISAGREEMENT_REFUSE || !host_list_in_conflict())
		return;
	host_list_conflict(&conflict);
	if (conflict.name[0] == '\0')
		return;
	if (conflict.left)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("redlock \"%s\" is not acquired, since the hosts have left the "
							   "nodes of this server",
							   request->names[0].name),
						errdetail_internal("%s", conflict.detail), errhint("%s", conflict.hint)));
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("redlock \"%s\" is not acquired, since host \"%s\" has other settings and "
					"might get it too",
					request->names[0].name, conflict.name),
			 errdetail_internal("%s", conflict.detail),
			 errhint("%s This host acquires locks again when the hosts agree, or a minute after "
					 "that host has stopped. See the view redlock_hosts.",
					 conflict.hint)));
}

void
request_fail_held(const LockRequest *request)
{
	request_fail_held_at(request, 0);
}

void
request_time_out(const LockRequest *request)
{
	request_time_out_at(request, 0);
}

/* Ends a try in vain. */
void
request_fail_held_at(const LockRequest *request, int index)
{
	refuse_overdue(request, index);
	if (request->skip)
		note_skipped(request, index);
	if (request->skip || request->wait_ms != 0)
		return;
	ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					errmsg("redlock \"%s\" is held by another", request->names[index].name),
					errdetail_internal("%s", holder_text(request, index)),
					is_elsewhere(request, lease_of(index)) ? elsewhere_hint() : 0));
}

void
request_time_out_at(const LockRequest *request, int index)
{
	bool by_lock_timeout = request_ends_by_lock_timeout(request);
	Lease *lease = lease_of(index);

	/* these failures are never reported as a held lock, nor skipped */
	refuse_overdue(request, index);
	if (lease != NULL && lease_broker_pid() == 0)
		request_fail_no_broker();
	if (lease != NULL && was_asked_long())
	{
		uint32 silent = pg_atomic_read_u32(&lease->silent_nodes);

		if (silent == LEASE_NOT_ASKED)
			request_fail_silent_broker(request, index);
		if (silent != 0)
			request_fail_unreachable(request, index,
									 lease_missing_nodes(request_now.asked[index].lease));
	}
	if (request->skip && (request->terms.once || !by_lock_timeout))
	{
		note_skipped(request, index);
		return; /* the call's time is over, not the session's lock_timeout */
	}
	ereport(ERROR, (errcode(ERRCODE_LOCK_NOT_AVAILABLE),
					errmsg("could not acquire redlock \"%s\" within %d ms (%s)",
						   request->names[index].name,
						   by_lock_timeout ? LockTimeout : (int) request->wait_ms,
						   by_lock_timeout ? "lock_timeout" : "wait"),
					errdetail_internal("%s", holder_text(request, index)),
					is_elsewhere(request, lease) ? elsewhere_hint() : 0));
}

/* The last note counts: a request for a permit may try several permits. */
static void
note_skipped(const LockRequest *request, int index)
{
	Lease *lease = lease_of(index);
	MemoryContext of_text =
		AllocSetContextCreate(CurrentMemoryContext, "redlock skipped", ALLOCSET_SMALL_SIZES);
	MemoryContext context = MemoryContextSwitchTo(of_text);
	char *text = holder_text(request, index);
	int len = pg_mbcliplen(text, strlen(text), sizeof(skipped) - 1);

	memcpy(skipped, text, len);
	skipped[len] = '\0';
	MemoryContextSwitchTo(context);
	MemoryContextDelete(of_text);
	skipped_name = request->names[index].name;
	skipped_elsewhere = is_elsewhere(request, lease);
}

const char *
request_skipped(void)
{
	return skipped;
}

const char *
request_skipped_name(void)
{
	return skipped_name;
}

void
request_tell_skipped(void)
{
	ereport(NOTICE, (errmsg("redlock \"%s\" is held by another; skipped", skipped_name),
					 errdetail_internal("%s", skipped), skipped_elsewhere ? elsewhere_hint() : 0));
}

/* Returns NULL if the lock was not asked for, since another session of this server is first. */
static Lease *
lease_of(int index)
{
	return index < request_now.asked_count ? request_now.asked[index].lease : NULL;
}

/*
 * Was the wait for the broker and the nodes long enough to blame them?  False if most of the time
 * passed at the gate.
 */
static bool
was_asked_long(void)
{
	return request_is_long(redlock_clock_us(), request_now.asked_us);
}

bool
request_is_long(int64 now_us, int64 since_us)
{
	return now_us - since_us >= since_us - request_now.call_began_us ||
		   now_us - since_us >= redlock_node_timeout_ms * INT64CONST(1000);
}

/* Returns a sentence about the holder. */
static char *
holder_text(const LockRequest *request, int index)
{
	Lease *lease = lease_of(index);
	char *held_by = lease != NULL ? held_by_text(lease) : NULL;
	char head[64];

	if (request->terms.is_queue && held_by != NULL &&
		(!lease_held_by_head(lease, head, sizeof(head)) || holder_permits(head) == 0))
		return psprintf("In place of the queue of waiters, the nodes have another program's key: "
						"%s.",
						held_by);
	if (request->permits > 0)
		return psprintf("All %d permits of the lock are held or kept by hold_at_least, or earlier "
						"waiters are next.",
						request->permits);
	if (lease == NULL)
		return here_text(request->names[index].hash);
	return held_by != NULL ? psprintf("The lock was granted to: %s.", held_by)
						   : "The nodes did not name the holder.";
}

/* A session with permits asks the nodes again and again: a short silence of nodes is no reason. */
char *
request_wait_text(const LockRequest *request, int index)
{
	Lease *lease = lease_of(index);
	char *nodes;

	if (lease == NULL || pg_atomic_read_u32(&lease->silent_nodes) == 0 || !was_asked_long())
		return holder_text(request, index);
	nodes = lease_missing_nodes(lease);
	return nodes[0] != '\0' ? psprintf("No usable answer from: %s.", nodes)
							: pstrdup("The broker has not asked the nodes yet.");
}

/*
 * Raises an error if this server's lease on the lock ended long ago: only the broker notes the end
 * of a lease.
 */
static void
refuse_overdue(const LockRequest *request, int index)
{
	Lease *lease = copy_here(request->names[index].hash);
	bool overdue;

	if (lease == NULL)
		return;
	overdue = lease_state(lease) == LEASE_HELD &&
			  redlock_clock_us() - lease_valid_until_us(lease) > BROKER_SILENT_US;
	pfree(lease); /* a wait for a permit makes many tries */
	if (!overdue)
		return;
	if (lease_broker_pid() == 0)
		request_fail_no_broker();
	request_fail_silent_broker(request, index);
}

/* Returns a palloc'd copy of this server's lease on a lock; NULL: there is none. */
static Lease *
copy_here(uint64 hash)
{
	Lease *lease = lease_find(hash);
	Lease *copy;

	if (lease == NULL)
		return NULL;
	copy = palloc(sizeof(Lease));
	if (lease_copy(lease, copy) && copy->hash == hash)
		return copy;
	pfree(copy);
	return NULL;
}

/* Returns a sentence about the session of this server that is first. */
static char *
here_text(uint64 hash)
{
	Lease *copy = copy_here(hash);
	const char *since;

	if (copy == NULL || lease_is_idle(copy) || !wish_is_held(pg_atomic_read_u32(&copy->wish)))
		return "Another session of this server is ahead of this session; see the view "
			   "redlock_locks.";
	since = timestamptz_to_str(copy->since);
	if (lease_state(copy) != LEASE_HELD)
		return psprintf(
			"Process %d of this server (%s) is ahead of this session, and has waited since %s.",
			copy->owner_pid, owner_text(copy), since);
	if (copy->shared)
		return psprintf(
			"Sessions of this server have shared the lock since %s; see the view redlock_locks.",
			since);
	if (pg_atomic_read_u32(&copy->wish) == WISH_DETACHED)
		return psprintf(
			"The lock has been detached on this server (%s) since %s; see the view redlock_locks.",
			owner_text(copy), since);
	return psprintf("Process %d of this server (%s) has held the lock since %s.", copy->owner_pid,
					owner_text(copy), since);
}

/* Either may have been dropped. */
static char *
owner_text(const Lease *lease)
{
	char *database = get_database_name(lease->owner_database);
	char *role = GetUserNameFromId(lease->owner_role, true);

	return psprintf("database \"%s\", role \"%s\"",
					encoding_of_name(database != NULL ? database : "?"),
					encoding_of_name(role != NULL ? role : "?"));
}

/*
 * May another session of the holder's server have the lock by now, after a hand-over or by
 * keep_idle?
 */
static bool
is_elsewhere(const LockRequest *request, Lease *lease)
{
	char held_by[64];

	return lease != NULL && request->permits == 0 && lease->kept_until == 0 &&
		   lease_held_by_head(lease, held_by, sizeof(held_by)) && holder_permits(held_by) > 0;
}

/* Returns the text in the encoding of this database; NULL: not known. */
static char *
held_by_text(Lease *lease)
{
	char *held_by = lease_held_by_text(lease);

	return held_by != NULL ? encoding_from_utf8(held_by) : NULL;
}

static int
elsewhere_hint(void)
{
	return errhint("See the view redlock_locks on that server: another session there may hold the "
				   "lock by now.");
}

/* Raises an error: the lease had been granted. */
void
request_fail_lost(const LockRequest *request, int index)
{
	if (request_now.waited_for == index || request_now.waited_for < 0)
		loss_fail(request->names[index].name, loss_reason(request_now.asked[index].lease),
				  " right after it was granted");
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("the lease on redlock \"%s\" was lost during the wait for \"%s\"",
					request->names[index].name, request->names[request_now.waited_for].name),
			 errdetail_internal("%s", loss_reason(request_now.asked[index].lease)),
			 errhint("Call again for all locks: this call has released the locks that it had "
					 "acquired. A hold_at_most must outlast the wait for the other locks.")));
}

void
request_fail_unreachable(const LockRequest *request, int index, char *nodes)
{
	Lease *lease = lease_of(index);
	core_mask silent = lease != NULL ? pg_atomic_read_u32(&lease->silent_nodes) : PG_UINT32_MAX;
	char *advice = nodes[0] != '\0' ? node_status_advise(silent) : "";

	lease_count(COUNT_UNREACHABLE);
	if (!node_status_listed())
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("redlock \"%s\" is not acquired, since no list of nodes is in force",
							   request->names[index].name),
						errhint("See the server log for the reason. Correct redlock.nodes and "
								"redlock.nodes_next, and reload.")));
	ereport(ERROR,
			(errcode(ERRCODE_CONNECTION_FAILURE),
			 errmsg("no quorum of redlock nodes could be reached for \"%s\"",
					request->names[index].name),
			 nodes[0] != '\0' ? errdetail("No usable answer from: %s.", nodes)
							  : errdetail("The answers came too late for a ttl of %d ms.",
										  request->terms.ttl_ms),
			 advice[0] != '\0'
				 ? errhint("%s See the view redlock_nodes, or call redlock_diagnose().", advice)
			 : !lease_table->standing.begun && lease_table->standing.says != HOST_WARNS &&
					 node_status_may_have_quorum()
				 ? errhint("Try again: this host is still asking the nodes whether other hosts "
						   "have the same settings. A host that has crashed or hangs is waited for "
						   "until 31 seconds after its redlock_hosts.last_seen. See the views "
						   "redlock_nodes and redlock_hosts.")
				 : errhint("See the view redlock_nodes, or call redlock_diagnose(). A quorum is a "
						   "majority of all nodes in "
						   "redlock.nodes, and also of all nodes in redlock.nodes_next if set.")));
}

void
request_fail_deadlock(const LockRequest *request, int index, const char *cycle)
{
	pgstat_report_deadlock();
	ereport(
		ERROR,
		(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
		 errmsg("deadlock detected while waiting for redlock \"%s\"", request->names[index].name),
		 cycle[0] != '\0' ? errdetail_internal("%s", encoding_from_utf8(cycle)) : 0,
		 errhint("Roll back, release the locks of session scope, and run the transaction again. To "
				 "avoid deadlocks, take locks in the same order everywhere.")));
}

void
request_fail_silent_broker(const LockRequest *request, int index)
{
	lease_count(COUNT_UNREACHABLE);
	ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					errmsg("the redlock broker has not asked for \"%s\" in time",
						   request->names[index].name),
					errdetail(REQUEST_BROKER_SILENT),
					errhint(REQUEST_BROKER_SILENT_STEP, lease_broker_pid())));
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
					errhint("%s", request_advise_no_broker())));
}

char *
request_advise_no_broker(void)
{
	return psprintf("Try again after a second: the server restarts the broker. If the broker does "
					"not start, see the server log, and check whether max_worker_processes, now "
					"%d, is enough.",
					max_worker_processes);
}

void
request_fail_table_full(void)
{
	ereport(
		ERROR,
		(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
		 errmsg("too many redlocks are held or requested on this server"),
		 lease_table->max_locks < redlock_max_locks
			 ? errdetail("The server's lock table has room for %d, less than redlock.max_locks, "
						 "which is %d.",
						 lease_table->max_locks, redlock_max_locks)
			 : 0,
		 errhint("%s", request_advise_table_full())));
}

void
request_fail_no_entry(void)
{
	int held;
	int released;

	lease_usage(&held, &released);
	ereport(
		ERROR,
		(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
		 errmsg("released redlocks fill the lock table of this server"),
		 errdetail("%d redlocks are held or requested, of at most %d. %d released redlocks keep "
				   "their places until the broker has told the nodes.",
				   held, lease_table->max_locks, released),
		 errhint("Try again in a moment. If this error stays, see the server log, "
				 "redlock_nodes, and process %d, the broker.",
				 lease_broker_pid())));
}

char *
request_advise_table_full(void)
{
	if (lease_table->max_locks < redlock_max_locks)
		return psprintf("Raise max_locks_per_transaction, now %d, and restart the server.",
						max_locks_per_xact);
	return psprintf("Raise redlock.max_locks, now %d, and restart the server.", redlock_max_locks);
}

void
request_count_failure(const LockRequest *request, int sqlstate)
{
	/* of several locks, the lock of the last wait; of a permit, the lock itself */
	const LockName *name =
		&request->names[request->permits > 0 ? 0 : Max(request_now.waited_for, 0)];
	ResourceEvent event = sqlstate == ERRCODE_T_R_DEADLOCK_DETECTED ? RESOURCE_DEADLOCK
						  : request->terms.once                     ? RESOURCE_REFUSED
																	: RESOURCE_TIMED_OUT;

	if (sqlstate != ERRCODE_LOCK_NOT_AVAILABLE && sqlstate != ERRCODE_T_R_DEADLOCK_DETECTED)
		return;
	lease_stats_failed(name->hash, name->utf8, name->utf8_len, event,
					   event == RESOURCE_REFUSED ? -1
												 : redlock_clock_us() - request_now.call_began_us);
}
