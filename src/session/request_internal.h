/*
 * request_internal.h
 *		Shared by request.c and request_*.c only; lint checks the includes.
 */
#ifndef REDLOCK_REQUEST_INTERNAL_H
#define REDLOCK_REQUEST_INTERNAL_H

#include "session/gate.h"
#include "session/request.h"
#include "shared/guc.h"
#include "shared/wait_events.h"

/* How long the broker may take to ask the nodes, or, for a try, to report the nodes' answers. */
#define BROKER_SILENT_US (GATE_BROKER_MISSING_US + 2 * redlock_node_timeout_ms * INT64CONST(1000))

/* A name of the request, in order, with the gate and the lease. */
typedef struct Asked
{
	uint64 hash;
	uint64 gate;
	bool at_gate;
	bool waited_for_grant; /* see LeaseTerms */
	Lease *lease;          /* NULL: not yet asked for, or taken by the caller */
} Asked;

/*
 * The request under way.  request.c writes the fields; request_lease.c writes `lease` of the name
 * that it opens.
 */
typedef struct RequestNow
{
	Asked asked[SEVERAL_MAX];
	int asked_count; /* number of names in `asked`: the first names of the request */
	int waited_for;  /* the last name waited for; -1: none */
	GateUse gate_use;
	int64 call_began_us;
	int64 asked_us; /* when the broker was last told to ask the nodes */
} RequestNow;

extern RequestNow request_now;

/* request.c */
extern bool request_ends_by_lock_timeout(const LockRequest *request); /* before `wait` ends */

/* Waits for the latch.  index: of the name that the session waits for. */
extern void request_wait_at_most(const LockRequest *request, int index, int64 deadline_us,
								 long at_most_ms, WaitsFor what);

/* request_lease.c; `key` has room for a prefix of LOCK_PREFIX_MAX and a name of LOCK_NAME_MAX */
extern int request_make_key(const LockName *name, char *key); /* returns the length */
extern LeaseOpened request_open_lease(const LockRequest *request, int index, int64 deadline_us);
extern void request_describe_holder(const LockRequest *request, Lease *lease);

/*
 * request_log.c.  The first is called before each wait, if log_lock_waits is on.  It returns the
 * time to wait, at most timeout_ms: the next call must not be late for the log.  The second notes
 * that the first `count` names are granted.
 */
extern long request_log_wait(const LockRequest *request, int index, long timeout_ms);
extern void request_log_granted(const LockRequest *request, int count);

/* request_errors.c: the reason for the wait, in sentences, palloc'd */
extern char *request_wait_text(const LockRequest *request, int index);

/* request_errors.c: these return if the caller wants no error, or if nothing is wrong */
extern void request_fail_held_at(const LockRequest *request, int index);
extern void request_time_out_at(const LockRequest *request, int index);
extern void request_refuse_granted_permits(const LockRequest *request, int index);
extern void request_refuse_in_conflict(const LockRequest *request);

/* request_errors.c: these never return */
extern void request_fail_lost(const LockRequest *request, int index);
extern void request_fail_unreachable(const LockRequest *request, int index, char *nodes);
extern void request_fail_silent_broker(const LockRequest *request, int index);
extern void request_fail_deadlock(const LockRequest *request, int index, const char *cycle);
extern void request_fail_table_full(void);
extern void request_fail_no_entry(void);

/*
 * Does a silence of the broker or the nodes since `since_us` mean something?  A short silence after
 * a longer wait at the gate does not.
 */
extern bool request_is_long(int64 now_us, int64 since_us);

#endif /* REDLOCK_REQUEST_INTERNAL_H */
