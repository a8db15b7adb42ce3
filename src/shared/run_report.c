/*
 * run_report.c
 *		Reports of recorded runs that failed; see run_report.h.
 */
#include "postgres.h"

#include "storage/shmem.h"
#include "storage/spin.h"

#include "shared/clock.h"
#include "shared/run_report.h"

typedef struct Place
{
	int64 taken_us; /* 0: free */
	RunReport report;
} Place;

typedef struct RunReports
{
	slock_t mutex; /* for `taken_us` */
	Place place[RUN_REPORTS];
} RunReports;

static RunReports *reports = NULL;

Size
run_report_size(void)
{
	return sizeof(RunReports);
}

void
run_report_set_up(void)
{
	bool found;

	reports = ShmemInitStruct("redlock_pg runs", sizeof(RunReports), &found);
	if (found)
		return;
	memset(reports, 0, sizeof(RunReports));
	SpinLockInit(&reports->mutex);
}

int
run_report_put(const RunReport *report)
{
	int64 now_us = redlock_clock_us();

	for (int i = 0; i < RUN_REPORTS; i++)
	{
		Place *place = &reports->place[i];
		bool taken;

		SpinLockAcquire(&reports->mutex);
		taken = place->taken_us != 0 && now_us - place->taken_us < RUN_REPORT_LASTS_US;
		if (!taken)
			place->taken_us = now_us;
		SpinLockRelease(&reports->mutex);
		if (taken)
			continue;
		place->report = *report;
		return i;
	}
	return -1;
}

/* The process that takes it was started after it was put. */
bool
run_report_take(int i, RunReport *report)
{
	Place *place = &reports->place[i];
	bool taken;

	*report = place->report;
	SpinLockAcquire(&reports->mutex);
	taken = place->taken_us != 0;
	place->taken_us = 0;
	SpinLockRelease(&reports->mutex);
	return taken;
}
