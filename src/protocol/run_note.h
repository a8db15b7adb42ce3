/*
 * run_note.h
 *		The note of a job's last recorded run, at the nodes: run_note.lua keeps the notes.
 *
 * Any program may write under the key of the notes, so a reader trusts no note.  Pure.
 */
#ifndef REDLOCK_RUN_NOTE_H
#define REDLOCK_RUN_NOTE_H

#include <stddef.h>

#include "protocol/lua.h"

#define RUN_NOTE_MESSAGE_MAX 200 /* bytes of the message */

typedef enum RunNoteStatus
{
	RUN_NOTE_SUCCEEDED,
	RUN_NOTE_FAILED,
	RUN_NOTE_LOST
} RunNoteStatus;

/* by RunNoteStatus; as in redlock_runs */
extern const char *const run_note_status[RUN_NOTE_LOST + 1];

/* The texts should be UTF-8.  Times are in us since 1970. */
typedef struct RunNote
{
	int64_t token;
	int64_t started_us;
	int64_t ended_us;
	RunNoteStatus status;
	uint64_t host_id;
	int pid;
	char cluster[64]; /* cluster_name; empty: not set */
	char host[64];    /* name of the machine */
	char database[128];
	char role[128];
	char message[RUN_NOTE_MESSAGE_MAX + 1];
} RunNote;

/* Writes a note into LUA_NOTE_MAX bytes, and returns its length. */
extern size_t run_note_write(char *out, const RunNote *note);

/*
 * Reads a note.  Returns false if the bytes are no note, or if the token is too far ahead of
 * now_us, the wall clock: such a note would hide all later runs.  Words behind the last word are
 * left to later versions.
 */
extern bool run_note_read(RunNote *note, const char *bytes, size_t len, int64_t now_us);

/* Returns 1 for a newer run than the other, -1 for an older run, 0 for the same run. */
extern int run_note_compare(const RunNote *note, const RunNote *other);

#endif /* REDLOCK_RUN_NOTE_H */
