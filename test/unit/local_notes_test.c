/*
 * local_notes_test.c
 *		Unit tests of the notes at the node inside the server, src/protocol/local_notes.c.
 *
 * Protects from: the note of an earlier run in place of a later run; a note counting after its
 * time; two notes of one job; a note dropped for room, although another note ends earlier.
 */
#include <stdio.h>
#include <stdlib.h>

#include "protocol/local_notes.h"
#include "tap.h"

#define NOW_US INT64_C(1800000000000000)
#define DAY_US (24 * INT64_C(3600000000))

static local_notes *notes;

static void
keep(const char *job, int64_t token, int64_t now_us, int64_t keep_us)
{
	RunNote run = {.token = token, .started_us = NOW_US, .ended_us = NOW_US};

	local_notes_keep(notes, job, &run, now_us, keep_us);
}

/* The token of a job's last run; 0: there is no note. */
static int64_t
token_of(const char *job, int64_t now_us)
{
	const RunNote *run = local_notes_find(notes, job, now_us);

	return run != NULL ? run->token : 0;
}

static void
test_order(void)
{
	notes = calloc(1, sizeof(*notes));
	ok(token_of("a", NOW_US) == 0, "an empty table");
	keep("a", 5, NOW_US, DAY_US);
	ok(token_of("a", NOW_US) == 5 && token_of("b", NOW_US) == 0, "the note of a job");
	keep("a", 4, NOW_US, DAY_US);
	ok(token_of("a", NOW_US) == 5, "an earlier run changes nothing");
	keep("a", 6, NOW_US, DAY_US);
	ok(token_of("a", NOW_US) == 6, "a later run does");
	ok(token_of("a", NOW_US + DAY_US - 1) == 6 && token_of("a", NOW_US + DAY_US) == 0,
	   "the note counts for its time");
	keep("a", 3, NOW_US + DAY_US, DAY_US);
	ok(token_of("a", NOW_US + DAY_US) == 3, "then the note of any run takes its place");
	free(notes);
}

static void
test_room(void)
{
	char job[8];
	int there = 0;

	notes = calloc(1, sizeof(*notes));
	for (int i = 0; i < LOCAL_NOTES_MAX; i++)
	{
		snprintf(job, sizeof(job), "%d", i);
		keep(job, 1 + i, NOW_US, i == 7 ? DAY_US : 2 * DAY_US);
	}
	keep("8", 1000, NOW_US, DAY_US / 2);
	for (int i = 0; i < LOCAL_NOTES_MAX; i++)
	{
		snprintf(job, sizeof(job), "%d", i);
		there += token_of(job, NOW_US) == (i == 8 ? 1000 : 1 + i);
	}
	ok(there == LOCAL_NOTES_MAX, "%d jobs have a note each", there);
	keep("one more", 2000, NOW_US, 2 * DAY_US);
	ok(token_of("one more", NOW_US) == 2000 && token_of("8", NOW_US) == 0 &&
		   token_of("7", NOW_US) == 8,
	   "the note that ends first makes room");
	free(notes);
}

int
main(void)
{
	test_order();
	test_room();
	return tap_done();
}
