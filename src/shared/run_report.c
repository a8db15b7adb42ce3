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

#include "shared/clock.h"
#include "shared/compat.h"
#include "shared/run_report.h"

#define LOCK_NAME "redlock_pg runs"

typedef struct Place
{
	uint64 number; /* 0: free */
	int64 taken_us;
	bool has_writer;  /* a writer with this number is under way, or here until it ends */
	bool is_there;    /* the writer has come, and has taken this report */
	RunReport report; /* of a writer that is there: the report that it writes */
} Place;

typedef struct RunReports
{
	LWLock *lock; /* for all fields but `session` */
	uint64 last_number;
	pg_atomic_uint64 *session; /* by procno */
	Place place[FLEXIBLE_ARRAY_MEMBER];
} RunReports;

static RunReports *reports = NULL;

static Size places_size(void);
static Place *find(uint64 number);
static Place *find_unwritten(Oid database, int64 now_us);
static void send_writer(Place *place, int64 now_us, bool (*start_writer)(uint64 number));
static bool is_coming(const Place *place, int64 now_us);
static bool is_left(const Place *place, int64 now_us);

void
run_report_request(void)
{
	RequestAddinShmemSpace(
		add_size(places_size(), mul_size(MaxBackends, sizeof(pg_atomic_uint64))));
	RequestNamedLWLockTranche(LOCK_NAME, 1);
}

static Size
places_size(void)
{
	return MAXALIGN(add_size(offsetof(RunReports, place), mul_size(MaxBackends, sizeof(Place))));
}

void
run_report_set_up(void)
{
	Size sessions_size = mul_size(MaxBackends, sizeof(pg_atomic_uint64));
	bool found;

	reports = ShmemInitStruct("redlock_pg runs", add_size(places_size(), sessions_size), &found);
	if (found)
		return;
	memset(reports, 0, places_size());
	reports->lock = &GetNamedLWLockTranche(LOCK_NAME)->lock;
	reports->session = (pg_atomic_uint64 *) ((char *) reports + places_size());
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

/*
 * Holds the lock throughout: no session relies on a writer that could not start, or that has just
 * found no report left.
 */
RunReportFate
run_report_put(const RunReport *report, bool (*start_writer)(uint64 number))
{
	int64 now_us = redlock_clock_us();
	RunReportFate fate = RUN_REPORT_NO_PLACE;
	Place *place = NULL;
	bool comes = false;

	LWLockAcquire(reports->lock, LW_EXCLUSIVE);
	for (int i = 0; i < MaxBackends; i++)
	{
		Place *other = &reports->place[i];

		if (other->number == 0 && (place == NULL || place->number != 0))
			place = other;
		else if (is_left(other, now_us) && place == NULL)
			place = other;
		comes = comes || (other->report.database == report->database && is_coming(other, now_us));
	}
	if (place != NULL)
	{
		place->number = ++reports->last_number;
		place->taken_us = now_us;
		place->has_writer = false;
		place->is_there = false;
		place->report = *report;
		if (!comes)
			send_writer(place, now_us, start_writer);
		fate = comes || place->has_writer ? RUN_REPORT_TOLD : RUN_REPORT_NO_PROCESS;
	}
	LWLockRelease(reports->lock);
	return fate;
}

bool
run_report_next(uint64 writer, RunReport *report)
{
	int64 now_us = redlock_clock_us();
	Place *own;
	Place *next = NULL;

	LWLockAcquire(reports->lock, LW_EXCLUSIVE);
	own = find(writer);
	if (own != NULL && !own->is_there)
	{
		next = own;
		own->is_there = true;
	}
	else if (own != NULL)
	{
		next = find_unwritten(own->report.database, now_us);
		if (next != NULL)
			own->report = next->report;
		(next != NULL ? next : own)->number = 0;
	}
	if (next != NULL)
		*report = own->report;
	LWLockRelease(reports->lock);
	return next != NULL;
}

int
run_report_waiting(Oid database, pg_uuid_t *ids)
{
	int64 now_us = redlock_clock_us();
	bool comes = false;
	int count = 0;

	LWLockAcquire(reports->lock, LW_SHARED);
	for (int i = 0; i < MaxBackends; i++)
	{
		const Place *place = &reports->place[i];

		if (place->number == 0 || place->report.database != database)
			continue;
		comes = comes || is_coming(place, now_us);
		if (place->report.begun)
			ids[count++] = place->report.id;
	}
	LWLockRelease(reports->lock);
	return comes ? count : 0;
}

void
run_report_end_writer(uint64 writer, bool (*start_writer)(uint64 number))
{
	int64 now_us = redlock_clock_us();
	Place *own;

	LWLockAcquire(reports->lock, LW_EXCLUSIVE);
	own = find(writer);
	if (own != NULL)
	{
		Place *next;

		own->number = 0;
		next = find_unwritten(own->report.database, now_us);
		if (next != NULL)
			send_writer(next, now_us, start_writer);
	}
	LWLockRelease(reports->lock);
}

static Place *
find(uint64 number)
{
	for (int i = 0; i < MaxBackends; i++)
		if (reports->place[i].number == number)
			return &reports->place[i];
	return NULL;
}

/* Returns the place of a report of the database that no writer will write; NULL: there is none. */
static Place *
find_unwritten(Oid database, int64 now_us)
{
	for (int i = 0; i < MaxBackends; i++)
	{
		Place *place = &reports->place[i];

		if (place->number != 0 && place->report.database == database &&
			(!place->has_writer || is_left(place, now_us)))
			return place;
	}
	return NULL;
}

/* The place gets a new number: an earlier writer that comes late finds no report. */
static void
send_writer(Place *place, int64 now_us, bool (*start_writer)(uint64 number))
{
	place->number = ++reports->last_number;
	place->taken_us = now_us;
	place->has_writer = start_writer(place->number);
}

/* Is the writer of this report under way, or here? */
static bool
is_coming(const Place *place, int64 now_us)
{
	return place->number != 0 && place->has_writer && !is_left(place, now_us);
}

/* Has no writer come for long?  A writer that is here frees the place itself. */
static bool
is_left(const Place *place, int64 now_us)
{
	return place->number != 0 && !place->is_there &&
		   now_us - place->taken_us >= RUN_REPORT_LASTS_US;
}
