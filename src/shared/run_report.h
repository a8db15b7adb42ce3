/*
 * run_report.h
 *		Shared memory of recorded runs: which sessions have recorded some; and what a session
 *		says of one that failed, for the process that writes it down, since the session's own
 *		transaction is rolled back.
 *
 * Reports have a few places.  Each is given back by that process, or, when it has not come for
 * RUN_REPORT_LASTS_US, taken by another session.
 */
#ifndef REDLOCK_RUN_REPORT_H
#define REDLOCK_RUN_REPORT_H

#include "utils/uuid.h"

#define RUN_REPORTS 32
#define RUN_REPORT_LASTS_US INT64CONST(60000000)
#define RUN_MESSAGE_SIZE 1024

typedef struct RunReport
{
	Oid database;
	Oid schema;                     /* of redlock_runs */
	pg_uuid_t id;                   /* of the run */
	bool lost;                      /* the lease was, in this run */
	char message[RUN_MESSAGE_SIZE]; /* in the encoding of the database */
} RunReport;

/* postmaster */
extern Size run_report_size(void);
extern void run_report_set_up(void); /* under AddinShmemInitLock */

/* Of this session: random, known from now on as living, until it ends. */
extern int64 run_report_session(void);
extern void run_report_end_session(void); /* never fails */

extern bool run_report_lives(int64 session);

/* Its number, or 0 if there is no place.  Never fails. */
extern uint64 run_report_put(const RunReport *report);

/* False: it is there no more. */
extern bool run_report_take(uint64 number, RunReport *report);

#endif /* REDLOCK_RUN_REPORT_H */
