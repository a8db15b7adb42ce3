/*
 * loss.c
 *		Messages about a lost lease; see loss.h.
 */
#include "postgres.h"

#include "session/loss.h"

char *
loss_reason(Lease *lease)
{
	char *nodes;

	if (lease_limit_ended(lease))
		return psprintf("The hold_at_most of %d ms has ended.", lease->hold_at_most_ms);
	nodes = lease_missing_nodes(lease);
	if (nodes[0] == '\0')
		return pstrdup("The broker did not renew the lease in time.");
	return psprintf("No quorum of nodes renewed the lease in time: %s.", nodes);
}

char *
loss_message(bool cancels, const char *name)
{
	return psprintf("%s because the lease on redlock \"%s\" was lost",
					cancels ? "canceling statement" : "terminating connection", name);
}

void
loss_fail(const char *name, char *reason, const char *when)
{
	ereport(ERROR, (errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
					errmsg("the lease on redlock \"%s\" was lost%s", name, when),
					errdetail_internal("%s", reason), errhint(LOSS_HINT)));
}

void
loss_warn(const char *name, const char *reason)
{
	ereport(WARNING,
			(errcode(ERRCODE_WARNING), errmsg("the lease on redlock \"%s\" had been lost", name),
			 errdetail_internal("%s", reason)));
}
