/*
 * run_notes.c
 *		The last recorded run of a job, as the nodes know it; see run_notes.h.
 *
 * A run leaves its note after its last commit, so neither a failure nor a cancel may make an error
 * of the run any more.
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

/* One exchange with the nodes, and a second for a place in the queue; this much at most. */
#define WAIT_US                                                                                    \
	Min(INT64CONST(5000000), INT64CONST(1000000) + redlock_node_timeout_ms * INT64CONST(1000))

/* us from the beginning of Unix time to PostgreSQL's */
#define EPOCHS_APART_US (INT64CONST(86400000000) * (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE))

static void describe(RunNote *note, const EndedRun *run);
static const char *leave(const InspectQuestion *question, InspectAnswer *answer);
static void write_question(InspectQuestion *question, const char *utf8);

void
run_notes_leave(const EndedRun *run)
{
	const NodeUrls *nodes = redlock_nodes();
	InspectQuestion question;
	InspectAnswer *answer;
	RunNote note;
	const char *failure;

	if (redlock_last_run_keep_s == 0 || nodes->count == 0 || nodes->url[0].is_local)
		return;
	describe(&note, run);
	answer = palloc(sizeof(InspectAnswer));
	write_question(&question, run->resource);
	question.value_len = run_note_write(question.value, &note);
	HOLD_INTERRUPTS();
	failure = leave(&question, answer);
	RESUME_INTERRUPTS();
	if (failure == NULL)
	{
		Inspection inspection;

		inspection_judge(&inspection, answer->lists, answer->node);
		if (inspection.state == INSPECTION_NO_QUORUM)
			failure = psprintf("No usable answer from: %s.", inspect_faults(answer));
	}
	if (failure != NULL)
		ereport(LOG,
				(errmsg("no quorum of redlock nodes has noted the last run of \"%s\"",
						encoding_from_utf8(run->resource)),
				 errdetail("%s", failure),
				 errhint("See redlock_runs for this run: redlock_last_run may tell of an earlier "
						 "run.")));
	pfree(answer);
}

static void
describe(RunNote *note, const EndedRun *run)
{
	char *database = get_database_name(MyDatabaseId);

	*note = (RunNote){.token = run->token,
					  .started_us = run->started + EPOCHS_APART_US,
					  .ended_us = run->ended + EPOCHS_APART_US,
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

/* Returns NULL if the nodes have answered, otherwise a sentence.  The caller holds interrupts. */
static const char *
leave(const InspectQuestion *question, InspectAnswer *answer)
{
	int64 deadline_us = redlock_clock_us() + WAIT_US;
	int place = -1;
	bool answered = false;

	for (;;)
	{
		int64 left_us = deadline_us - redlock_clock_us();

		if (lease_broker_pid() == 0)
			break;
		if (place < 0)
			place = inspect_queue_enter(question);
		answered = place >= 0 && inspect_queue_copy(place, answer);
		if (answered || left_us <= 0)
			break;
		inspect_queue_wait(left_us / 1000 + 1);
	}
	inspect_queue_end_wait();
	if (place >= 0)
		inspect_queue_leave(place);
	if (answered)
		return NULL;
	return lease_broker_pid() == 0 ? "The redlock broker does not run."
		   : place < 0             ? "Too many sessions ask the nodes at this time."
								   : "The redlock broker has not had the answers in time.";
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
