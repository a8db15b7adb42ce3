/*
 * run_report.c
 *		Recorded runs; see run_report.h.
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/spin.h"

#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/run_report.h"

typedef struct Place
{
	uint64 number; /* 0: free */
	int64 taken_us;
	RunReport report;
} Place;

typedef struct RunReports
{
	slock_t mutex; /* for all but the sessions */
	uint64 last_number;
	Place place[RUN_REPORTS];
	pg_atomic_uint64 session[FLEXIBLE_ARRAY_MEMBER]; /* by procno */
} RunReports;

static RunReports *reports = NULL;

Size
run_report_size(void)
{
	return add_size(offsetof(RunReports, session), mul_size(MaxBackends, sizeof(pg_atomic_uint64)));
}

void
run_report_set_up(void)
{
	bool found;

	reports = ShmemInitStruct("redlock_pg runs", run_report_size(), &found);
	if (found)
		return;
	memset(reports, 0, run_report_size());
	SpinLockInit(&reports->mutex);
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u64(&reports->session[i], 0);
}

int64
run_report_session(void)
{
	pg_atomic_uint64 *own = &reports->session[REDLOCK_MY_PROCNO];

	while (pg_atomic_read_u64(own) == 0)
		pg_atomic_write_u64(own, pg_prng_uint64(&pg_global_prng_state) >> 1);
	return (int64) pg_atomic_read_u64(own);
}

void
run_report_end_session(void)
{
	pg_atomic_write_u64(&reports->session[REDLOCK_MY_PROCNO], 0);
}

bool
run_report_lives(int64 session)
{
	for (int i = 0; i < MaxBackends; i++)
		if (pg_atomic_read_u64(&reports->session[i]) == (uint64) session)
			return true;
	return false;
}

uint64
run_report_put(const RunReport *report)
{
	int64 now_us = redlock_clock_us();
	uint64 number = 0;

	for (int i = 0; i < RUN_REPORTS && number == 0; i++)
	{
		Place *place = &reports->place[i];

		SpinLockAcquire(&reports->mutex);
		if (place->number == 0 || now_us - place->taken_us >= RUN_REPORT_LASTS_US)
		{
			number = ++reports->last_number;
			place->number = number;
			place->taken_us = now_us;
			place->report = *report;
		}
		SpinLockRelease(&reports->mutex);
	}
	return number;
}

bool
run_report_take(uint64 number, RunReport *report)
{
	bool found = false;

	for (int i = 0; i < RUN_REPORTS && !found; i++)
	{
		Place *place = &reports->place[i];

		SpinLockAcquire(&reports->mutex);
		found = place->number == number;
		if (found)
		{
			*report = place->report;
			place->number = 0;
		}
		SpinLockRelease(&reports->mutex);
	}
	return found;
}
