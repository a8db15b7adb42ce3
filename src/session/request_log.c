/*
 * request_log.c
 *		Lines in the server log about long waits, as PostgreSQL writes for log_lock_waits.
 *
 * PostgreSQL logs waits in its lock manager.  This file logs the other waits of a request: for the
 * nodes, for another host, for a permit, and for a session of this server outside of the lock
 * manager.  As in PostgreSQL, an error that ends a wait has no further line.
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/proc.h"
#include "utils/snapmgr.h"

#include "session/request_internal.h"
#include "shared/clock.h"

/* The wait under way: for one name of the request. */
static const char *awaited = NULL; /* the name, by its address; NULL: no wait yet */
static int64 since_us;
static bool logged = false;

static void end_wait(bool granted);
static char *waited_text(void);

void
request_log_begin(void)
{
	awaited = NULL;
	logged = false;
}

/*
 * Looks names up for the DETAIL, so takes a catalog snapshot.  The snapshot ends before the wait
 * goes on.  To send the line to a client may clear the latch, so the wait ends at once, and the
 * caller looks around.
 */
long
request_log_wait(const LockRequest *request, int index, long timeout_ms)
{
	int64 now_us = redlock_clock_us();
	int64 due_us;

	if (awaited != request->names[index].name)
	{
		awaited = request->names[index].name;
		since_us = now_us;
		logged = false;
	}
	due_us = since_us + DeadlockTimeout * INT64CONST(1000);
	if (logged)
		return timeout_ms;
	if (now_us < due_us)
		return Min(timeout_ms, (long) ((due_us - now_us) / 1000 + 1));
	logged = true;
	ereport(LOG, (errmsg("process %d still waiting for redlock \"%s\" after %s ms", MyProcPid,
						 awaited, waited_text()),
				  errdetail_log("%s", request_wait_text(request, index))));
	InvalidateCatalogSnapshot();
	return 0;
}

void
request_log_granted(const LockRequest *request, int count)
{
	if (!logged)
		return;
	for (int i = 0; i < count; i++)
		if (request->names[i].name == awaited)
			end_wait(true);
}

void
request_log_end(bool granted)
{
	if (logged)
		end_wait(granted);
}

static void
end_wait(bool granted)
{
	const char *name = awaited;

	awaited = NULL;
	logged = false;
	if (!log_lock_waits)
		return;
	ereport(LOG, (granted ? errmsg("process %d acquired redlock \"%s\" after %s ms", MyProcPid,
								   name, waited_text())
						  : errmsg("process %d failed to acquire redlock \"%s\" after %s ms",
								   MyProcPid, name, waited_text())));
}

static char *
waited_text(void)
{
	int64 us = redlock_clock_us() - since_us;

	return psprintf(INT64_FORMAT ".%03d", us / 1000, (int) (us % 1000));
}
