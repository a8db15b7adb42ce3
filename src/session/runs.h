/*
 * runs.h
 *		The table redlock_runs: recorded runs of redlock_run.
 *
 * A run has a row, committed before the command begins.  A run that succeeds updates the row in
 * its last commit.  When a run fails, the session's transaction rolls back; so a separate process,
 * the writer, updates the row.  The writer inserts a row if the run failed before it had one.
 *
 * A run in a transaction block cannot commit.  Its row belongs to the transaction of the caller: a
 * rollback loses the row, so a run that fails leaves no row.  Such a run leaves the rows of other
 * runs alone: the transaction may last, and would keep these rows locked.
 *
 * A run that committed its row also leaves a note at the nodes, see run_notes.h: by the session
 * after a success, by the writer after a failure.
 */
#ifndef REDLOCK_RUNS_H
#define REDLOCK_RUNS_H

#include "commands/trigger.h"
#include "storage/itemptr.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

/* A recorded call of redlock_run, or of redlock_run_all: then `resource` is the first name. */
typedef struct Run
{
	Oid schema; /* of redlock_runs */
	const char *resource;
	const char *utf8; /* the same in UTF-8 */
	const char *command;
	const char *role;
	int64 session;
	TimestampTz called;
	bool in_transaction; /* the row belongs to the caller's transaction */
	bool begun;          /* the run is under way, and has this row: */
	pg_uuid_t id;
	ItemPointerData place; /* where the row was written */
	int64 token;
	TimestampTz started;
	TimestampTz ended; /* if the run has succeeded */
} Run;

/*
 * Called before all others; the arguments must outlast the run.  Raises an error (42P01) if the
 * schema has no table redlock_runs.
 */
extern void runs_prepare(Run *run, Oid schema, const char *resource, const char *utf8,
						 const char *command, bool in_transaction);

/*
 * Writes the row of a run that begins, with the rights of the owner of redlock_runs.  Unless
 * in_transaction, the caller commits the row at once.  Then the call also ends the rows of this
 * server's runs that are known to be over, and deletes some rows that began before
 * redlock.runs_keep.
 */
extern void runs_begin(Run *run, int64 token);

/*
 * Enclose the command, from the commit of the row to the end of the run: other runs that this
 * session begins in between must not end the row.  runs_fail calls runs_leave.
 */
extern void runs_enter(Run *run);
extern void runs_leave(Run *run);

/* Writes the row of a skipped run, with the reason; the caller commits as for runs_begin. */
extern void runs_skip(Run *run, const char *message);

/* Writes the success into the row; the caller commits as for runs_begin. */
extern void runs_succeed(Run *run);

/* Leaves a note of a run that has succeeded at the nodes, after its last commit; no error. */
extern void runs_note(const Run *run);

/* A lost lease of the session of a failed run. */
typedef struct RunLoss
{
	const char *name; /* of the lock */
	char *reason;     /* a sentence; NULL: no lease is lost */
	bool of_run;      /* the run has acquired the lock; else an outer run, or the session */
	bool cancelled;   /* the loss has cancelled the command */
} RunLoss;

/*
 * For PG_CATCH, unless in_transaction: reports the error of this run, or an error before the
 * command.  Raises a WARNING if there is no way to report the error.
 */
extern void runs_fail(Run *run, const RunLoss *loss, MemoryContext context);

/* Trigger of the table, for rows from logical replication. */
extern Datum runs_merge(TriggerData *trigger);

/* The writer. */
extern PGDLLEXPORT void redlock_runs_main(Datum unused);

#endif /* REDLOCK_RUNS_H */
