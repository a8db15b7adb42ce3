/*
 * compat.h
 *		Differences between versions of PostgreSQL (15 to 19) and of hiredis (0.14 to 1.x).
 *
 * The Makefile refuses older servers.
 */
#ifndef REDLOCK_COMPAT_H
#define REDLOCK_COMPAT_H

#include <hiredis/hiredis.h>

/* MyProc->pgprocno became MyProcNumber in 17 */
#if PG_VERSION_NUM >= 170000
#define REDLOCK_MY_PROCNO MyProcNumber
#define REDLOCK_PROCNO(process) GetNumberFromPGProc(process)
#else
#define REDLOCK_MY_PROCNO (MyProc->pgprocno)
#define REDLOCK_PROCNO(process) ((process)->pgprocno)
#endif

/* the owner argument replaced the memory context in 17 */
#if PG_VERSION_NUM >= 170000
#define REDLOCK_CREATE_WAIT_SET(nevents) CreateWaitEventSet(NULL, nevents)
#else
#define REDLOCK_CREATE_WAIT_SET(nevents) CreateWaitEventSet(TopMemoryContext, nevents)
#endif

/* extensions can name their wait events since 17 */
#if PG_VERSION_NUM >= 170000
#include "utils/wait_event.h"
#define REDLOCK_NEW_WAIT_EVENT(name) WaitEventExtensionNew(name)
#else
#include "pgstat.h"
#define REDLOCK_NEW_WAIT_EVENT(name) ((void) (name), PG_WAIT_EXTENSION)
#endif

/* LockHeldByMe got a third argument in 17 */
#if PG_VERSION_NUM >= 170000
#define REDLOCK_LOCK_HELD_BY_ME(tag, mode) LockHeldByMe(tag, mode, false)
#else
#define REDLOCK_LOCK_HELD_BY_ME(tag, mode) LockHeldByMe(tag, mode)
#endif

/* SetSingleFuncCall is InitMaterializedSRF since 16 */
#if PG_VERSION_NUM >= 160000
#define REDLOCK_BEGIN_ROWS(fcinfo) InitMaterializedSRF(fcinfo, 0)
#else
#define REDLOCK_BEGIN_ROWS(fcinfo) SetSingleFuncCall(fcinfo, 0)
#endif

/* "extra" data of a setting must come from guc_malloc since 16 */
#if PG_VERSION_NUM >= 160000
#define REDLOCK_GUC_MALLOC(size) guc_malloc(LOG, size)
#define REDLOCK_GUC_FREE(pointer) guc_free(pointer)
#else
#define REDLOCK_GUC_MALLOC(size) malloc(size)
#define REDLOCK_GUC_FREE(pointer) free(pointer)
#endif

/* pg_noreturn replaced pg_attribute_noreturn() in 18; it stands before a declaration */
#if PG_VERSION_NUM >= 180000
#define REDLOCK_NORETURN pg_noreturn
#else
#define REDLOCK_NORETURN pg_attribute_noreturn()
#endif

/*
 * pg_logical_emit_message got an argument in 17, so its macros in utils/fmgroids.h have new names
 */
#if PG_VERSION_NUM >= 170000
#define REDLOCK_F_EMIT_MESSAGE_TEXT F_PG_LOGICAL_EMIT_MESSAGE_BOOL_TEXT_TEXT_BOOL
#define REDLOCK_F_EMIT_MESSAGE_BYTEA F_PG_LOGICAL_EMIT_MESSAGE_BOOL_TEXT_BYTEA_BOOL
#else
#define REDLOCK_F_EMIT_MESSAGE_TEXT F_PG_LOGICAL_EMIT_MESSAGE_BOOL_TEXT_TEXT
#define REDLOCK_F_EMIT_MESSAGE_BYTEA F_PG_LOGICAL_EMIT_MESSAGE_BOOL_TEXT_BYTEA
#endif

/* number of an array's elements, for hiredis's callback, since 1.0 */
#if HIREDIS_MAJOR >= 1
typedef size_t RedlockElements;
#else
typedef int RedlockElements;
#endif

#endif /* REDLOCK_COMPAT_H */
