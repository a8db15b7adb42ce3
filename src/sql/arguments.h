/*
 * arguments.h
 *		The arguments of the functions that SQL calls, checked and converted.
 *
 * `arg` is the number of an argument.  Each function of this file raises an error for an invalid
 * value. get_terms, get_try_wait and get_flag accept functions of an earlier version that lack
 * the argument, and then take the default.
 */
#ifndef REDLOCK_ARGUMENTS_H
#define REDLOCK_ARGUMENTS_H

#include "fmgr.h"

#include "session/request.h"
#include "sql/terms.h"

/* Raises an error in a parallel worker, and in a server that has not preloaded the library. */
extern void require_session(void);

/*
 * Read argument 0: one name, or an array of names.  get_names returns the names of the array as
 * given, with their number in *count, and sets the names of the request.
 */
extern void get_name(FunctionCallInfo fcinfo, LockName *name);
extern LockName *get_names(FunctionCallInfo fcinfo, LockRequest *request, int *count);

/* The order of a request's names, for bsearch. */
extern int compare_names(const void *one, const void *other);

/* The numbers of the arguments that are terms of a lock; 0: the function has no such argument. */
typedef struct TermArguments
{
	int ttl;
	int scope;
	LockScope only_scope; /* of a function without an argument for the scope */
	int hold_at_least;
	int hold_at_most;
	int keep_idle;
	int mode;
	int permits;
} TermArguments;

/*
 * The terms of the lock.  Each function that acquires calls get_terms, so get_terms also checks
 * redlock.restrict and redlock.allowed_scopes: before a wait, and before a run is recorded. `given`
 * has the terms that the function itself means: TERM_SEVERAL, TERM_LOCK_CALL.  The names of the
 * request are set already.
 */
extern void get_terms(FunctionCallInfo fcinfo, const TermArguments *at, Terms given,
					  LockRequest *request);

/* How long the call waits; the second for functions that try, and return false. */
extern void get_wait(FunctionCallInfo fcinfo, int arg, LockRequest *request);
extern void get_try_wait(FunctionCallInfo fcinfo, int wait, LockRequest *request);

/* Single arguments. */
extern int64 get_hold_us(FunctionCallInfo fcinfo, int arg, const char *name);
extern int64 get_token(FunctionCallInfo fcinfo, int arg);
extern bool get_flag(FunctionCallInfo fcinfo, int arg, const char *name);

/* An error if the value `us` of `name`, an argument or its setting, is over redlock.max_hold. */
extern void check_max_hold(FunctionCallInfo fcinfo, int arg, const char *name, int64 us);

#endif /* REDLOCK_ARGUMENTS_H */
