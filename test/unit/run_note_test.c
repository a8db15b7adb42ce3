/*
 * run_note_test.c
 *		Unit tests of the note of a job's last run, src/protocol/run_note.c.
 *
 * Protects from: a forged, cut or oversized note read as a run, or read past its end; a note from
 * the far future hiding all later runs; an older run shown as the last run.
 */
#include <string.h>

#include "protocol/run_note.h"
#include "tap.h"

#define NOW INT64_C(1795259654466548)
#define HOUR INT64_C(3600000000)

static const RunNote run = {.token = NOW,
							.started_us = NOW + 5,
							.ended_us = NOW + 9,
							.status = RUN_NOTE_FAILED,
							.host_id = UINT64_C(0x00c0ffee00c0ffee),
							.pid = 4711,
							.cluster = "a",
							.host = "db1",
							.database = "mydb",
							.role = "app",
							.message = "no more \xc3\xa4"};

static char bytes[LUA_NOTE_MAX + 1];
static RunNote note;

static bool
reads(const char *text, size_t len)
{
	return run_note_read(&note, text, len, NOW);
}

static void
test_round(void)
{
	static RunNote longest;
	size_t len = run_note_write(bytes, &run);

	ok(len <= LUA_NOTE_MAX && reads(bytes, len), "a note is read");
	ok(note.token == run.token && note.started_us == run.started_us &&
		   note.ended_us == run.ended_us && note.status == run.status &&
		   note.host_id == run.host_id && note.pid == run.pid,
	   "its numbers");
	ok(strcmp(note.cluster, "a") == 0 && strcmp(note.host, "db1") == 0 &&
		   strcmp(note.database, "mydb") == 0 && strcmp(note.role, "app") == 0 &&
		   strcmp(note.message, run.message) == 0,
	   "its texts");
	memcpy(bytes + len, "later\0", 6);
	ok(reads(bytes, len + 6), "a later version may add words");

	longest = run;
	longest.status = RUN_NOTE_SUCCEEDED;
	memset(longest.cluster, 'c', sizeof(longest.cluster) - 1);
	memset(longest.host, 'h', sizeof(longest.host) - 1);
	memset(longest.database, 'd', sizeof(longest.database) - 1);
	memset(longest.role, 'r', sizeof(longest.role) - 1);
	memset(longest.message, 'm', RUN_NOTE_MESSAGE_MAX);
	len = run_note_write(bytes, &longest);
	ok(len <= LUA_NOTE_MAX && reads(bytes, len) && strcmp(note.message, longest.message) == 0,
	   "the longest texts fit");
}

/* The note with other bytes in the place of `from`. */
static bool
reads_with(const char *from, const char *to)
{
	size_t len = run_note_write(bytes, &run);
	size_t from_len = strlen(from) + 1;
	size_t to_len = strlen(to) + 1;
	char *at = bytes;

	while (strcmp(at, from) != 0)
		at += strlen(at) + 1;
	memmove(at + to_len, at + from_len, (size_t) (bytes + len - at) - from_len);
	memcpy(at, to, to_len);
	return reads(bytes, len + to_len - from_len);
}

static void
test_garbage(void)
{
	static const char *const tokens[] = {"", "0", "-1", "x", "17952596544665480", "1e3", " 1"};
	static const char *const ids[] = {"", "c0ffee", "00C0FFEE00C0FFEE", "00c0ffee00c0ffee0"};
	static char text[300];
	size_t len = run_note_write(bytes, &run);
	bool any = false;

	for (size_t cut = 0; cut < len; cut++)
	{
		char exact[LUA_NOTE_MAX];

		memcpy(exact, bytes, cut);
		any = any || reads(exact, cut);
	}
	ok(!any, "a note that is cut is none");
	ok(!reads("garbage", 7) && !reads("", 0), "nor is any other text");
	memset(bytes, '1', sizeof(bytes));
	ok(!reads(bytes, sizeof(bytes)), "nor a long one");
	run_note_write(bytes, &run);
	memset(bytes + len, '\0', sizeof(bytes) - len);
	ok(reads(bytes, LUA_NOTE_MAX) && !reads(bytes, LUA_NOTE_MAX + 1), "the length has a limit");
	for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]); i++)
		ok(!reads_with("1795259654466548", tokens[i]), "a token may not be '%s'", tokens[i]);
	for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++)
		ok(!reads_with("00c0ffee00c0ffee", ids[i]), "a host's id may not be '%s'", ids[i]);
	ok(!reads_with("failed", "running") && !reads_with("failed", "") &&
		   !reads_with("failed", "succeeded or not"),
	   "the status is one of three");
	ok(!reads_with("4711", "2147483648") && reads_with("4711", "0"), "the process has a bound");
	memset(text, 'x', sizeof(text) - 1);
	ok(!reads_with("a", text) && !reads_with("db1", text) && !reads_with("mydb", text) &&
		   !reads_with("app", text) && !reads_with(run.message, text),
	   "so have all texts");
}

static void
test_order(void)
{
	RunNote other = run;
	size_t len;

	ok(run_note_compare(&run, &other) == 0, "the same run");
	other.token--;
	other.started_us += HOUR;
	ok(run_note_compare(&run, &other) == 1 && run_note_compare(&other, &run) == -1,
	   "a run with a larger token is newer, whatever the clocks say");
	other = run;
	other.started_us--;
	ok(run_note_compare(&run, &other) == 1 && run_note_compare(&other, &run) == -1,
	   "among readers with one token the later start is newer");
	other = run;
	other.host_id++;
	ok(run_note_compare(&run, &other) == -1 && run_note_compare(&other, &run) == 1,
	   "runs of two hosts have an order");

	other = run;
	other.token = NOW + 2 * HOUR;
	len = run_note_write(bytes, &other);
	ok(reads(bytes, len), "a clock may be ahead");
	other.token++;
	len = run_note_write(bytes, &other);
	ok(!reads(bytes, len), "but not too far");
}

int
main(void)
{
	test_round();
	test_garbage();
	test_order();
	return tap_done();
}
