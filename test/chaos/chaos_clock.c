/*
 * chaos_clock.c
 *		The clock of leases for SQL: microseconds of CLOCK_BOOTTIME.
 *
 * The histories of test/chaos are ordered by this clock.  All processes of the machine share it,
 * and no wrong wall clock changes it.
 */
#include "postgres.h"

#include <time.h>

#include "fmgr.h"

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(chaos_clock);

Datum
chaos_clock(PG_FUNCTION_ARGS)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	PG_RETURN_INT64((int64) now.tv_sec * 1000000 + now.tv_nsec / 1000);
}
