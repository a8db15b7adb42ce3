/*
 * wait_events.c
 *		The wait events of this extension; see wait_events.h.
 *
 * A process looks an event up at its first such wait.  A name is known to the server once any
 * process has looked the name up.
 */
#include "postgres.h"

#include "shared/compat.h"
#include "shared/wait_events.h"

static const char *const name[WAITS] = {
	[WAITS_FOR_NODES] = "RedlockNodes",    [WAITS_FOR_OTHER_HOST] = "RedlockOtherHost",
	[WAITS_FOR_PERMIT] = "RedlockPermit",  [WAITS_IN_QUEUE] = "RedlockQueue",
	[WAITS_FOR_RENEWAL] = "RedlockExtend", [WAITS_FOR_INSPECTION] = "RedlockInspect",
	[WAITS_FOR_HOSTS] = "RedlockHosts",    [WAITS_IN_BROKER] = "RedlockBrokerMain",
};

static uint32 number[WAITS];

uint32
wait_event(WaitsFor what)
{
	if (number[what] == 0)
		number[what] = REDLOCK_NEW_WAIT_EVENT(name[what]);
	return number[what];
}
