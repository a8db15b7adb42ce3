/*
 * loss.c
 *		Messages about a lost lease; see loss.h.
 */
#include "postgres.h"

#include "session/loss.h"

char *
loss_reason(Lease *lease)
{
	char *nodes = lease_missing_nodes(lease);

	if (nodes[0] == '\0' && lease->hold_at_most_ms > 0)
		return psprintf("It was held for as long as its hold_at_most of %d ms allows.",
						lease->hold_at_most_ms);
	if (nodes[0] == '\0')
		return pstrdup("The broker did not renew it in time.");
	return psprintf("It was not renewed in time by a quorum of nodes: %s.", nodes);
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
