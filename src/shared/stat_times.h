/*
 * stat_times.h
 *		Histograms of times, for the views redlock_stat_...
 */
#ifndef REDLOCK_STAT_TIMES_H
#define REDLOCK_STAT_TIMES_H

#include "port/pg_bitutils.h"

/*
 * Bucket n counts times from 2^n to below 2^(n+1) microseconds; the first also shorter times, the
 * last, from 36 minutes on, also longer times.
 */
#define STAT_BUCKETS 32

static inline int
stat_bucket(int64 us)
{
	if (us < 2)
		return 0;
	return Min(pg_leftmost_one_pos64((uint64) us), STAT_BUCKETS - 1);
}

#endif /* REDLOCK_STAT_TIMES_H */
