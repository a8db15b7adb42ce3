/*
 * compat.h
 *		All that depends on the version of PostgreSQL (13 to 18) or of hiredis
 *		(0.14 to 1.x).
 */
#ifndef REDLOCK_COMPAT_H
#define REDLOCK_COMPAT_H

#include <hiredis/hiredis.h>

/* shared memory is asked for in a hook of its own since 15 */
#define REDLOCK_HAVE_SHMEM_REQUEST_HOOK (PG_VERSION_NUM >= 150000)

/* known when libraries are preloaded since 15; before, as InitializeMaxBackends counts */
#if PG_VERSION_NUM >= 150000
#define REDLOCK_MAX_BACKENDS MaxBackends
#else
#include "postmaster/autovacuum.h"
#include "replication/walsender.h"
#define REDLOCK_MAX_BACKENDS                                                                       \
	(MaxConnections + autovacuum_max_workers + 1 + max_worker_processes + max_wal_senders)
#endif

/* MyProc->pgprocno became MyProcNumber in 17 */
#if PG_VERSION_NUM >= 170000
#define REDLOCK_MY_PROCNO MyProcNumber
#else
#define REDLOCK_MY_PROCNO (MyProc->pgprocno)
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
#define REDLOCK_WAIT_EVENT(variable, name)                                                         \
	(variable != 0 ? variable : (variable = WaitEventExtensionNew(name)))
#else
#include "pgstat.h"
#define REDLOCK_WAIT_EVENT(variable, name) ((void) (variable), PG_WAIT_EXTENSION)
#endif

/* ProcessUtility_hook got readOnlyTree in 14 */
#if PG_VERSION_NUM >= 140000
#define REDLOCK_UTILITY_ARGS_DECL                                                                  \
	PlannedStmt *pstmt, const char *queryString, bool readOnlyTree, ProcessUtilityContext context, \
		ParamListInfo params, QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc
#define REDLOCK_UTILITY_ARGS pstmt, queryString, readOnlyTree, context, params, queryEnv, dest, qc
#else
#define REDLOCK_UTILITY_ARGS_DECL                                                                  \
	PlannedStmt *pstmt, const char *queryString, ProcessUtilityContext context,                    \
		ParamListInfo params, QueryEnvironment *queryEnv, DestReceiver *dest, QueryCompletion *qc
#define REDLOCK_UTILITY_ARGS pstmt, queryString, context, params, queryEnv, dest, qc
#endif

/* LockHeldByMe got a third argument in 17 */
#if PG_VERSION_NUM >= 170000
#define REDLOCK_LOCK_HELD_BY_ME(tag, mode) LockHeldByMe(tag, mode, false)
#else
#define REDLOCK_LOCK_HELD_BY_ME(tag, mode) LockHeldByMe(tag, mode)
#endif

/* a set-returning function that fills a tuplestore: one call since 15 */
#if PG_VERSION_NUM >= 160000
#define REDLOCK_BEGIN_ROWS(fcinfo) InitMaterializedSRF(fcinfo, 0)
#elif PG_VERSION_NUM >= 150000
#define REDLOCK_BEGIN_ROWS(fcinfo) SetSingleFuncCall(fcinfo, 0)
#else
#define REDLOCK_BEGIN_ROWS(fcinfo)                                                                 \
	do                                                                                             \
	{                                                                                              \
		ReturnSetInfo *rsi = (ReturnSetInfo *) (fcinfo)->resultinfo;                               \
		MemoryContext old;                                                                         \
		if (rsi == NULL || !IsA(rsi, ReturnSetInfo) || !(rsi->allowedModes & SFRM_Materialize))    \
			elog(ERROR, "materialize mode is required");                                           \
		old = MemoryContextSwitchTo(rsi->econtext->ecxt_per_query_memory);                         \
		if (get_call_result_type(fcinfo, NULL, &rsi->setDesc) != TYPEFUNC_COMPOSITE)               \
			elog(ERROR, "return type must be a row type");                                         \
		rsi->returnMode = SFRM_Materialize;                                                        \
		rsi->setResult = tuplestore_begin_heap(true, false, work_mem);                             \
		MemoryContextSwitchTo(old);                                                                \
	} while (0)
#endif

/* a command run by SPI may commit since 14 */
#if PG_VERSION_NUM >= 140000
#define REDLOCK_SPI_EXECUTE(command, nonatomic)                                                    \
	SPI_execute_extended(command, &(SPIExecuteOptions){.allow_nonatomic = (nonatomic)})
#else
#define REDLOCK_SPI_EXECUTE(command, nonatomic) SPI_execute(command, false, 0)
#endif

/* a conversion that stops where it can't go on, in place of failing, since 14 */
#if PG_VERSION_NUM >= 140000
#define REDLOCK_CONVERT(converter, from, to, text, len, out, size)                                 \
	(OidIsValid(converter)                                                                         \
		 ? pg_do_encoding_conversion_buf(converter, from, to, (unsigned char *) (text), len,       \
										 (unsigned char *) (out), size, true)                      \
		 : 0)
#else
#define REDLOCK_CONVERT(converter, from, to, text, len, out, size) 0
#endif

/* a prefix can be reserved since 15 */
#if PG_VERSION_NUM >= 150000
#define REDLOCK_RESERVE_PREFIX(prefix) MarkGUCPrefixReserved(prefix)
#else
#define REDLOCK_RESERVE_PREFIX(prefix) EmitWarningsOnPlaceholders(prefix)
#endif

/* "extra" data of a setting must come from guc_malloc since 16 */
#if PG_VERSION_NUM >= 160000
#define REDLOCK_GUC_MALLOC(size) guc_malloc(LOG, size)
#define REDLOCK_GUC_FREE(pointer) guc_free(pointer)
#else
#define REDLOCK_GUC_MALLOC(size) malloc(size)
#define REDLOCK_GUC_FREE(pointer) free(pointer)
#endif

/* a cheap random source, seeded in each process */
#if PG_VERSION_NUM >= 150000
#include "common/pg_prng.h"
#define REDLOCK_RANDOM32() pg_prng_uint32(&pg_global_prng_state)
#else
#define REDLOCK_RANDOM32() ((uint32) random() << 1)
#endif

/* number of an array's elements, for hiredis's callback, since 1.0 */
#if HIREDIS_MAJOR >= 1
typedef size_t RedlockElements;
#else
typedef int RedlockElements;
#endif

#endif /* REDLOCK_COMPAT_H */
