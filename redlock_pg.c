/*
 * redlock_pg.c
 *		Distributed locks for SQL: what the server does when it loads this library.
 *
 * The functions that SQL calls are in src/sql.  See src/README.md for the house.
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
		return; /* the functions will say what to do */
	guc_define();
	memory_install_hooks();
	session_install_hooks();
	broker_register();
}
