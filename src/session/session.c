/*
 * session.c
 *		What this session holds, and when it gives it back; see session.h.
 *
 * A holding is one lease of this session with the acquisitions counted on it:
 * one counter each for the session scope, the call scope of the running CALL, and
 * that of CALLs that have ended in this transaction, and one for each
 * (sub)transaction that acquired at transaction scope.  The lease is released when
 * all are zero.  Its gate is held once at session level for the first three, and
 * once at transaction level for each (sub)transaction.
 *
 * A transaction that is attached to a detached lease has a holding for it, too, counted at
 * transaction scope.  It does not own the lease, and does not give it back; nor is it in the
 * gate.  The lease may end at any time, and its slot may be another's then.
 *
 * When things are given back:
 *
 *	 PRE_COMMIT			gates that pg_advisory_unlock_all took are entered again; then
 *						the guard: each lease must still be valid, else 40001; then
 *						the tokens of fenced calls are recorded
 *	 PRE_PREPARE		an error if a transaction-scope lock is held
 *	 COMMIT, ABORT		transaction scope.  Both run after the transaction has
 *						left the proc array, so its effects are visible (or
 *						void) before anybody else can be granted the lock, and
 *						before the gate, a lock of PostgreSQL, is freed.
 *	 ABORT_SUB			what that subtransaction acquired
 *	 DISCARD ALL		session scope
 *	 never				what is detached: that is no session's
 *	 before_shmem_exit	everything, and a request under way
 *
 * None of it allocates memory, touches a socket or can fail.
 *
 * Loss is noticed by a timer of this process at the time when validity ends, so
 * also when the broker is stopped or gone.  It does what StatementCancelHandler
 * or die would do; when that error is on its way to the log and the client, it gets
 * its true reason.
 *
 * What a session that never acquires has of all this: one hook, which looks at
 * the kind of a utility statement.  The rest is set up by the first acquire.
 */
#include "postgres.h"

#include "access/xact.h"
#include "lib/ilist.h"
#include "miscadmin.h"
#include "nodes/params.h"
#include "nodes/parsenodes.h"
#include "replication/walsender.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/utility.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "protocol/permits.h"
#include "session/detached.h"
#include "session/effects.h"
#include "session/fence.h"
#include "session/gate.h"
#include "session/loss.h"
#include "session/permit_queue.h"
#include "session/session.h"
#include "shared/alarm.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/run_report.h"

/* Habits of a session that it is warned of. */
typedef enum Misuse
{
	ENDS_AT_ONCE,
	OLD_SNAPSHOT,
	NOT_HELD,
	TRANSACTION_SCOPE
} Misuse;

/* How long a commit tries to get gates back that were taken from the session. */
#define GATE_TRIES 100
#define GATE_PAUSE_US 1000

/* This subtransaction acquired at transaction scope. */
typedef struct XactHold
{
	struct XactHold *next; /* of an outer subtransaction */
	SubTransactionId subid;
} XactHold;

typedef struct Holding
{
	uint64 hash; /* key */
	uint64 gate;
	Lease *lease;
	bool shared;
	bool attached;          /* it is not ours: */
	DetachedLease detached; /* ... but this one, as it was when we attached */
	int64 session_count;
	int64 call_count;     /* of the running outermost CALL or DO */
	int64 ended_count;    /* of such that have ended, in this transaction */
	XactHold *xact_holds; /* innermost first */
	char *fences;         /* the schema of redlock_fences, if commits of the call record
						   * the token */
	uint32 gate_era;      /* in which its gate was entered at session level; 0: it was not */
	int runs;             /* redlock_run runs under it; each relies on an acquisition */
	bool loss_signalled;  /* the timer has seen it */
	dlist_node link;      /* in holdings */
	char name[FLEXIBLE_ARRAY_MEMBER]; /* of the resource, in the server encoding */
} Holding;

/* The index of the holdings, by hashes that need no other one. */
typedef struct HoldingEntry
{
	uint64 hash;
	Holding *holding;
	char status;
} HoldingEntry;

#define SH_PREFIX holding_index
#define SH_ELEMENT_TYPE HoldingEntry
#define SH_KEY_TYPE uint64
#define SH_KEY hash
#define SH_HASH_KEY(index, key) ((uint32) (key))
#define SH_EQUAL(index, a, b) ((a) == (b))
#define SH_SCOPE static inline
#define SH_DEFINE
#define SH_DECLARE
#include "lib/simplehash.h"

static holding_index_hash *holding_index = NULL;
static dlist_head holdings = DLIST_STATIC_INIT(holdings);

/* The alarm may not read `holdings` while this is set. */
static volatile sig_atomic_t holdings_busy = false;

/* Most transactions need one: the last that was given back is kept. */
static XactHold *spare_hold = NULL;

/* Number of XactHolds in use: lets the callbacks of most transactions return at once. */
static int xact_hold_total = 0;

static char *released_lost = NULL; /* lock whose lost lease was released in this transaction, */
static char *released_reason;      /* ... and why it was lost */

static volatile sig_atomic_t loss_error = 0; /* SQLSTATE of the error that is due, */
static volatile TimestampTz loss_statement;  /* in the statement that began then */
static int call_depth = 0;
static bool guarded = false;         /* this commit, when it had all its effects */
static bool call_ended = false;      /* some ended_count is not zero */
static TimestampTz warned_statement; /* began then */

static ProcessUtility_hook_type next_ProcessUtility = NULL;
static emit_log_hook_type prev_emit_log = NULL;

static void fail_upgrade(const char *name);
static int misuse_level(Misuse misuse);
static void warn_of_scope(const LockRequest *request);
static void warn_of_snapshot(const char *name, const char *hint);
static void warn_of_attaching(const char *name, const DetachedLease *detached);
static bool called_by_client(void);
static void start_session(void);
static void check_ready(void);
static void check_limit(int more);
static void check_detached_limit(int more, int held);
static bool keep_gate(Holding *holding);
static int64 lasting(const Holding *holding);
static bool holds_in_subxact(const Holding *holding);
static void fail_held(const Holding *holding);
static void hold_all(const LockRequest *request);
static void detach_all(const LockRequest *request);
static void begin_turn(Lease *lease, TimestampTz granted_at);
static void hold_again(Holding *holding, LockScope scope);
static Holding *take(const LockName *name, LockScope scope);
static Holding *enter_holding(const LockName *held);
static void list_holding(Holding *holding);
static Holding *attach(const LockName *name, const DetachedLease *detached);
static void undo(const LockName *name, LockScope scope, bool counted);
static void count_up(Holding *holding, LockScope scope);
static void show_scope(Holding *holding);
static Holding *find_valid(uint64 hash, const char *name);
static Holding *find_holding(uint64 hash, const char *name);
static void fail_same_hash(const char *name, const char *other);
static void fail_other_permits(const Holding *holding, int permits);
static void release_holding(Holding *holding);
static void end_holding(Holding *holding, bool hand_over);
static int64 relied_on(const Holding *holding);
static void note_lost(const Holding *holding);
static void warn_of_loss(const char *name, const char *reason);
static int64 validity_us(const Holding *holding);
static bool is_valid(const Holding *holding, int64 margin_us);
static int64 token_of(const Holding *holding);
static char *reason_of(const Holding *holding);
static void fail_lost(const Holding *holding, const char *when);
static bool record_fences(void);
static void end_fence(Holding *holding);
static void guard_commit(bool effects);
static void refuse_lost(void);
static void restore_gates(void);
static void refuse_prepare(void);
static void end_transaction(void);
static void on_xact(XactEvent event, void *arg);
static void on_subxact(SubXactEvent event, SubTransactionId mine, SubTransactionId parent,
					   void *arg);
static void drop_xact_hold(Holding *holding);
static void end_subxact(SubTransactionId subid);
static void keep_subxact(SubTransactionId subid, SubTransactionId parent);
static void release_at_exit(int code, Datum arg);
static void change_holdings(bool done);
static void set_alarm(void);
static void set_alarm_for(const Holding *holding);
static void on_alarm(void);
static void signal_loss(void);
static bool is_of_loss(int sqlstate, bool cancels);
static void explain_loss(ErrorData *error);
static void run_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
						ProcessUtilityContext context, ParamListInfo params,
						QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc);
static void end_call(void);

void
session_install_hooks(void)
{
	next_ProcessUtility = ProcessUtility_hook ? ProcessUtility_hook : standard_ProcessUtility;
	ProcessUtility_hook = run_utility;
}

/*
 * Acquiring
 */

bool
session_acquire(const LockRequest *request)
{
	LockName missing[SEVERAL_MAX];
	LockRequest ask = *request;

	check_ready();
	if (request->terms.scope == SCOPE_CALL && call_depth <= request->by_call)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("redlock \"%s\" can't be acquired at call scope outside of CALL or DO",
						request->names[0].name),
				 errhint("Use the scope \"session\", or make the call a part of a procedure.")));
	start_session();
	ask.names = missing;
	ask.count = 0;
	for (int i = 0; i < request->count; i++)
	{
		Holding *holding = find_holding(request->names[i].hash, request->names[i].name);

		for (int j = 0; j < ask.count; j++)
			if (missing[j].hash == request->names[i].hash)
				fail_same_hash(request->names[i].name, missing[j].name);
		if (holding == NULL)
			missing[ask.count++] = request->names[i];
		else if (holding->attached || request->terms.scope == SCOPE_DETACHED)
			fail_held(holding);
		else if (!is_valid(holding, 0))
			fail_lost(holding, "");
		else if (holding->lease->permits != request->permits)
			fail_other_permits(holding, request->permits);
		else if (holding->shared && !request->terms.shared)
			fail_upgrade(holding->name);
	}
	if (request->terms.scope != SCOPE_DETACHED)
		check_limit(ask.count);
	else
		check_detached_limit(ask.count, lease_count_detached(GetUserId()));
	if (ask.count == 0)
		hold_all(request);
	else if (request->permits > 0 ? !permit_queue_acquire(&ask, hold_all, request)
								  : !request_acquire(&ask, hold_all, request))
		return false;
	if (request->terms.scope != SCOPE_DETACHED)
		warn_of_scope(request);
	return true;
}

/* A lock is a session's or detached, not both. */
static void
fail_held(const Holding *holding)
{
	if (holding->attached)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("this transaction is attached to redlock \"%s\"", holding->name),
				 errdetail("The lock is detached: it can't be acquired until it is released."),
				 errhint("The transaction relies on it already; there is no need to acquire it.")));
	ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
					errmsg("this session holds redlock \"%s\" already", holding->name),
					errdetail("A lock that a session holds can't be acquired detached."),
					errhint("Release it first, or end the transaction that holds it.")));
}

/* Two that both did it would wait for each other to give up sharing. */
static void
fail_upgrade(const char *name)
{
	ereport(
		ERROR,
		(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
		 errmsg("redlock \"%s\", which this session holds in shared mode, can't become "
				"exclusive",
				name),
		 errdetail("It would wait until nobody shares the lock any more, and so would each other "
				   "session that does the same: for ever."),
		 errhint("Release it first, or end the transaction, and acquire it in exclusive mode; "
				 "what it protects may have changed by then. Or acquire it so from the start.")));
}

/*
 * The client hears each warning of a misuse.  The server log gets the first one of a session: a
 * habit repeats at each call, and logging costs more than the call.
 */
static int
misuse_level(Misuse misuse)
{
	static uint32 logged = 0;
	bool again = (logged & (1u << misuse)) != 0;

	logged |= 1u << misuse;
	return again ? WARNING_CLIENT_ONLY : WARNING;
}

/* What is legal and hardly meant; once a statement of the client. */
static void
warn_of_scope(const LockRequest *request)
{
	TimestampTz statement = GetCurrentStatementStartTimestamp();
	bool ends_at_once = called_by_client() && !IsInTransactionBlock(true);

	if (warned_statement == statement)
		return;
	if (ends_at_once && request->terms.scope == SCOPE_TRANSACTION)
	{
		warned_statement = statement;
		ereport(misuse_level(ENDS_AT_ONCE),
				(errcode(ERRCODE_NO_ACTIVE_SQL_TRANSACTION),
				 errmsg("redlock \"%s\" will be released at the end of this statement",
						request->names[0].name),
				 errhint("Acquire it in a transaction block, or at the scope "
						 "\"session\".")));
	}
	else if ((!ends_at_once || request->terms.scope == SCOPE_CALL) && !request->commits &&
			 IsolationUsesXactSnapshot() && FirstSnapshotSet)
		warn_of_snapshot(request->names[0].name,
						 "Use READ COMMITTED, or acquire the lock before the transaction at the "
						 "scope \"session\".");
}

static void
warn_of_snapshot(const char *name, const char *hint)
{
	warned_statement = GetCurrentStatementStartTimestamp();
	ereport(misuse_level(OLD_SNAPSHOT),
			(errcode(ERRCODE_WARNING),
			 errmsg("the transaction's snapshot is older than the grant of redlock \"%s\"", name),
			 errdetail("What the last holder committed may not be visible to this transaction."),
			 errhint("%s", hint)));
}

/*
 * Not from within a function, procedure, trigger or COPY, or by replication, where
 * work may follow in the same statement: all of these put a callback onto the error
 * context stack while they run.  A statement of the client has none there, or only
 * that which shows its parameters.
 */
static bool
called_by_client(void)
{
	for (ErrorContextCallback *c = error_context_stack; c != NULL; c = c->previous)
		if (c->callback != ParamsErrorCallback)
			return false;
	return true;
}

/* Once in a session.  What can fail comes before what must not be done twice. */
static void
start_session(void)
{
	holding_index_hash *index;

	if (holding_index != NULL)
		return;

	alarm_set_up(ALARM_LOSS, on_alarm);
	gate_set_up();
	index = holding_index_create(TopMemoryContext, 16, NULL);
	RegisterSubXactCallback(on_subxact, NULL);
	effects_watch(refuse_lost, on_xact);
	before_shmem_exit(release_at_exit, (Datum) 0);
	prev_emit_log = emit_log_hook;
	emit_log_hook = explain_loss;
	holding_index = index;
}

/* That it is preloaded was checked by who called us. */
static void
check_ready(void)
{
	if (!IsPostmasterEnvironment)
		request_fail_no_broker(); /* at once: none will come */
	/* the server waits for walsenders after the broker, and the broker for locks */
	if (am_walsender)
		ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						errmsg("redlocks can't be used in a replication connection")));
	if (redlock_nodes()->count == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("redlock.nodes is not set"),
				 errhint("Add this line to postgresql.conf and reload it: redlock.nodes = "
						 "'redis://host1, redis://host2, redis://host3'. If there is one, the "
						 "log of the server says why it is not in force.")));
}

static void
check_limit(int more)
{
	int held = (int) holding_index->members;

	if (more == 0 || held + more <= redlock_max_locks_per_session)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("this session holds too many redlocks"),
			 more == 1 ? errdetail("It holds %d, the limit of redlock.max_locks_per_session.",
								   redlock_max_locks_per_session)
					   : errdetail("It holds %d and asks for %d more; the limit of "
								   "redlock.max_locks_per_session is %d.",
								   held, more, redlock_max_locks_per_session),
			 errhint("Release some, or let a superuser raise redlock.max_locks_per_session.")));
}

/* No session's end releases them, so what bounds a session bounds a role on this server. */
static void
check_detached_limit(int more, int held)
{
	if (held + more <= redlock_max_locks_per_session)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("role \"%s\" holds too many detached redlocks on this server",
					GetUserNameFromId(GetUserId(), false)),
			 errdetail("It holds %d and asks for %d more; the limit of "
					   "redlock.max_locks_per_session is %d.",
					   held, more, redlock_max_locks_per_session),
			 errhint("Release some by redlock_release(resource, token), see the view "
					 "redlock_locks, or let a superuser raise redlock.max_locks_per_session.")));
}

/* What was not held yet has been granted.  All or none. */
static void
hold_all(const LockRequest *request)
{
	volatile int done = 0;

	if (request->terms.scope == SCOPE_DETACHED)
	{
		detach_all(request);
		return;
	}
	PG_TRY();
	{
		for (; done < request->count; done++)
		{
			const LockName *name = &request->names[done];
			Holding *holding = find_holding(name->hash, name->name);

			if (holding != NULL && !is_valid(holding, 0))
				fail_lost(holding, ""); /* while others were waited for */
			if (holding != NULL)
				hold_again(holding, request->terms.scope);
			else
				holding = take(name, request->terms.scope);
			count_up(holding, request->terms.scope);
			set_alarm_for(holding);
			if (request->tokens != NULL)
				request->tokens[done] = token_of(holding);
		}
	}
	PG_CATCH();
	{
		for (int i = 0; i <= done; i++)
			undo(&request->names[i], request->terms.scope, i < done);
		PG_RE_THROW();
	}
	PG_END_TRY();
}

/*
 * Others of the role may have been granted some meanwhile, and may be just now: one of them after
 * the other.  The lease first: the gate is for who comes next.
 *
 * A lease may have ended since its grant: this process may have waited or been stopped, or the
 * server stops.  A caller must not get its token, and nobody would release the others.
 */
static void
detach_all(const LockRequest *request)
{
	DetachedLease detached[SEVERAL_MAX];
	TimestampTz granted_at = GetCurrentTimestamp(); /* nothing that may wait is under the lock */
	int held;
	int ended = -1;

	lease_begin_detaching();
	held = lease_count_detached(GetUserId());
	if (held + request->count > redlock_max_locks_per_session)
	{
		lease_end_detaching();
		check_detached_limit(request->count, held);
	}
	for (int i = 0; i < request->count; i++)
	{
		uint64 gate;
		Lease *lease = request_take(&gate);

		begin_turn(lease, granted_at);
		if (request->tokens != NULL)
			request->tokens[i] = lease->token;
		lease_detach(lease, &detached[i]);
		gate_leave(gate, false, false);
	}
	lease_end_detaching();
	for (int i = 0; i < request->count && ended < 0; i++)
		if (lease_detached_validity_us(&detached[i]) == 0)
			ended = i;
	if (ended < 0)
		return;
	for (int i = 0; i < request->count; i++)
		(void) lease_release_detached(&detached[i]);
	loss_fail(request->names[ended].name, detached_reason(&detached[ended]), "");
}

/* Of a lease that was granted, handed over or joined. */
static void
begin_turn(Lease *lease, TimestampTz granted_at)
{
	if (lease->handovers == 0 && lease->token == 0)
		lease->since = granted_at != 0 ? granted_at : GetCurrentTimestamp();
	lease->token = lease_token(lease); /* the same for all who share it */
}

/* In vain only after pg_advisory_unlock_all; the lease is ours all the same. */
static void
hold_again(Holding *holding, LockScope scope)
{
	if (scope != SCOPE_TRANSACTION)
		(void) keep_gate(holding);
	else if (!holds_in_subxact(holding))
		(void) gate_enter_again(holding->gate, holding->shared, false);
}

/* It was granted: make it a holding, with nothing counted on it. */
static Holding *
take(const LockName *granted, LockScope scope)
{
	Holding *holding = enter_holding(granted);

	holding->lease = request_take(&holding->gate);
	holding->shared = holding->lease->shared;
	begin_turn(holding->lease, 0);
	holding->gate_era = scope != SCOPE_TRANSACTION ? gate_era() : 0;
	list_holding(holding);
	return holding;
}

/* With nothing counted on it; it is not yet listed. */
static Holding *
enter_holding(const LockName *held)
{
	size_t name_size = strlen(held->name) + 1;
	bool found;
	HoldingEntry *entry;
	Holding *holding;

	entry = holding_index_insert(holding_index, held->hash, &found);
	Assert(!found);
	holding = MemoryContextAllocExtended(TopMemoryContext, offsetof(Holding, name) + name_size,
										 MCXT_ALLOC_NO_OOM);
	if (holding == NULL)
	{
		holding_index_delete(holding_index, held->hash);
		ereport(ERROR, (errcode(ERRCODE_OUT_OF_MEMORY), errmsg("out of memory")));
	}
	entry->holding = holding;
	holding->hash = held->hash;
	holding->gate = 0;
	holding->shared = false;
	holding->attached = false;
	memcpy(holding->name, held->name, name_size);
	holding->session_count = 0;
	holding->call_count = 0;
	holding->ended_count = 0;
	holding->xact_holds = NULL;
	holding->fences = NULL;
	holding->gate_era = 0;
	holding->runs = 0;
	holding->loss_signalled = false;
	return holding;
}

/* For the callbacks, and the alarm. */
static void
list_holding(Holding *holding)
{
	change_holdings(false);
	dlist_push_tail(&holdings, &holding->link);
	change_holdings(true);
}

/* After an error: what is held at transaction scope is given back with the transaction. */
static void
undo(const LockName *name, LockScope scope, bool counted)
{
	Holding *holding = find_holding(name->hash, name->name);

	if (holding == NULL)
		return;
	if (counted && scope == SCOPE_SESSION)
		holding->session_count--;
	else if (counted && scope == SCOPE_CALL)
		holding->call_count--;
	release_holding(holding);
}

static void
count_up(Holding *holding, LockScope scope)
{
	switch (scope)
	{
		case SCOPE_SESSION:
			holding->session_count++;
			break;
		case SCOPE_CALL:
			holding->call_count++;
			break;
		case SCOPE_DETACHED:
			Assert(false); /* it has no holding */
			break;
		case SCOPE_TRANSACTION:
			if (!holds_in_subxact(holding))
			{
				XactHold *hold = spare_hold != NULL
									 ? spare_hold
									 : MemoryContextAlloc(TopMemoryContext, sizeof(XactHold));

				spare_hold = NULL;
				hold->next = holding->xact_holds;
				hold->subid = GetCurrentSubTransactionId();
				holding->xact_holds = hold;
				xact_hold_total++;
			}
			break;
	}
	show_scope(holding);
}

/* Acquisitions that outlast a commit, or at least the statement before it. */
static int64
lasting(const Holding *holding)
{
	return holding->session_count + holding->call_count + holding->ended_count;
}

/* Was it acquired at transaction scope in this very subtransaction? */
static bool
holds_in_subxact(const Holding *holding)
{
	return holding->xact_holds != NULL &&
		   holding->xact_holds->subid == GetCurrentSubTransactionId();
}

/* Enter its gate at session level, unless it is held so; if that can be done now. */
static bool
keep_gate(Holding *holding)
{
	if (holding->gate_era != gate_era() && gate_enter_again(holding->gate, holding->shared, true))
		holding->gate_era = gate_era();
	return holding->gate_era == gate_era();
}

static void
show_scope(Holding *holding)
{
	if (holding->attached || holding->shared)
		return; /* each session that shares it has its own */
	holding->lease->scope = holding->session_count > 0 ? SCOPE_SESSION
							: lasting(holding) > 0     ? SCOPE_CALL
													   : SCOPE_TRANSACTION;
}

/*
 * Looking and releasing
 */

bool
session_release(uint64 hash, const char *name)
{
	Holding *holding = find_holding(hash, name);
	bool valid;

	if (holding == NULL || holding->attached)
	{
		ereport(misuse_level(NOT_HELD),
				(errcode(ERRCODE_WARNING),
				 errmsg("this session does not hold redlock \"%s\"", name),
				 errhint("See the view redlock_locks. A detached lock is released by its token.")));
		return false;
	}
	if (lasting(holding) == 0)
	{
		ereport(misuse_level(TRANSACTION_SCOPE),
				(errcode(ERRCODE_WARNING),
				 errmsg("redlock \"%s\" is held at transaction scope only", name),
				 errhint("It is released by the end of the transaction.")));
		return false;
	}
	valid = is_valid(holding, 0);
	if (lasting(holding) <= relied_on(holding))
	{
		if (!valid)
			fail_lost(holding, "");
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("redlock \"%s\" can't be released while redlock_run relies on it", name),
				 errdetail("The rest of the run would go on without the lock."),
				 errhint("Let the run end: the lock is released with it.")));
	}
	if (!valid)
	{
		warn_of_loss(name, reason_of(holding));
		note_lost(holding);
	}

	if (holding->session_count > 0)
		holding->session_count--;
	else if (holding->call_count > 0)
		holding->call_count--;
	else
		holding->ended_count--;
	release_holding(holding);
	return valid;
}

/* Acquisitions that stay until the runs of redlock_run have ended, and their last transaction. */
static int64
relied_on(const Holding *holding)
{
	return Max(holding->runs, holding->fences != NULL ? 1 : 0);
}

void
session_begin_run(uint64 hash, const char *name)
{
	find_holding(hash, name)->runs++;
}

void
session_end_run(uint64 hash, const char *name)
{
	find_holding(hash, name)->runs--;
}

/* The release must not hide the loss from the commit of what was done before. */
static void
note_lost(const Holding *holding)
{
	MemoryContext context;

	if (released_lost != NULL || !IsTransactionState())
		return;
	context = MemoryContextSwitchTo(TopTransactionContext);
	released_reason = reason_of(holding);
	released_lost = pstrdup(holding->name);
	MemoryContextSwitchTo(context);
}

static void
warn_of_loss(const char *name, const char *reason)
{
	ereport(WARNING,
			(errcode(ERRCODE_WARNING), errmsg("the lease on redlock \"%s\" had been lost", name),
			 errdetail_internal("%s", reason)));
}

int64
session_release_all(void)
{
	dlist_mutable_iter iter;
	int64 released = 0;

	dlist_foreach_modify(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);
		int64 stays = Min(relied_on(holding), holding->call_count + holding->ended_count);
		int64 count = lasting(holding) - stays;

		if (count == 0)
			continue;
		if (!is_valid(holding, 0))
			note_lost(holding);
		holding->session_count = 0;
		holding->call_count = Min(holding->call_count, stays);
		holding->ended_count = stays - holding->call_count;
		release_holding(holding);
		released += count;
	}
	return released;
}

int64
session_check(uint64 hash, const char *name)
{
	return validity_us(find_valid(hash, name));
}

char *
session_loss_reason(uint64 hash, const char *name)
{
	Holding *holding = find_holding(hash, name);

	return holding != NULL && !is_valid(holding, 0) ? reason_of(holding) : NULL;
}

int64
session_valid_token(uint64 hash, const char *name)
{
	return token_of(find_valid(hash, name));
}

char *
session_fenced_name(uint64 hash, const char *name)
{
	const Lease *lease = find_valid(hash, name)->lease;
	int len = strlen(name);
	char *fenced = palloc0(len + PERMITS_SUFFIX_MAX + 1);

	memcpy(fenced, name, len);
	if (lease->permits > 0)
		(void) permits_name(fenced, name, len, permits_number(lease->key, lease->key_len));
	return fenced;
}

bool
session_shares(uint64 hash, const char *name)
{
	Holding *holding = find_holding(hash, name);

	return holding != NULL && holding->shared;
}

int64
session_token(uint64 hash, const char *name)
{
	Holding *holding = find_holding(hash, name);

	return holding != NULL ? token_of(holding) : 0;
}

void
session_fence(uint64 hash, const char *name, const char *schema)
{
	Holding *holding;

	fence_pass(schema, name);
	holding = find_valid(hash, name);
	if (holding->fences == NULL)
		holding->fences = MemoryContextStrdup(TopMemoryContext, schema);
}

static Holding *
find_valid(uint64 hash, const char *name)
{
	Holding *holding = find_holding(hash, name);

	if (holding == NULL)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("this session does not hold redlock \"%s\"", name),
						errhint("Acquire it first. Of a detached lock, give the token, or call "
								"redlock_attach in the same transaction.")));
	if (!is_valid(holding, 0))
		fail_lost(holding, "");
	return holding;
}

static Holding *
find_holding(uint64 hash, const char *name)
{
	HoldingEntry *entry = NULL;

	if (!dlist_is_empty(&holdings))
		entry = holding_index_lookup(holding_index, hash);
	if (entry == NULL)
		return NULL;
	if (strcmp(entry->holding->name, name) != 0)
		fail_same_hash(name, entry->holding->name);
	return entry->holding;
}

static void
fail_same_hash(const char *name, const char *other)
{
	ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
					errmsg("redlock \"%s\" can't be used while this session holds \"%s\", which "
						   "has the same hash",
						   name, other),
					errhint("Choose another name.")));
}

static void
fail_other_permits(const Holding *holding, int permits)
{
	ereport(
		ERROR,
		(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
		 errmsg("this session holds redlock \"%s\" with another number of slots", holding->name),
		 errdetail("It holds one of %d, and asks for one of %d; who says no number says 1.",
				   Max(holding->lease->permits, 1), Max(permits, 1)),
		 errhint("Say the same number of slots each time.")));
}

/*
 * Some acquisitions have been counted down.  The lease first: the gate is for who
 * comes next.
 */
static void
release_holding(Holding *holding)
{
	uint64 gate = holding->gate;
	bool shared = holding->shared;
	bool leave = lasting(holding) == 0 && holding->gate_era == gate_era();

	if (leave)
		holding->gate_era = 0;
	show_scope(holding);
	if (lasting(holding) == 0 && holding->xact_holds == NULL)
		end_holding(holding, true);
	if (leave)
		gate_leave(gate, shared, true);
}

/* No allocation, no error: runs in callbacks. */
static void
end_holding(Holding *holding, bool hand_over)
{
	/* first out of the timer's sight: the lease may have another owner at once */
	change_holdings(false);
	dlist_delete(&holding->link);
	change_holdings(true);
	if (!holding->attached)
		lease_release(holding->lease, hand_over ? gate_waiters : NULL);
	end_fence(holding);
	(void) holding_index_delete(holding_index, holding->hash);
	pfree(holding);
}

static bool
is_valid(const Holding *holding, int64 margin_us)
{
	return validity_us(holding) > margin_us;
}

/* Async-signal-safe. */
static int64
validity_us(const Holding *holding)
{
	return holding->attached ? lease_detached_validity_us(&holding->detached)
							 : lease_validity_us(holding->lease);
}

static int64
token_of(const Holding *holding)
{
	return holding->attached ? holding->detached.token : holding->lease->token;
}

static char *
reason_of(const Holding *holding)
{
	return holding->attached ? detached_reason(&holding->detached) : loss_reason(holding->lease);
}

static void
fail_lost(const Holding *holding, const char *when)
{
	loss_fail(holding->name, reason_of(holding), when);
}

/*
 * Detached locks
 */

void
session_attach(const LockName *name, int64 token)
{
	Holding *holding = find_holding(name->hash, name->name);
	DetachedLease detached;

	start_session();
	if (holding != NULL && !is_valid(holding, 0))
		fail_lost(holding, ""); /* whether or not another is detached by now */
	detached_find(name, token, &detached);
	if (lease_detached_validity_us(&detached) == 0)
		detached_fail_ended(name);
	if (holding == NULL)
	{
		check_limit(1);
		holding = attach(name, &detached);
	}
	else if (token_of(holding) != token)
		fail_lost(holding, ""); /* just now */
	PG_TRY();
	{
		count_up(holding, SCOPE_TRANSACTION);
	}
	PG_CATCH();
	{
		release_holding(holding);
		PG_RE_THROW();
	}
	PG_END_TRY();
	set_alarm_for(holding);
	warn_of_attaching(name->name, &detached);
}

/* As warn_of_scope.  The snapshot was taken after the transaction had begun. */
static void
warn_of_attaching(const char *name, const DetachedLease *detached)
{
	TimestampTz statement = GetCurrentStatementStartTimestamp();

	if (warned_statement == statement)
		return;
	if (called_by_client() && !IsInTransactionBlock(true))
	{
		warned_statement = statement;
		ereport(misuse_level(ENDS_AT_ONCE),
				(errcode(ERRCODE_NO_ACTIVE_SQL_TRANSACTION),
				 errmsg("redlock_attach for \"%s\" ends with this statement", name),
				 errhint("Call redlock_attach in a transaction block, before the work.")));
	}
	else if (IsolationUsesXactSnapshot() &&
			 GetCurrentTransactionStartTimestamp() < detached->lease->since)
		warn_of_snapshot(name, "Use READ COMMITTED, or begin the transaction after the grant.");
}

static Holding *
attach(const LockName *name, const DetachedLease *detached)
{
	Holding *holding = enter_holding(name);

	holding->lease = detached->lease;
	holding->attached = true;
	holding->detached = *detached;
	list_holding(holding);
	return holding;
}

/* What this transaction has written is not yet visible: the next holder would miss it. */
bool
session_release_detached(const LockName *name, int64 token)
{
	Holding *holding = find_holding(name->hash, name->name);
	DetachedLease detached;
	bool valid;

	detached_find(name, token, &detached);
	if (holding != NULL && holding->attached && holding->detached.token == token)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_IN_USE),
				 errmsg("redlock \"%s\" can't be released while this transaction is attached to it",
						name->name),
				 errdetail("Others would not yet see what the transaction does."),
				 errhint("Release it after the commit.")));
	valid = lease_detached_validity_us(&detached) > 0;
	if (!lease_release_detached(&detached))
		detached_fail_ended(name);
	if (!valid)
		warn_of_loss(name->name, detached_reason(&detached));
	return valid;
}

/*
 * Transaction end
 */

/*
 * It may be registered several times (effects.c).  The first to be called comes before other
 * extensions commit elsewhere.  If their callbacks are the first to have effects, a later one
 * looks again.
 */
static void
on_xact(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
			if (guarded)
				break;
			guarded = effects_are_there();
			restore_gates();
			guard_commit(guarded);
			if (guarded && record_fences())
				guard_commit(true); /* it may have waited */
			break;
		case XACT_EVENT_PRE_PREPARE:
			refuse_prepare();
			restore_gates();
			guard_commit(effects_are_there());
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			guarded = false;
			released_lost = NULL;
			effects_end_transaction();
			end_transaction();
			break;
		case XACT_EVENT_PARALLEL_PRE_COMMIT:
		case XACT_EVENT_PARALLEL_COMMIT:
		case XACT_EVENT_PARALLEL_ABORT:
			break;
	}
}

/*
 * A transaction with effects records the token as it commits: a newer holder has recorded its
 * own before its work, so an older holder does not commit.
 */
static bool
record_fences(void)
{
	bool read_only = XactReadOnly;
	bool recorded = false;
	dlist_iter iter;

	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		if (holding->fences == NULL)
			continue;
		PushActiveSnapshot(GetTransactionSnapshot()); /* that of the portal is gone, or it is */
		XactReadOnly = false; /* it may have been set after the transaction wrote */
		fence_pass(holding->fences, holding->name);
		XactReadOnly = read_only;
		PopActiveSnapshot();
		recorded = true;
	}
	return recorded;
}

static void
end_fence(Holding *holding)
{
	if (holding->fences != NULL)
		pfree(holding->fences);
	holding->fences = NULL;
}

/*
 * A lost session-scope lease must not keep a session from looking around and
 * releasing it, so a transaction without effects does not fail.
 */
static void
guard_commit(bool effects)
{
	dlist_iter iter;

	if (effects && released_lost != NULL)
		loss_fail(released_lost, released_reason, " before the commit");
	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		if (holding->xact_holds == NULL && lasting(holding) == holding->session_count && !effects)
			continue;
		if (is_valid(holding, redlock_commit_margin_ms * INT64CONST(1000)))
			continue;
		if (!is_valid(holding, 0))
			fail_lost(holding, " before the commit");
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("the lease on redlock \"%s\" might end during the commit", holding->name),
				 errdetail("Less of its validity is left than redlock.commit_margin, %d ms.",
						   redlock_commit_margin_ms),
				 errhint("Start the work over. A longer ttl leaves more time.")));
	}
}

/* Before an effect that the end of the transaction may come too late for. */
static void
refuse_lost(void)
{
	dlist_iter iter;

	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		if (!is_valid(holding, 0))
			fail_lost(holding, "");
	}
}

/*
 * Enter again what pg_advisory_unlock_all took in this transaction.  A waiter that
 * came through meanwhile finds the lease taken, and leaves again at once.
 */
static void
restore_gates(void)
{
	static uint32 complete_era = 1;
	int tries = GATE_TRIES;
	dlist_iter iter;

	if (complete_era == gate_era())
		return;
	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		while (lasting(holding) > 0 && !keep_gate(holding))
		{
			if (tries-- == 0)
				return; /* at the next commit, then */
			pg_usleep(GATE_PAUSE_US);
		}
	}
	complete_era = gate_era();
}

static void
refuse_prepare(void)
{
	dlist_iter iter;

	dlist_foreach(iter, &holdings)
	{
		const Holding *holding = dlist_container(Holding, link, iter.cur);

		if (holding->attached)
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that is attached to redlock \"%s\"",
							holding->name),
					 errdetail("The lock would not be looked after until COMMIT PREPARED."),
					 errhint("Use COMMIT.")));
		if (holding->xact_holds != NULL || holding->ended_count > 0)
			ereport(ERROR, (errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
							errmsg("cannot PREPARE a transaction that holds redlock \"%s\" at "
								   "transaction or call scope",
								   holding->name),
							errhint("Acquire it at session scope, or use COMMIT.")));
	}
}

static void
end_transaction(void)
{
	dlist_mutable_iter iter;

	if (xact_hold_total > 0 || call_ended)
		dlist_foreach_modify(iter, &holdings)
		{
			Holding *holding = dlist_container(Holding, link, iter.cur);

			while (holding->xact_holds != NULL)
				drop_xact_hold(holding);
			holding->ended_count = 0;
			if (holding->call_count == 0)
				end_fence(holding);
			release_holding(holding);
		}
	call_ended = false;
	Assert(xact_hold_total == 0);
}

static void
on_subxact(SubXactEvent event, SubTransactionId mine, SubTransactionId parent, void *arg)
{
	if (xact_hold_total == 0)
		return;
	if (event == SUBXACT_EVENT_ABORT_SUB)
		end_subxact(mine);
	else if (event == SUBXACT_EVENT_COMMIT_SUB)
		keep_subxact(mine, parent);
}

/* The innermost one. */
static void
drop_xact_hold(Holding *holding)
{
	XactHold *hold = holding->xact_holds;

	holding->xact_holds = hold->next;
	if (spare_hold == NULL)
		spare_hold = hold;
	else
		pfree(hold);
	xact_hold_total--;
}

static void
end_subxact(SubTransactionId subid)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);
		XactHold *hold = holding->xact_holds;

		if (hold == NULL || hold->subid != subid)
			continue;
		drop_xact_hold(holding);
		release_holding(holding);
	}
}

static void
keep_subxact(SubTransactionId subid, SubTransactionId parent)
{
	dlist_iter iter;

	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);
		XactHold *hold = holding->xact_holds;

		if (hold == NULL || hold->subid != subid)
			continue;
		if (hold->next != NULL && hold->next->subid == parent)
			drop_xact_hold(holding);
		else
			hold->subid = parent;
	}
}

/*
 * Runs before the abort of a transaction that is still open; it can't commit
 * any more, so nothing of it will ever be seen.
 */
static void
release_at_exit(int code, Datum arg)
{
	dlist_mutable_iter iter;

	permit_queue_give_up();
	request_give_up();
	lease_leave_gates();
	run_report_end_session();
	dlist_foreach_modify(iter, &holdings)
		end_holding(dlist_container(Holding, link, iter.cur), false);
	xact_hold_total = 0;
}

/*
 * Loss
 */

/* Before and after the list is changed, for the alarm's eyes. */
static void
change_holdings(bool done)
{
	pg_compiler_barrier();
	holdings_busy = !done;
	pg_compiler_barrier();
}

/* To ring when the first lease of this session would end. */
static void
set_alarm(void)
{
	int64 first_us = PG_INT64_MAX;
	dlist_iter iter;

	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		if (!holding->loss_signalled)
			first_us = Min(first_us, lease_valid_until_us(holding->lease));
	}
	if (first_us != PG_INT64_MAX)
		alarm_at(ALARM_LOSS, first_us);
}

/*
 * For a new one.  Most often it is set already, for an earlier lease that may have
 * been released since: then it rings for nothing, once in a ttl.
 */
static void
set_alarm_for(const Holding *holding)
{
	int64 at_us = lease_valid_until_us(holding->lease);

	if (at_us < alarm_due_us(ALARM_LOSS))
		alarm_at(ALARM_LOSS, at_us);
}

/*
 * In the signal handler: validity ends now, or the broker says that a lease was
 * lost before.  Most often the lease was renewed meanwhile, and it is set anew.
 */
static void
on_alarm(void)
{
	bool lost = false;
	dlist_iter iter;

	if (holdings_busy)
	{
		alarm_at(ALARM_LOSS, redlock_clock_us() + 1000);
		return;
	}
	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		if (!holding->loss_signalled && !is_valid(holding, 0))
			lost = holding->loss_signalled = true;
	}
	if (lost)
		signal_loss();
	set_alarm();
}

/* What StatementCancelHandler and die do.  Async-signal-safe. */
static void
signal_loss(void)
{
	if (redlock_on_loss == ON_LOSS_ERROR)
		return;
	gate_give_way();
	loss_statement = GetCurrentStatementStartTimestamp();
	if (redlock_on_loss == ON_LOSS_TERMINATE)
	{
		loss_error = ERRCODE_ADMIN_SHUTDOWN;
		ProcDiePending = true;
	}
	else
	{
		loss_error = ERRCODE_QUERY_CANCELED;
		QueryCancelPending = true;
	}
	InterruptPending = true;
	SetLatch(MyLatch);
}

static bool
is_of_loss(int sqlstate, bool cancels)
{
	return loss_error != 0 && sqlstate == loss_error &&
		   (!cancels || loss_statement == GetCurrentStatementStartTimestamp());
}

bool
session_is_cancelled_by_loss(void)
{
	return is_of_loss(geterrcode(), true);
}

/*
 * Say why a statement is cancelled, or the session ends.  Hook: an error is on its
 * way to the log and the client; what is allocated here goes with it.
 */
static void
explain_loss(ErrorData *error)
{
	bool cancels = error->elevel == ERROR;
	dlist_iter iter;

	if (error->elevel >= ERROR && is_of_loss(error->sqlerrcode, cancels))
		dlist_foreach(iter, &holdings)
		{
			Holding *holding = dlist_container(Holding, link, iter.cur);

			if (is_valid(holding, 0))
				continue;
			loss_error = 0;
			error->message = loss_message(cancels, holding->name);
			error->detail = reason_of(holding);
			error->hint = pstrdup(cancels ? LOSS_HINT
										  : "Another session may hold the lock by now. "
											"Start the work over in a new session.");
			break;
		}
	if (prev_emit_log)
		prev_emit_log(error);
}

/*
 * Statements
 */

/*
 * Counts how deep CALL and DO are nested, sees DISCARD ALL, and, where the session has taken a
 * lock, statements with effects.  All other statements pass by: nothing is pushed, so nothing
 * can be left behind.
 */
static void
run_utility(PlannedStmt *pstmt, const char *queryString, bool readOnlyTree,
			ProcessUtilityContext context, ParamListInfo params, QueryEnvironment *queryEnv,
			DestReceiver *dest, QueryCompletion *qc)
{
	Node *statement = pstmt->utilityStmt;
	List *foreign = effects_begin_utility(statement);

	if (IsA(statement, CallStmt) || IsA(statement, DoStmt))
	{
		call_depth++;
		PG_TRY();
		{
			next_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest,
								qc);
		}
		PG_FINALLY();
		{
			if (--call_depth == 0)
				end_call();
		}
		PG_END_TRY();
		return;
	}

	/* pstmt may be gone afterwards */
	if (IsA(statement, DiscardStmt) && ((DiscardStmt *) statement)->target == DISCARD_ALL)
	{
		next_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
		session_release_all();
	}
	else
		next_ProcessUtility(pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc);
	if (foreign != NIL)
		effects_end_utility(foreign);
}

/*
 * The outermost CALL or DO has ended, but its last transaction has not: what it
 * holds is released with that one, by commit or abort.
 */
static void
end_call(void)
{
	dlist_iter iter;

	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		call_ended = call_ended || holding->call_count > 0;
		holding->ended_count += holding->call_count;
		holding->call_count = 0;
	}
}
