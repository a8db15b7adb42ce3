/*
 * run_note.c
 *		The note of a job's last recorded run; see run_note.h.
 *
 * A note consists of words, see words.h.  The token and the start come first: run_note.lua reads
 * only these.
 */
#include "protocol/run_note.h"

#include <string.h>

#include "protocol/words.h"

/* numbers, status, id and texts, each with its NUL */
typedef char note_fits[4 * WORDS_NUMBER_MAX + 10 + LOCK_HOST_DIGITS + 1 + 2 * 64 + 2 * 128 +
								   RUN_NOTE_MESSAGE_MAX + 1 <=
							   LUA_NOTE_MAX
						   ? 1
						   : -1];

/* The clocks of the writer's nodes and of the reader may differ by the bound in both ways. */
#define AHEAD_MAX_US (2 * (int64_t) LUA_CLOCK_BOUND_US)

const char *const run_note_status[] = {
	[RUN_NOTE_SUCCEEDED] = "succeeded", [RUN_NOTE_FAILED] = "failed", [RUN_NOTE_LOST] = "lost"};

static bool take_status(const char **at, const char *end, RunNoteStatus *status);

size_t
run_note_write(char *out, const RunNote *note)
{
	char *at = out;

	at = words_put_number(at, note->token);
	at = words_put_number(at, note->started_us);
	at = words_put_number(at, note->ended_us);
	at = words_put_text(at, run_note_status[note->status]);
	at = words_put_id(at, note->host_id);
	at = words_put_number(at, note->pid);
	at = words_put_text(at, note->cluster);
	at = words_put_text(at, note->host);
	at = words_put_text(at, note->database);
	at = words_put_text(at, note->role);
	at = words_put_text(at, note->message);
	return (size_t) (at - out);
}

bool
run_note_read(RunNote *note, const char *bytes, size_t len, int64_t now_us)
{
	const int64_t most = (int64_t) LUA_COUNTER_END - 1;
	const char *at = bytes;
	const char *end = bytes + len;
	int64_t pid = 0;

	memset(note, 0, sizeof(*note));
	if (len > LUA_NOTE_MAX || !words_take_number(&at, end, most, &note->token) ||
		note->token == 0 || note->token > now_us + AHEAD_MAX_US ||
		!words_take_number(&at, end, most, &note->started_us) ||
		!words_take_number(&at, end, most, &note->ended_us) ||
		!take_status(&at, end, &note->status) || !words_take_id(&at, end, &note->host_id) ||
		!words_take_number(&at, end, INT32_MAX, &pid) ||
		!words_take_text(&at, end, note->cluster, sizeof(note->cluster)) ||
		!words_take_text(&at, end, note->host, sizeof(note->host)) ||
		!words_take_text(&at, end, note->database, sizeof(note->database)) ||
		!words_take_text(&at, end, note->role, sizeof(note->role)) ||
		!words_take_text(&at, end, note->message, sizeof(note->message)))
		return false;
	note->pid = (int) pid;
	return true;
}

static bool
take_status(const char **at, const char *end, RunNoteStatus *status)
{
	char word[10];

	if (!words_take_text(at, end, word, sizeof(word)))
		return false;
	for (int i = 0; i <= RUN_NOTE_LOST; i++)
		if (strcmp(word, run_note_status[i]) == 0)
		{
			*status = (RunNoteStatus) i;
			return true;
		}
	return false;
}

/* Readers of a shared lock have one token: then the later start is newer. */
int
run_note_compare(const RunNote *note, const RunNote *other)
{
	if (note->token != other->token)
		return note->token > other->token ? 1 : -1;
	if (note->started_us != other->started_us)
		return note->started_us > other->started_us ? 1 : -1;
	return (note->host_id > other->host_id) - (note->host_id < other->host_id);
}
