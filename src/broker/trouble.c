/*
 * trouble.c
 *		Log messages about leases in trouble; see trouble.h.
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/memutils.h"

#include "broker/trouble.h"
#include "shared/node_status.h"

/*
 * In each period of LOG_LEASES_US, the log names LOG_LEASES leases for each kind of trouble.
 * Further ones are counted, and summed up at the end of the period.
 */
#define LOG_LEASES 5
#define LOG_LEASES_US INT64CONST(10000000)

/* The present period of one kind of trouble. */
typedef struct Trouble
{
	int64 ends_us; /* end of the period; 0: none has begun */
	int named;
	int64 times;          /* not named: events, */
	int leases;           /* ... leases */
	StringInfoData first; /* ... the first of these, with the nodes' reasons */
	uint32 number;        /* of the summary */
	uint32 *counted_in;   /* by entry: `number` when last counted */
} Trouble;

static Trouble troubles[TROUBLES];

static void log_lease(Lease *lease, TroubleKind kind);
static void count_trouble(Lease *lease, TroubleKind kind);
static void sum_up(TroubleKind kind);
static char *owner_text(const Lease *lease);
static char *reason_text(Lease *lease, TroubleKind kind);

void
trouble_log(Lease *lease, TroubleKind kind, int64 now_us)
{
	Trouble *trouble = &troubles[kind];

	if (trouble->ends_us == 0)
		trouble->ends_us = now_us + LOG_LEASES_US;
	if (trouble->named < LOG_LEASES)
	{
		trouble->named++;
		log_lease(lease, kind);
	}
	else
		count_trouble(lease, kind);
}

static void
log_lease(Lease *lease, TroubleKind kind)
{
	const char *name = lease_name(lease);
	char *owner = owner_text(lease);
	char *reason = reason_text(lease, kind);

	switch (kind)
	{
		case TROUBLE_UNRENEWED:
			ereport(LOG, (errmsg("lease on redlock \"%s\" of %s was not renewed by a "
								 "quorum; will try again",
								 name, owner),
						  errdetail_internal("%s.", reason)));
			break;
		case TROUBLE_LOST:
			ereport(LOG, (errmsg("lease on redlock \"%s\" of %s was lost", name, owner),
						  errdetail_internal("%s.", reason)));
			break;
		case TROUBLE_LEFT:
			ereport(LOG, (errmsg("releasing redlock \"%s\", which was left by %s", name, owner)));
			break;
		case TROUBLES:
			break;
	}
	pfree(owner);
	pfree(reason);
}

static void
count_trouble(Lease *lease, TroubleKind kind)
{
	Trouble *trouble = &troubles[kind];
	int entry = lease_index(lease);

	if (trouble->times++ == 0)
	{
		MemoryContext context;
		char *reason;

		if (trouble->counted_in == NULL)
		{
			trouble->counted_in =
				MemoryContextAllocZero(TopMemoryContext, lease_table->entries * sizeof(uint32));
			context = MemoryContextSwitchTo(TopMemoryContext);
			initStringInfo(&trouble->first);
			MemoryContextSwitchTo(context);
		}
		trouble->number++;
		resetStringInfo(&trouble->first);
		reason = reason_text(lease, kind);
		appendStringInfo(&trouble->first, "%s. Among them: ", reason);
		pfree(reason);
	}
	if (trouble->counted_in[entry] == trouble->number)
		return;
	trouble->counted_in[entry] = trouble->number;
	trouble->leases++;
	if (trouble->leases <= LOG_LEASES)
	{
		char *owner = owner_text(lease);

		appendStringInfo(&trouble->first, "%s\"%s\" of %s", trouble->leases > 1 ? ", " : "",
						 lease_name(lease), owner);
		pfree(owner);
	}
	else if (trouble->leases == LOG_LEASES + 1)
		appendStringInfoString(&trouble->first, ", ...");
}

int64
trouble_sum_up(int64 now_us)
{
	int64 next_us = PG_INT64_MAX;

	for (int kind = 0; kind < TROUBLES; kind++)
	{
		if (troubles[kind].ends_us == 0)
			continue;
		if (troubles[kind].ends_us <= now_us)
			sum_up(kind);
		else
			next_us = Min(next_us, troubles[kind].ends_us);
	}
	return next_us;
}

void
trouble_end(void)
{
	for (int kind = 0; kind < TROUBLES; kind++)
		sum_up(kind);
}

static void
sum_up(TroubleKind kind)
{
	Trouble *trouble = &troubles[kind];
	int leases = kind == TROUBLE_UNRENEWED ? trouble->leases : (int) trouble->times;

	if (trouble->times > 0)
		switch (kind)
		{
			case TROUBLE_UNRENEWED:
				ereport(LOG,
						(errmsg_plural("%d more lease on a redlock was not renewed by a quorum",
									   "%d more leases on redlocks were not renewed by a quorum",
									   leases, leases),
						 errdetail_internal("Failed renewals: " INT64_FORMAT ". %s.",
											trouble->times, trouble->first.data)));
				break;
			case TROUBLE_LOST:
				ereport(LOG, (errmsg_plural("%d more lease on a redlock was lost",
											"%d more leases on redlocks were lost", leases, leases),
							  errdetail_internal("%s.", trouble->first.data)));
				break;
			case TROUBLE_LEFT:
				ereport(LOG, (errmsg_plural("releasing %d more redlock, which was left",
											"releasing %d more redlocks, which were left", leases,
											leases),
							  errdetail_internal("%s.", trouble->first.data)));
				break;
			case TROUBLES:
				break;
		}
	trouble->ends_us = 0;
	trouble->named = trouble->leases = 0;
	trouble->times = 0;
}

/*
 * Describes the owner.  The broker has no catalogs, so the text has a role's OID.  Readers are
 * counted, not known.
 */
static char *
owner_text(const Lease *lease)
{
	int pid = lease->owner_pid;

	if (lease->shared)
		return pstrdup("the sessions that share it");
	return pid != 0 ? psprintf("process %d", pid)
					: psprintf("the role with OID %u, detached,", lease->owner_role);
}

/* Describes each node's vote in the last round, unless the nodes are not the reason for a loss. */
static char *
reason_text(Lease *lease, TroubleKind kind)
{
	const core_lease *core = &lease->drive.core;
	core_mask yes = core_votes(core, CORE_VOTE_YES);
	core_mask denying = core_votes(core, CORE_VOTE_NO);

	if (kind == TROUBLE_LOST && lease_limit_ended(lease))
		return psprintf("The hold_at_most of %d ms has ended", lease->hold_at_most_ms);
	if (kind == TROUBLE_LOST && core_has_quorum(core->lists, yes))
		return pstrdup("The broker did not renew the lease in time");
	return node_status_explain(yes, denying, core->members & ~(yes | denying));
}
