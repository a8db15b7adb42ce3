/*
 * trouble.h
 *		Log messages about leases in trouble.  Many leases in trouble do not fill the log.
 */
#ifndef REDLOCK_TROUBLE_H
#define REDLOCK_TROUBLE_H

#include "shared/lease.h"

typedef enum TroubleKind
{
	TROUBLE_UNRENEWED,
	TROUBLE_LOST,
	TROUBLE_LEFT, /* the owner has gone */
	TROUBLES      /* number of kinds */
} TroubleKind;

/* Logs a lease with each node's vote of the last round; or counts it for the next summary. */
extern void trouble_log(Lease *lease, TroubleKind kind, int64 now_us);

/* Logs due summaries.  Returns the time of the next call. */
extern int64 trouble_sum_up(int64 now_us);

/* Logs all summaries, as the broker ends. */
extern void trouble_end(void);

#endif /* REDLOCK_TROUBLE_H */
