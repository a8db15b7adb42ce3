/*
 * run_report.h
 *		Shared memory of recorded runs: which sessions have recorded some; and what a session
 *		says of one that failed, for the process that writes it down, since the session's own
 *		transaction is rolled back.
 *
 * A process that comes for one report writes all of its database that are there by then, so
 * one such process at a time is enough.  There are as many places as processes.  A report
 * whose process has not come for RUN_REPORT_LASTS_US may lose its place to another.
 */
#ifndef REDLOCK_RUN_REPORT_H
#define REDLOCK_RUN_REPORT_H

#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "protocol/lua.h"

#define RUN_REPORT_LASTS_US INT64CONST(60000000)
#define RUN_MESSAGE_SIZE 1024
#define RUN_COMMAND_SIZE 1025 /* bytes of a command that are written down, and a NUL */

typedef struct RunReport
{
	Oid database;
	Oid schema;   /* of redlock_runs */
	pg_uuid_t id; /* of the row, if the run had begun */
	bool begun;
	bool lost; /* the lease was, in this run */
	TimestampTz ended;
	char message[RUN_MESSAGE_SIZE]; /* in the encoding of the database */

	/* for the row of a run that had not begun */
	TimestampTz called;
	int pid;
	int64 session;
	char role[NAMEDATALEN];
	char resource[LOCK_NAME_MAX + 1]; /* in UTF-8 */
	char command[RUN_COMMAND_SIZE];
} RunReport;

typedef enum RunReportFate
{
	RUN_REPORT_TOLD,
	RUN_REPORT_NO_PLACE,
	RUN_REPORT_NO_PROCESS,
} RunReportFate;

/* postmaster */
extern void run_report_request(void);
extern void run_report_set_up(void); /* under AddinShmemInitLock */

/* Of this session: random, known from now on as living, until it ends. */
extern int64 run_report_session(void);
extern void run_report_end_session(void); /* never fails */

extern bool run_report_lives(int64 session);

/*
 * Unless a process is on its way, `start_writer` starts one, with a number that is its own; it
 * may not throw, and returns false if it could not.  The report is left to a later one then.
 */
extern RunReportFate run_report_put(const RunReport *report, bool (*start_writer)(uint64 number));

/*
 * For that process: what it is to write next.  False: there is nothing left, and it is not
 * counted upon any more.
 */
extern bool run_report_next(uint64 writer, RunReport *report);

/* Nor is it when it ends, by an error too. */
extern void run_report_end_writer(uint64 writer);

#endif /* REDLOCK_RUN_REPORT_H */
