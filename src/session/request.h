/*
 * request.h
 *		Acquiring leases, and waiting for leases.
 *
 * One request of a session is under way at a time.
 */
#ifndef REDLOCK_REQUEST_H
#define REDLOCK_REQUEST_H

#include "protocol/several.h"
#include "shared/lease.h"

/* Why the broker may be silent, and what to do. */
#define REQUEST_BROKER_SILENT                                                                      \
	"The broker is stopped or overloaded, or has just started and is still connecting to the "     \
	"nodes."
#define REQUEST_BROKER_SILENT_STEP                                                                 \
	"Try again. If the error stays, see the server log and process %d."

typedef struct LockName
{
	const char *name; /* in the server encoding, for messages */
	const char *utf8; /* in UTF-8, for the key */
	int utf8_len;
	uint64 hash; /* of the UTF-8 */
} LockName;

/* A request for all of the names, or none. */
typedef struct LockRequest
{
	const LockName *names; /* different, and in the order of several_compare */
	int count;             /* up to SEVERAL_MAX */
	LeaseTerms terms;      /* once: never waits for another holder */
	int64 wait_ms;         /* -1: no limit */
	int64 began_us;        /* start of the wait, on the clock of the leases; 0: now */
	int permits;           /* number of permits of the one name; 0: no permit, the lock itself */
	bool skip;             /* a wait in vain returns false, without an error */
	bool by_call;  /* the caller is a procedure, whose own CALL does not count for call scope */
	int64 *tokens; /* filled in, in the order of the names; or NULL */
	bool commits;  /* the work begins after a commit, under another snapshot */
} LockRequest;

/*
 * Asks for leases on all names.  Returns true if all are granted: the caller takes each lease
 * (request_take), and then calls request_end.  Returns false if `once` and another session holds a
 * lock, or if `skip`.  Raises an error otherwise, after which the caller calls request_end, too:
 * 55P03 waited in vain, 08006 no quorum, 40001 a lease was lost right after the grant, 40P01
 * deadlock, 53400 the lease table is full, or the role brings in too many new names, 55000 no
 * broker, or a configuration conflict.
 */
extern bool request_acquire(const LockRequest *request);

/* After request_acquire returned false for `skip`: the reason, a sentence; a static text. */
extern const char *request_skipped(void);
extern const char *request_skipped_name(void); /* of the request */

/* Raises the reason as a notice.  The names of the request must still be there. */
extern void request_tell_skipped(void);

/*
 * Returns the next granted lease, in the order of the names, and its gate.  Both now belong to the
 * caller.  Before, they belong to the request, so that an error or the end of the session releases
 * them.
 */
extern Lease *request_take(uint64 *gate);

/*
 * Releases leases and gates that the caller has not taken, and ends the wait.  Does nothing without
 * a request under way.
 */
extern void request_end(void);

/*
 * Raises an error (55000) if a session of this server has or waits for the lock with this hash,
 * with another number of permits.
 */
extern void request_refuse_other_permits(const LockRequest *request, int index, uint64 hash);

/*
 * After a try for a permit in vain: another permit that is free, or PERMITS_NONE_FREE, or
 * PERMITS_TAKEN_HERE if no node has answered.
 */
extern int request_free_permit(void);

/* For a caller that tries again until the deadline, with pauses. */
extern int64 request_deadline_us(const LockRequest *request);
extern void request_wait_for_permit(const LockRequest *request, int64 until_us);

/* Raise the error of a try or a wait in vain, unless the request wants no error. */
extern void request_fail_held(const LockRequest *request);
extern void request_time_out(const LockRequest *request);

/* Cancels the request under way, at the end of the session.  Never fails. */
extern void request_cancel(void);

/*
 * Enclose the waits of a call, for log_lock_waits: the log has a line for a wait of
 * deadlock_timeout, and a line for its end.  After an error the second is not called.
 */
extern void request_log_begin(void);
extern void request_log_end(bool granted);

extern void request_fail_no_broker(void);

/* Advise a person, in sentences, palloc'd: no broker runs; the lease table is full. */
extern char *request_advise_no_broker(void);
extern char *request_advise_table_full(void);

/*
 * Counts a call that ended without its locks, for the statistics: refused and timed out
 * (ERRCODE_LOCK_NOT_AVAILABLE), or deadlocked.  Other values of sqlstate do not count.  The caller
 * has not called request_end yet.
 */
extern void request_count_failure(const LockRequest *request, int sqlstate);

#endif /* REDLOCK_REQUEST_H */
