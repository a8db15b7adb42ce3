/*
 * redlock_pg.c
 *		Distributed locks for SQL: actions when the server loads this library.
 *
 * The functions that SQL calls are in src/sql. src/README.md describes the parts.
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"

#include "broker/broker.h"
#include "session/session.h"
#include "shared/guc.h"
#include "shared/memory.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	if (!process_shared_preload_libraries_in_progress)
		return; /* each function will raise an error with a hint */
	guc_define();
	memory_install_hooks();
	session_install_hooks();
	broker_register();
}
