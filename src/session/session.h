/*
 * session.h
 *		The locks of this session, for the SQL functions.  This header declares the functions of
 *		session.c and session_*.c.
 */
#ifndef REDLOCK_SESSION_H
#define REDLOCK_SESSION_H

#include "session/request.h"

/* The hint if redlock.nodes is empty. */
#define SESSION_NODES_STEP                                                                         \
	"Add a line to postgresql.conf and reload: redlock.nodes = 'redis://host1, redis://host2, "    \
	"redis://host3'. If the line is there, see the server log for the reason."

/* called by _PG_init, in each backend */
extern void session_install_hooks(void);

/*
 * Raises an error (55000) where no lock can be asked for: in single-user mode, in a replication
 * connection, or without redlock.nodes.  The caller has checked that the library is preloaded.
 */
extern void session_check_ready(void);

/*
 * Acquires all the locks.  Returns false if `once` and another session holds a lock.  Errors: 55P03
 * waited in vain, 08006 no quorum, 40001 a lease that this session held was lost, 53400 the lease
 * table is full, or too many locks of this session or of this role; 55000 not set up, call scope
 * outside of CALL and DO, or other terms than those of the held lock; 55006 this session is
 * attached to a lock, or holds a lock that the request wants detached.  Also the errors of
 * request_acquire.
 */
extern bool session_acquire(const LockRequest *request);

/*
 * Records the fencing token of a lock at call scope, now and before each commit of a transaction
 * with effects, until a transaction has ended in which no run relied on the lock.  The commits
 * record with the rights of the present user.  Errors: as fence_record.
 */
extern void session_fence(uint64 hash, const char *name, const char *schema);

/*
 * Enclose a run of redlock_run: the run relies on a lock that it has acquired at call scope.
 * The session must hold the lock at both calls: the functions do not check.  session_end_run never
 * fails.
 */
extern void session_begin_run(uint64 hash, const char *name);
extern void session_end_run(uint64 hash, const char *name);

/*
 * Releases one acquisition of session scope, or else of call scope.  Returns whether the lease was
 * valid.  Errors, if a run relies on the lock: 55006; 40001 the lease was lost.
 */
extern bool session_release(uint64 hash, const char *name);

/*
 * Releases all acquisitions of session and call scope, except those of a run; returns their number.
 */
extern int64 session_release_all(void);

/*
 * Attaches this (sub)transaction to a detached lock: until its end, the transaction relies on the
 * lock as on a lock at transaction scope, but does not release the lock.  Errors: as detached_find;
 * 40001 this session relied on another lease of this lock, which is over; 53400 the session holds
 * too many locks.
 */
extern void session_attach(const LockName *name, int64 token);

/*
 * Releases a detached lock.  Returns whether the lease was valid.  Errors: as detached_find; 55006
 * this transaction is attached to the lock.
 */
extern bool session_release_detached(const LockName *name, int64 token);

/* Returns the validity left in microseconds.  Raises an error if not held, or lost. */
extern int64 session_check(uint64 hash, const char *name);

/*
 * Has an operator asked for the release since this session got the lock, or since an attached lock
 * was detached?  Raises an error if not held, or lost.
 */
extern bool session_release_wanted(uint64 hash, const char *name);

/*
 * Returns the name of the first lost lease of this session, and why it was lost, as a sentence; or
 * NULL.
 */
extern const char *session_lost(char **reason);

/* Returns why the lease was lost, as a sentence, if this session holds a lost lease; else NULL. */
extern char *session_loss_reason(uint64 hash, const char *name);

/* Returns the fencing token.  Raises an error if not held, or lost. */
extern int64 session_valid_token(uint64 hash, const char *name);

/* Is this session a reader of the lock? */
extern bool session_shares(uint64 hash, const char *name);

/*
 * Returns the name of the lock in redlock_fences: each permit has a name and tokens of its own.
 * Raises an error unless held.
 */
extern char *session_fenced_name(uint64 hash, const char *name);

/* Returns the fencing token, even if the lease was lost; 0 if not held. */
extern int64 session_token(uint64 hash, const char *name);

#endif /* REDLOCK_SESSION_H */
