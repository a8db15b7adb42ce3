/*
 * holdings.h
 *		The table of the locks that this session holds.
 *
 * A holding is one lease of this session with the acquisitions counted on it: one counter each
 * for the session scope, for the call scope of the running CALL, and for the call scope of CALLs
 * that have ended in this transaction.  Each (sub)transaction that acquired at transaction scope
 * has an XactHold.  The holding ends when all counters are zero and no XactHold is left; then its
 * lease is released.  While a counter is above zero, the session has the gate once at session
 * level.  For each XactHold the session has the gate once at transaction level.
 *
 * A transaction that is attached to a detached lease has a holding for the lease, too, counted at
 * transaction scope.  Such a holding does not own the lease, never releases the lease, and is not
 * in the gate.  The lease may end at any time, and another lease may have the entry then.
 */
#ifndef REDLOCK_HOLDINGS_H
#define REDLOCK_HOLDINGS_H

#include "lib/ilist.h"

#include "session/request.h"

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
	bool attached;          /* the holding does not own the lease: */
	DetachedLease detached; /* ... the detached lease, as of the attaching */
	bool commits;           /* ... whose release waits for this transaction's end */
	int64 session_count;
	int64 call_count;     /* of the running outermost CALL or DO */
	int64 ended_count;    /* of CALLs and DOs that have ended, in this transaction */
	XactHold *xact_holds; /* innermost first */
	char *fences;         /* the schema of redlock_fences, if commits record the token; */
	Oid fenced_by;        /* ... the role of the call, whose rights count then */
	uint32 asks;          /* lease_asks at the grant */
	uint32 gate_era;      /* era of the gate's entering at session level; 0: not entered */
	int runs;             /* redlock_run runs under it; each relies on an acquisition */
	bool loss_signalled;  /* the alarm has seen the loss */
	dlist_node link;      /* in holdings */
	char name[FLEXIBLE_ARRAY_MEMBER]; /* of the resource, in the server encoding */
} Holding;

/* All holdings, for loops.  Only holdings.c adds to the list, or deletes from it. */
extern dlist_head holdings;

/* Before the first holding; no-op when called again. */
extern void holdings_set_up(void);

/* Raises an error (53400) if the session would hold too many locks with `more` in addition. */
extern void holdings_check_limit(int more);

/*
 * Returns NULL if not held.  Raises an error (55006) if a held lock with another name has this
 * hash.
 */
extern Holding *holding_find(uint64 hash, const char *name);

/* The same, but raises errors: 55000 not held, 40001 the lease was lost. */
extern Holding *holding_find_valid(uint64 hash, const char *name);

/*
 * Makes a holding for a name that is not held, with no acquisitions counted.  The caller sets the
 * lease, and then enlists the holding: from then on callbacks and the alarm see the holding.
 */
extern Holding *holding_enter(const LockName *held);
extern void holding_enlist(Holding *holding);

/* Counts one more acquisition.  If memory is short, raises an error and counts nothing. */
extern void holding_count_up(Holding *holding, LockScope scope);

/*
 * Called after acquisitions were counted down.  Leaves the gate, and ends the holding, if no
 * acquisition needs them.  Frees an ended holding.  Never fails.
 */
extern void holding_release(Holding *holding);

/* Drops the innermost XactHold.  Never fails. */
extern void holding_drop_xact_hold(Holding *holding);

/* The number of all XactHolds: 0 lets the callbacks of most transactions return at once. */
extern int holdings_xact_holds(void);

/* Ends all holdings, with any acquisitions; hands no lease over.  Never fails. */
extern void holdings_end_all(void);

/* Acquisitions at session or call scope. */
extern int64 holding_lasting(const Holding *holding);

/* Has the present subtransaction acquired the lock at transaction scope? */
extern bool holding_is_of_subxact(const Holding *holding);

/*
 * Enters the gate at session level, unless done before; returns whether the session is in the gate.
 */
extern bool holding_keep_gate(Holding *holding);

/* From now on commits record the token, or do not.  holding_end_fence never fails. */
extern void holding_fence(Holding *holding, const char *schema);
extern void holding_end_fence(Holding *holding);

/* The number of holdings whose tokens commits record. */
extern int holdings_fenced(void);

/* Validity left in microseconds, and whether it is more than the margin.  Async-signal-safe. */
extern int64 holding_validity_us(const Holding *holding);
extern bool holding_is_valid(const Holding *holding, int64 margin_us);

extern int64 holding_token(const Holding *holding);

/* Returns why the lease was lost: a sentence; palloc'd. */
extern char *holding_reason(const Holding *holding);

/* Returns the first lost lease of this session, or NULL. */
extern Holding *holding_first_lost(void);

/* Raise errors.  40001: the lease was lost; `when` continues "was lost".  55006: same hash. */
extern void holding_fail_lost(const Holding *holding, const char *when);
extern void holding_fail_same_hash(const char *name, const char *other);

/* For the alarm's signal handler: is the list changing just now?  Async-signal-safe. */
extern bool holdings_are_changing(void);

#endif /* REDLOCK_HOLDINGS_H */
