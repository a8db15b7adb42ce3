/*
 * runs.h
 *		The table redlock_runs: what became of the recorded runs of redlock_run.
 *
 * A run has a row, committed before the command begins.  A run that succeeds writes so into the
 * row with its last commit.  Of a run that fails a process of its own writes it, since the
 * session's transaction is rolled back; that process adds the row if the run failed before it had
 * one.
 */
#ifndef REDLOCK_RUNS_H
#define REDLOCK_RUNS_H

#include "commands/trigger.h"
#include "storage/itemptr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

/* A call of redlock_run that is recorded. */
typedef struct Run
{
	Oid schema; /* of redlock_runs */
	const char *resource;
	const char *utf8; /* the same in UTF-8 */
	const char *command;
	const char *role;
	int64 session;
	TimestampTz called;
	bool begun; /* it is under way, and has this row: */
	pg_uuid_t id;
	ItemPointerData place; /* where the row was written */
} Run;

/*
 * Call it first; its arguments must outlast the run.  Fails with 42P01 if the schema has no table
 * redlock_runs.
 */
extern void runs_prepare(Run *run, Oid schema, const char *resource, const char *utf8,
						 const char *command);

/*
 * Write the row of a run that begins, with the rights of the owner of redlock_runs; the caller
 * commits it at once.  Runs of this server that tell nothing any more end here, and some rows are
 * deleted that began before redlock.runs_keep.
 */
extern void runs_begin(Run *run, int64 token);

/*
 * Around the command, when its row is committed, and until its end is: other runs that this
 * session begins meanwhile must not end it.  runs_fail leaves by itself.
 */
extern void runs_enter(Run *run);
extern void runs_leave(Run *run);

/* Write the row of a skipped run, with the reason; the caller commits it at once. */
extern void runs_skip(Run *run, const char *message);

extern void runs_succeed(const Run *run);

/*
 * In PG_CATCH: the error of this run, or of what comes before its command.  loss: why its lease
 * was lost, or NULL; cancelled: for that.  A WARNING if it can't be told.
 */
extern void runs_fail(Run *run, const char *loss, bool cancelled, MemoryContext context);

/* Trigger of the table, for what logical replication brings. */
extern Datum runs_merge(TriggerData *trigger);

/* The process. */
extern PGDLLEXPORT void redlock_runs_main(Datum unused);

#endif /* REDLOCK_RUNS_H */
