/*
 * local_notes.h
 *		The notes of last runs at the node inside the server: run_note.lua in C, for few jobs.
 *
 * The note that ends first makes room for the note of another job.  Zeroed memory is an empty
 * table.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_LOCAL_NOTES_H
#define REDLOCK_LOCAL_NOTES_H

#include "protocol/lua.h"
#include "protocol/run_note.h"

#define LOCAL_NOTES_MAX 128

typedef struct local_note
{
	int64_t ends_us; /* the note counts until then, by the node's clock; 0: the place is free */
	char job[LOCK_NAME_MAX + 1];
	RunNote run;
} local_note;

typedef struct local_notes
{
	local_note note[LOCAL_NOTES_MAX];
} local_notes;

/* Returns the note of a job, or NULL. */
extern const RunNote *local_notes_find(const local_notes *notes, const char *job, int64_t now_us);

/*
 * Keeps a note for keep_us, unless a newer run of the job has left its note.  The job's name has
 * LOCK_NAME_MAX bytes at most.
 */
extern void local_notes_keep(local_notes *notes, const char *job, const RunNote *run,
							 int64_t now_us, int64_t keep_us);

#endif /* REDLOCK_LOCAL_NOTES_H */
