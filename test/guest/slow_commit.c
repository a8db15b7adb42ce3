/*
 * slow_commit.c
 *		An extension that commits elsewhere after the transaction has committed here.
 *
 * Stands for extensions like Citus, which send COMMIT PREPARED at XACT_EVENT_COMMIT.  While
 * slow_commit.until is set, the callback waits until the file of this name exists.
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xact.h"
#include "fmgr.h"
#include "utils/guc.h"

PG_MODULE_MAGIC;

static char *until = NULL;

PGDLLEXPORT void _PG_init(void);
static void on_xact(XactEvent event, void *arg);

void
_PG_init(void)
{
	DefineCustomStringVariable("slow_commit.until", "File that ends the wait.", NULL, &until, "",
							   PGC_USERSET, 0, NULL, NULL, NULL);
	RegisterXactCallback(on_xact, NULL);
}

static void
on_xact(XactEvent event, void *arg)
{
	while (event == XACT_EVENT_COMMIT && until[0] != '\0' && access(until, F_OK) != 0)
		pg_usleep(10000);
}
