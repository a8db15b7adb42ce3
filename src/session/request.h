/*
 * request.h
 *		Asking for a lease, and waiting for it.
 *
 * One request of a session is under way at a time.
 */
#ifndef REDLOCK_REQUEST_H
#define REDLOCK_REQUEST_H

#include "protocol/several.h"
#include "shared/lease.h"

typedef struct LockName
{
	const char *name; /* in the server encoding, for messages */
	const char *utf8; /* in UTF-8, for the key */
	int utf8_len;
	uint64 hash; /* of the UTF-8 */
} LockName;

/* All or none of the names. */
typedef struct LockRequest
{
	const LockName *names; /* different, and in the order of several_compare */
	int count;             /* up to SEVERAL_MAX */
	LeaseTerms terms;      /* once: never waits for another holder */
	int64 wait_ms;         /* -1: as long as it takes */
	int64 began_us;        /* waits since then, on the clock of the leases; 0: since now */
	int permits;           /* of the one name, of which one is wanted; 0: the lock itself */
	bool skip;             /* waited in vain: return false, no error */
	bool by_call;          /* the CALL of this procedure is none whose scope counts */
	int64 *tokens;         /* to be told, in the order of the names; NULL: nobody asks */
	bool commits;          /* the work begins after a commit, so with another snapshot */
} LockRequest;

/*
 * Ask for leases on all names.  Returns true if all are granted: the caller takes each lease
 * (request_take), and then calls request_end.  Returns false if `once`, and another holds one, or
 * if `skip`.  All else is an error, after which the caller calls request_end, too: 55P03 waited in
 * vain, 08006 no quorum, 40001 it was lost right after the grant, 40P01 a deadlock, 53400 the lease
 * table is full, or the role brings in too many new names, 55000 no broker, or another host with
 * which this one does not agree.
 */
extern bool request_acquire(const LockRequest *request);

/* When that returned false, if `skip`: why, a sentence; a static text. */
extern const char *request_skipped(void);

/* The same as a notice. */
extern void request_tell_skipped(const LockRequest *request);

/*
 * The next lease that was granted, in the order of the names, and the gate that was entered for it:
 * both are the caller's now.  Until then they are the request's, so that an error and the end of
 * the session find them.
 */
extern Lease *request_take(uint64 *gate);

/* Gives back what was not taken, and ends the wait.  Nothing is done where no request is under way.
 */
extern void request_end(void);

/*
 * An error (55000) if a session of this server has, or waits for, what has this hash, and said
 * another number of permits.
 */
extern void request_refuse_other_permits(const LockRequest *request, int name, uint64 hash);

/*
 * After a try for a permit that was in vain: another that is free, or PERMITS_NONE_FREE, or
 * PERMITS_TAKEN_HERE if no node was heard.
 */
extern int request_free_permit(void);

/* For who tries again and again until then, and waits in between. */
extern int64 request_deadline_us(const LockRequest *request);
extern void request_wait_a_moment(int64 until_us);

/* The errors of a try that was in vain, and of a wait; none if the caller wants none. */
extern void request_fail_held(const LockRequest *request);
extern void request_time_out(const LockRequest *request);

/* The session ends; what is under way is given up.  Never fails. */
extern void request_give_up(void);

extern void request_fail_no_broker(void);

#endif /* REDLOCK_REQUEST_H */
