/*
 * intervals.c
 *		Intervals of SQL as microseconds, and microseconds as intervals.
 */
#include "postgres.h"

#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "sql/intervals.h"

/*
 * Converts as PostgreSQL compares intervals: a month has 30 days.  Very long intervals are cut
 * to a length that is still over all limits.
 */
int64
interval_us(const Interval *interval)
{
	static const double far = 1e15;
	double us =
		(double) interval->time +
		((double) interval->day + (double) interval->month * DAYS_PER_MONTH) * USECS_PER_DAY;

	return (int64) Min(Max(us, -far), far);
}

/* For messages. */
char *
interval_text(Interval *interval)
{
	return DatumGetCString(DirectFunctionCall1(interval_out, IntervalPGetDatum(interval)));
}

Interval *
make_interval_us(int64 us)
{
	Interval *interval = palloc0(sizeof(Interval));

	interval->time = us;
	return interval;
}
