/*
 * runs.h
 *		The table redlock_runs: what became of the recorded runs of redlock_run.
 *
 * A run has a row, committed before the command begins.  Who ends well writes that into it
 * with its last commit; for one that fails a process of its own does, when the session's
 * transaction has no say any more.
 */
#ifndef REDLOCK_RUNS_H
#define REDLOCK_RUNS_H

#include "commands/trigger.h"
#include "storage/itemptr.h"
#include "utils/uuid.h"

/* Of a run that is not over. */
typedef struct RunRow
{
	pg_uuid_t id;
	ItemPointerData place; /* where it was written */
} RunRow;

/* An error, 42P01, if there is no such table in this schema. */
extern void runs_require(Oid schema);

/*
 * All in the schema of redlock_runs, with the rights of its owner.  The row of a run that
 * begins; the caller commits it at once.  Runs of this server whose sessions have
 * gone without a word end here, and those are deleted that began before redlock.runs_keep.
 */
extern void runs_begin(Oid schema, const char *resource, const char *command, int64 token,
					   RunRow *row);
/*
 * Around a run, between its begin and its end, by an error too: others that this session begins
 * meanwhile must not end it.
 */
extern void runs_enter(void);
extern void runs_leave(void);

extern void runs_skip(Oid schema, const char *resource, const char *command);
extern void runs_succeed(Oid schema, const RunRow *row);

/*
 * In PG_CATCH: the error of this run.  lost: its lease was; cancelled: for that.  A WARNING if it
 * can't be told.
 */
extern void runs_fail(Oid schema, const pg_uuid_t *id, const char *resource, bool lost,
					  bool cancelled, MemoryContext context);

/* Trigger of the table, for what logical replication brings. */
extern Datum runs_merge(TriggerData *trigger);

/* The process. */
extern PGDLLEXPORT void redlock_runs_main(Datum unused);

#endif /* REDLOCK_RUNS_H */
