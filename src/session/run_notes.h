/*
 * run_notes.h
 *		The last recorded run of a job, as the nodes know it: leaving a note, and asking.
 */
#ifndef REDLOCK_RUN_NOTES_H
#define REDLOCK_RUN_NOTES_H

#include "protocol/run_note.h"
#include "session/inspect_lock.h"
#include "utils/timestamp.h"

/* An ended run.  The texts are in the encoding of this database, but for `resource`. */
typedef struct EndedRun
{
	const char *resource; /* in UTF-8 */
	const char *role;
	int64 token;
	int pid;
	TimestampTz started;
	TimestampTz ended;
	RunNoteStatus status;
	const char *message; /* or NULL */
} EndedRun;

/*
 * Orders the broker to leave a note of the run at the nodes, and waits for nothing.  Needs a
 * transaction.  Logs a failure, which is no error; so does the broker.  Leaves no note if
 * redlock.last_run_keep is 0, and with the node inside the server.
 */
extern void run_notes_leave(const EndedRun *run);

/*
 * Asks the nodes.  answer->noted: the nodes with the note.  Errors as by inspect_lock and
 * inspect_judge.
 */
extern void run_notes_ask(const LockName *name, InspectAnswer *answer);

#endif /* REDLOCK_RUN_NOTES_H */
