/*
 * session.h
 *		What SQL asks of the locks of this session.  This header declares the functions of all
 *		files session...
 */
#ifndef REDLOCK_SESSION_H
#define REDLOCK_SESSION_H

#include "session/request.h"

/* _PG_init; where: in each backend */
extern void session_install_hooks(void);

/*
 * Take all the locks.  Returns false if `once` and another holds one.  Errors: 55P03 waited in
 * vain, 08006 no quorum, 40001 a lease that this session held was lost, 53400 the lease table is
 * full, 55000 not set up, 55006 this session holds one, or is attached to it, and is to have it
 * at another scope.
 */
extern bool session_acquire(const LockRequest *request);

/*
 * Records the fencing token of a lock that is held at call scope, and again before each commit
 * of a transaction with effects, until the call has ended.  Errors: those of fence_record.
 */
extern void session_fence(uint64 hash, const char *name, const char *schema);

/*
 * A run of redlock_run relies on a lock that it has acquired at call scope, until the run ends.
 * The second never fails.
 */
extern void session_begin_run(uint64 hash, const char *name);
extern void session_end_run(uint64 hash, const char *name);

/*
 * Give back one acquisition of session scope, or else of call scope.  Returns whether it was
 * valid.  Errors, where a run relies on it: 55006; 40001 it was lost.
 */
extern bool session_release(uint64 hash, const char *name);

/*
 * Give back all acquisitions of session and call scope, except those on which a run relies;
 * returns how many.
 */
extern int64 session_release_all(void);

/*
 * Until the end of this (sub)transaction it relies on a detached lock, as on one of its own at
 * transaction scope; it does not give it back.  Errors: those of detached_find; 40001 this
 * session relied on another lease of this lock, which is over; 53400 it holds too many.
 */
extern void session_attach(const LockName *name, int64 token);

/*
 * Give a detached lock back.  Returns whether it was valid.  Errors: those of detached_find;
 * 55006 this transaction is attached to it.
 */
extern bool session_release_detached(const LockName *name, int64 token);

/* Validity left in microseconds; an error if not held, or lost. */
extern int64 session_check(uint64 hash, const char *name);

/* A sentence: why the lease was lost, if this session holds a lost one; else NULL. */
extern char *session_loss_reason(uint64 hash, const char *name);

/* The fencing token, if held; an error if not, or lost. */
extern int64 session_valid_token(uint64 hash, const char *name);

/* Does this session share it with others? */
extern bool session_shares(uint64 hash, const char *name);

/* What redlock_fences calls it: each permit has a token of its own.  An error unless it is held. */
extern char *session_fenced_name(uint64 hash, const char *name);

/* The fencing token, also if the lease was lost; 0 if not held. */
extern int64 session_token(uint64 hash, const char *name);

#endif /* REDLOCK_SESSION_H */
