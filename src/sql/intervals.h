/*
 * intervals.h
 *		Intervals of SQL as microseconds, and microseconds as intervals.
 */
#ifndef REDLOCK_INTERVALS_H
#define REDLOCK_INTERVALS_H

#include "datatype/timestamp.h"

/* An interval over about 30 years, of either sign, is cut to that length. */
extern int64 interval_us(const Interval *interval);

/* Both results are palloc'd. */
extern char *interval_text(Interval *interval);
extern Interval *make_interval_us(int64 us);

#endif /* REDLOCK_INTERVALS_H */
