/*
 * run_report.h
 *		Shared memory of recorded runs: the sessions that have recorded a run, and the reports
 *		of failed runs.  The transaction of a failed run rolls back, so another process writes
 *		the report to the table.
 *
 * A writer process comes for one report, and writes all reports of its database that it finds.  So
 * one writer at a time is enough.  There are as many places as processes.  If the writer of a
 * report has not come for RUN_REPORT_LASTS_US, the report may lose its place to another report.
 */
#ifndef REDLOCK_RUN_REPORT_H
#define REDLOCK_RUN_REPORT_H

#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "protocol/lua.h"

#define RUN_REPORT_LASTS_US INT64CONST(60000000)
#define RUN_MESSAGE_SIZE 1024
#define RUN_COMMAND_SIZE 1025 /* bytes of a recorded command, and a NUL */

typedef struct RunReport
{
	Oid database;
	pg_uuid_t id; /* of the row, if the run had begun */
	bool begun;
	bool lost;           /* the lease was lost in this run */
	int64 token;         /* if the run had begun */
	TimestampTz started; /* of the run; or of the call, if the run had not begun */
	TimestampTz ended;
	char message[RUN_MESSAGE_SIZE]; /* in the encoding of the database */

	int pid;
	char role[NAMEDATALEN];
	char resource[LOCK_NAME_MAX + 1]; /* in UTF-8 */

	/* for the row of a run that had not begun */
	TimestampTz called;
	int64 session;
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

/*
 * Returns the number of this session: random, known as living from the first call to the session's
 * end.
 */
extern int64 run_report_session(void);
extern void run_report_end_session(void); /* never fails */

extern bool run_report_lives(int64 session);

/*
 * Puts a report into a place.  If no writer is under way, calls `start_writer` with a new number.
 * start_writer must not throw; it returns false if it could start no process, and then a later
 * writer takes the report.
 */
extern RunReportFate run_report_put(const RunReport *report, bool (*start_writer)(uint64 number));

/*
 * Copies the ids of runs of this database whose end a writer is about to write; returns their
 * number.  `ids` has room for MaxBackends.
 */
extern int run_report_waiting(Oid database, pg_uuid_t *ids);

/*
 * The writer calls this for the next report, after the last report's row is committed.  False: no
 * report is left, and the writer no longer counts as under way.
 */
extern bool run_report_next(uint64 writer, RunReport *report);

/*
 * The writer calls this at its end.  If a FATAL error has ended the writer, and the database has
 * another report without a writer, calls `start_writer` for this report.
 */
extern void run_report_end_writer(uint64 writer, bool (*start_writer)(uint64 number));

#endif /* REDLOCK_RUN_REPORT_H */
