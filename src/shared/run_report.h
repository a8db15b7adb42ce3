/*
 * run_report.h
 *		Shared memory: what a session says of a recorded run that failed, for the process
 *		that writes it down, since the session's own transaction is rolled back.
 *
 * A few places, each taken by a session and given back by that process, or, when it has not
 * come for RUN_REPORT_LASTS_US, taken by another session.
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

/* The place, or -1 if there is none.  Never fails. */
extern int run_report_put(const RunReport *report);

/* False: there is none any more. */
extern bool run_report_take(int place, RunReport *report);

#endif /* REDLOCK_RUN_REPORT_H */
