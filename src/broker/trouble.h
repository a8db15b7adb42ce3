/*
 * trouble.h
 *		What is logged of leases in trouble, so that many don't fill the log.
 */
#ifndef REDLOCK_TROUBLE_H
#define REDLOCK_TROUBLE_H

#include "shared/lease.h"

typedef enum TroubleKind
{
	TROUBLE_UNRENEWED,
	TROUBLE_LOST,
	TROUBLE_LEFT, /* by its owner */
	TROUBLES      /* how many */
} TroubleKind;

/* Log it, with what each node said in the last round; or count it, to be summed up. */
extern void trouble_log(Lease *lease, TroubleKind kind, int64 now_us);

/* Sum up what was counted when its time is over.  Returns when to be called again. */
extern int64 trouble_sum_up(int64 now_us);

/* The broker ends: sum up all. */
extern void trouble_end(void);

#endif /* REDLOCK_TROUBLE_H */
