/*
 * hold_lock.c
 *		Each client's session holds a redlock from start to end.
 *
 * For session_preload_libraries, in tests of programs without knowledge of
 * redlock_pg.  In a database without a schema "redlock" it does nothing.
 */
#include "postgres.h"

#include "access/xact.h"
#include "catalog/namespace.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/snapmgr.h"

PG_MODULE_MAGIC;

PGDLLEXPORT void _PG_init(void);

void
_PG_init(void)
{
	/* since 15 a session starts in a transaction */
	bool own_transaction = !IsTransactionState();
	char command[128];

	if (MyBackendType != B_BACKEND)
		return;
	if (own_transaction)
		StartTransactionCommand();
	if (OidIsValid(get_namespace_oid("redlock", true)))
	{
		snprintf(command, sizeof(command),
				 "SELECT redlock.redlock_acquire('guest %d', scope => 'session')", MyProcPid);
		PushActiveSnapshot(GetTransactionSnapshot());
		SPI_connect();
		if (SPI_execute(command, false, 0) != SPI_OK_SELECT)
			elog(ERROR, "no lock for this session");
		SPI_finish();
		PopActiveSnapshot();
	}
	if (own_transaction)
		CommitTransactionCommand();
}
