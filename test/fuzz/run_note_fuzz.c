/*
 * run_note_fuzz.c
 *		The note of a job's last run, by src/protocol/run_note.c.
 *
 * Claims: a note that is read is written with the same words into LUA_NOTE_MAX bytes; a note from
 *the future is refused; of two notes one is newer, whichever is asked first.
 */
#include "fuzz.h"

#include "protocol/run_note.h"

extern int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define NOW_US INT64_C(1700000000000000)

static void
write_and_read(const RunNote *note, const char *bytes, size_t size)
{
	char *text = malloc(LUA_NOTE_MAX);
	size_t len = run_note_write(text, note);
	RunNote again;

	must(len <= LUA_NOTE_MAX && has_words(bytes, size, text, len));
	text = realloc(text, len);
	must(run_note_read(&again, text, len, NOW_US));
	must(run_note_compare(note, &again) == 0);
	/* a text without its end is no note */
	must(!run_note_read(&again, text, len - 1, NOW_US));
	free(text);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	size_t half = size / 2;
	RunNote note;
	RunNote other;

	if (run_note_read(&note, (const char *) data, size, NOW_US))
	{
		must(note.token > 0 && note.token <= NOW_US + 2 * (int64_t) LUA_CLOCK_BOUND_US);
		must(note.pid >= 0 && note.status >= RUN_NOTE_SUCCEEDED && note.status <= RUN_NOTE_LOST);
		write_and_read(&note, (const char *) data, size);
	}
	if (run_note_read(&note, (const char *) data, half, NOW_US) &&
		run_note_read(&other, (const char *) data + half, size - half, NOW_US))
		must(run_note_compare(&note, &other) == -run_note_compare(&other, &note));
	return 0;
}
