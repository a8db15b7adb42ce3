/*
 * arguments.h
 *		The arguments of the functions that SQL calls, checked and converted.
 *
 * `arg` is the number of an argument.  Each function of this file raises an error for a value that
 * is not allowed.  get_try, get_keep_idle_ms, get_slots, get_mode and get_flag may ask for an
 * argument that a function of an earlier version lacks, and take the default then.
 */
#ifndef REDLOCK_ARGUMENTS_H
#define REDLOCK_ARGUMENTS_H

#include "fmgr.h"

#include "session/request.h"

/* An error if this is a parallel worker, or the server has not preloaded the library. */
extern void require_session(void);

/*
 * Argument 0: one name, or an array of names.  get_names returns the names of the array, `count`
 * of them, in their order, and sets those of the request.
 */
extern void get_name(FunctionCallInfo fcinfo, LockName *name);
extern LockName *get_names(FunctionCallInfo fcinfo, LockRequest *request, int *count);

/* The order of a request's names, for bsearch. */
extern int compare_names(const void *one, const void *other);

/*
 * All arguments behind the name that redlock_acquire and redlock_try, and their variants, have in
 * common.  `wait` is the number of that argument.
 */
extern void get_acquire(FunctionCallInfo fcinfo, LockRequest *request);
extern void get_try(FunctionCallInfo fcinfo, int wait, LockRequest *request);

/*
 * Single arguments.  A caller reads them in the order that get_acquire has: get_mode and get_slots
 * refuse what the arguments before them don't allow.
 */
extern void get_wait(FunctionCallInfo fcinfo, int arg, LockRequest *request);
extern void get_hold_limits(FunctionCallInfo fcinfo, int arg, LeaseTerms *terms);
extern int64 get_hold_us(FunctionCallInfo fcinfo, int arg, const char *name);
extern int get_keep_idle_ms(FunctionCallInfo fcinfo, int arg, const LeaseTerms *terms);
extern void get_slots(FunctionCallInfo fcinfo, int arg, int keep_idle_arg, LockRequest *request);
extern int64 get_token(FunctionCallInfo fcinfo, int arg);
extern void get_mode(FunctionCallInfo fcinfo, int arg, LockRequest *request);
extern bool get_flag(FunctionCallInfo fcinfo, int arg, const char *name);
extern int get_ttl_ms(FunctionCallInfo fcinfo, int arg);
extern LockScope get_scope(FunctionCallInfo fcinfo, int arg);

/* An error if the value `us` of `name`, an argument or its setting, is over redlock.max_hold. */
extern void check_max_hold(FunctionCallInfo fcinfo, int arg, const char *name, int64 us);

#endif /* REDLOCK_ARGUMENTS_H */
