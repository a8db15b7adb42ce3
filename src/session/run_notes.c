/*
 * run_notes.c
 *		The last recorded run of a job, as the nodes know it; see run_notes.h.
 *
 * A run leaves its note after its last commit, and holds its lock still.  So the session leaves an
 * order to the broker, and waits for nothing: a wait could outlast the lease, and neither a failure
 * nor a cancel may make an error of the run any more.
 */
#include "postgres.h"

#include <unistd.h>

#include "commands/dbcommands.h" /* get_database_name, up to 18 */
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"

#include "session/encoding.h"
#include "session/run_notes.h"
#include "shared/clock.h"
#include "shared/guc.h"
#include "shared/lease.h"

static void describe(RunNote *note, const EndedRun *run);
static void write_question(InspectQuestion *question, const char *utf8);

void
run_notes_leave(const EndedRun *run)
{
	InspectQuestion question;
	RunNote note;

	if (redlock_last_run_keep_s == 0 || redlock_nodes()->count == 0)
		return;
	describe(&note, run);
	write_question(&question, run->resource);
	question.value_len = run_note_write(question.value, &note);
	HOLD_INTERRUPTS(); /* also while ereport would handle a cancel */
	if (!inspect_queue_order(&question))
		ereport(LOG,
				(errmsg("no place is free for the note of the last run of \"%s\"",
						encoding_from_utf8(run->resource)),
				 errdetail("The redlock broker does not run, or %d notes wait for the broker.",
						   INSPECT_ORDERS),
				 errhint("See redlock_runs for this run: redlock_last_run may tell of an earlier "
						 "run.")));
	RESUME_INTERRUPTS();
}

static void
describe(RunNote *note, const EndedRun *run)
{
	char *database = get_database_name(MyDatabaseId);

	*note = (RunNote){.token = run->token,
					  .started_us = run->started + REDLOCK_EPOCHS_APART_US,
					  .ended_us = run->ended + REDLOCK_EPOCHS_APART_US,
					  .status = run->status,
					  .host_id = lease_table->host_id,
					  .pid = run->pid};
	strlcpy(note->cluster, cluster_name, sizeof(note->cluster));
	gethostname(note->host, sizeof(note->host) - 1);
	encoding_to_utf8(note->database, sizeof(note->database), database != NULL ? database : "");
	encoding_to_utf8(note->role, sizeof(note->role), run->role);
	encoding_to_utf8(note->message, sizeof(note->message),
					 run->message != NULL ? run->message : "");
}

void
run_notes_ask(const LockName *name, InspectAnswer *answer)
{
	InspectQuestion question;
	Inspection inspection;

	write_question(&question, name->utf8);
	inspect_key(name, &question, answer);
	inspect_judge(name, answer, &inspection);
}

static void
write_question(InspectQuestion *question, const char *utf8)
{
	memset(question, 0, sizeof(*question));
	question->kind = INSPECT_RUN;
	question->key_len = strlen(utf8);
	memcpy(question->key, utf8, question->key_len);
}
