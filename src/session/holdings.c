/*
 * holdings.c
 *		The table of the locks that this session holds; see holdings.h.
 *
 * An index by hash finds a holding by name; a list serves the loops.  Callbacks of the transaction
 * and the handler of the alarm read the list.  The handler may interrupt a change of the list: a
 * flag then tells the handler to come back later.
 *
 * A function that a callback calls allocates nothing and never fails.  Holdings, XactHolds and
 * texts are allocated before, and freed in callbacks.
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "session/detached.h"
#include "session/gate.h"
#include "session/holdings.h"
#include "session/loss.h"
#include "shared/guc.h"

/* The index of the holdings.  The key is a hash already, so needs no second hash function. */
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
dlist_head holdings = DLIST_STATIC_INIT(holdings);

/* The alarm may not read `holdings` while this is set. */
static volatile sig_atomic_t holdings_busy = false;

/* A freed XactHold is kept for the next transaction, since most transactions need one. */
static XactHold *spare_hold = NULL;

/* Number of XactHolds in use: lets the callbacks of most transactions return at once. */
static int xact_hold_total = 0;
static int fenced_total = 0; /* holdings with `fences` */

static void show_scope(Holding *holding);
static void end_holding(Holding *holding, bool hand_over);
static void change_holdings(bool done);

void
holdings_set_up(void)
{
	if (holding_index == NULL)
		holding_index = holding_index_create(TopMemoryContext, 16, NULL);
}

void
holdings_check_limit(int more)
{
	int held = (int) holding_index->members;

	if (more == 0 || held + more <= redlock_max_locks_per_session)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("this session holds too many redlocks"),
			 more == 1
				 ? errdetail("The session holds %d, the limit of redlock.max_locks_per_session.",
							 redlock_max_locks_per_session)
				 : errdetail("The session holds %d and asks for %d more; the limit of "
							 "redlock.max_locks_per_session is %d.",
							 held, more, redlock_max_locks_per_session),
			 errhint("Release some, or let a superuser raise redlock.max_locks_per_session.")));
}

/*
 * The table
 */

Holding *
holding_find(uint64 hash, const char *name)
{
	HoldingEntry *entry = NULL;

	if (!dlist_is_empty(&holdings))
		entry = holding_index_lookup(holding_index, hash);
	if (entry == NULL)
		return NULL;
	if (strcmp(entry->holding->name, name) != 0)
		holding_fail_same_hash(name, entry->holding->name);
	return entry->holding;
}

Holding *
holding_find_valid(uint64 hash, const char *name)
{
	Holding *holding = holding_find(hash, name);

	if (holding == NULL)
		ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
						errmsg("this session does not hold redlock \"%s\"", name),
						errhint("Acquire the lock first. For a detached lock, give the token, or "
								"call redlock_attach in the same transaction.")));
	if (!holding_is_valid(holding, 0))
		holding_fail_lost(holding, "");
	return holding;
}

void
holding_fail_same_hash(const char *name, const char *other)
{
	ereport(ERROR, (errcode(ERRCODE_OBJECT_IN_USE),
					errmsg("redlock \"%s\" can't be used while this session holds \"%s\", which "
						   "has the same hash",
						   name, other),
					errhint("Choose another name.")));
}

Holding *
holding_enter(const LockName *held)
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
	holding->commits = false;
	memcpy(holding->name, held->name, name_size);
	holding->session_count = 0;
	holding->call_count = 0;
	holding->ended_count = 0;
	holding->xact_holds = NULL;
	holding->fences = NULL;
	holding->asks = 0;
	holding->gate_era = 0;
	holding->runs = 0;
	holding->loss_signalled = false;
	return holding;
}

void
holding_enlist(Holding *holding)
{
	change_holdings(false);
	dlist_push_tail(&holdings, &holding->link);
	change_holdings(true);
}

/* Called before and after a change of the list, for the alarm. */
static void
change_holdings(bool done)
{
	pg_compiler_barrier();
	holdings_busy = !done;
	pg_compiler_barrier();
}

bool
holdings_are_changing(void)
{
	return holdings_busy;
}

/*
 * Acquisitions
 */

void
holding_count_up(Holding *holding, LockScope scope)
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
			Assert(false); /* detached locks have no holding */
			break;
		case SCOPE_TRANSACTION:
			if (!holding_is_of_subxact(holding))
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

/* Counts the acquisitions that outlast a commit, or at least the statement before the commit. */
int64
holding_lasting(const Holding *holding)
{
	return holding->session_count + holding->call_count + holding->ended_count;
}

bool
holding_is_of_subxact(const Holding *holding)
{
	return holding->xact_holds != NULL &&
		   holding->xact_holds->subid == GetCurrentSubTransactionId();
}

int
holdings_xact_holds(void)
{
	return xact_hold_total;
}

void
holding_drop_xact_hold(Holding *holding)
{
	XactHold *hold = holding->xact_holds;

	holding->xact_holds = hold->next;
	if (spare_hold == NULL)
		spare_hold = hold;
	else
		pfree(hold);
	xact_hold_total--;
}

bool
holding_keep_gate(Holding *holding)
{
	if (holding->gate_era != gate_era() &&
		gate_enter_again(holding->gate,
						 (GateUse){.shared = holding->shared, .session_level = true}))
		holding->gate_era = gate_era();
	return holding->gate_era == gate_era();
}

static void
show_scope(Holding *holding)
{
	if (holding->attached || holding->shared)
		return; /* each reader has a scope of its own */
	holding->lease->scope = holding->session_count > 0     ? SCOPE_SESSION
							: holding_lasting(holding) > 0 ? SCOPE_CALL
														   : SCOPE_TRANSACTION;
}

/* Releases the lease before the gate, so that the next session in the gate finds the lease. */
void
holding_release(Holding *holding)
{
	uint64 gate = holding->gate;
	bool shared = holding->shared;
	bool leave = holding_lasting(holding) == 0 && holding->gate_era == gate_era();

	if (leave)
		holding->gate_era = 0;
	show_scope(holding);
	if (holding_lasting(holding) == 0 && holding->xact_holds == NULL)
		end_holding(holding, true);
	if (leave)
		gate_leave(gate, (GateUse){.shared = shared, .session_level = true});
}

/* Runs in callbacks: allocates nothing, and never fails. */
static void
end_holding(Holding *holding, bool hand_over)
{
	/* first hide the lease from the alarm: another owner may take the lease at once */
	change_holdings(false);
	dlist_delete(&holding->link);
	change_holdings(true);
	if (!holding->attached)
		lease_release(holding->lease, hand_over ? gate_waiters : NULL);
	else if (holding->commits)
		lease_end_commit(&holding->detached);
	holding_end_fence(holding);
	(void) holding_index_delete(holding_index, holding->hash);
	pfree(holding);
}

void
holding_fence(Holding *holding, const char *schema)
{
	if (holding->fences != NULL)
		return;
	holding->fences = MemoryContextStrdup(TopMemoryContext, schema);
	holding->fenced_by = GetUserId();
	fenced_total++;
}

void
holding_end_fence(Holding *holding)
{
	if (holding->fences == NULL)
		return;
	pfree(holding->fences);
	holding->fences = NULL;
	fenced_total--;
}

int
holdings_fenced(void)
{
	return fenced_total;
}

void
holdings_end_all(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &holdings)
		end_holding(dlist_container(Holding, link, iter.cur), false);
	xact_hold_total = 0;
}

/*
 * The lease of a holding
 */

bool
holding_is_valid(const Holding *holding, int64 margin_us)
{
	return holding_validity_us(holding) > margin_us;
}

int64
holding_validity_us(const Holding *holding)
{
	return holding->attached ? lease_detached_validity_us(&holding->detached)
							 : lease_validity_us(holding->lease);
}

int64
holding_token(const Holding *holding)
{
	return holding->attached ? holding->detached.token : holding->lease->token;
}

char *
holding_reason(const Holding *holding)
{
	return holding->attached ? detached_reason(&holding->detached) : loss_reason(holding->lease);
}

void
holding_fail_lost(const Holding *holding, const char *when)
{
	loss_fail(holding->name, holding_reason(holding), when);
}

Holding *
holding_first_lost(void)
{
	dlist_iter iter;

	dlist_foreach(iter, &holdings)
	{
		Holding *holding = dlist_container(Holding, link, iter.cur);

		if (!holding_is_valid(holding, 0))
			return holding;
	}
	return NULL;
}
