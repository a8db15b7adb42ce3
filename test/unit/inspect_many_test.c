/*
 * inspect_many_test.c
 *		Unit tests of the records about many locks, src/protocol/inspect_many.c.
 *
 * Protects from: a forged or cut answer of a node read past its end, or past the room for hosts and
 * values; a record taken for the record of the next lock; a node making a list take many steps by
 * answers for few locks.
 */
#include <stdlib.h>
#include <string.h>

#include "protocol/inspect_many.h"
#include "tap.h"

#define ID "00c0ffee00c0ffee"
#define ID_2 "00c0ffee00c0ffef"

/* A text with NULs, and its length. */
#define TEXT(text) text, sizeof(text) - 1

static Inspected key;

/* Reads a record from memory that ends with the record. */
static bool
reads(const char *text, size_t len)
{
	char *exact = malloc(len + !len);
	const char *at = exact;
	bool read;

	memset(&key, 0x55, sizeof(key));
	memcpy(exact, text, len);
	read = inspect_many_read(&at, exact + len, &key) && at == exact + len;
	free(exact);
	return read;
}

static void
test_records(void)
{
	ok(reads(TEXT("0\0000\0000\0000\0000\0")) && key.kind == INSPECTED_NONE && key.value_len == 0,
	   "no key");
	ok(reads(TEXT("1\00030001\0000\0000\0005\0ab\0cd")) && key.kind == INSPECTED_STRING &&
		   key.ttl_ms == 30000 && key.value_len == 5 && memcmp(key.value, "ab\0cd", 6) == 0,
	   "a value with a NUL");
	ok(key.readers == 0 && key.hosts == 0 && key.permit[0] == 0 && key.error[0] == '\0',
	   "nothing stays of the record before");
	ok(reads(TEXT("1\0000\0003\0002\0001\0" ID ID_2 "v")) && key.ttl_ms == -1 && key.readers == 3 &&
		   key.hosts == 2 && key.host[0] == UINT64_C(0x00c0ffee00c0ffee) &&
		   key.host[1] == UINT64_C(0x00c0ffee00c0ffef),
	   "readers of a lock that never expires");
	ok(reads(TEXT("2\0001\0000\0000\0004\0hash")) && key.kind == INSPECTED_OTHER, "another type");
	ok(reads(TEXT("3\0000\0000\0000\0000\0")) && key.kind == INSPECTED_ERROR, "an error");
}

static void
test_written(void)
{
	static Inspected written = {
		.kind = INSPECTED_STRING, .ttl_ms = 30000, .value_len = 5, .value = "ab\0cd"};
	char record[INSPECT_MANY_RECORD_MAX];
	int len = inspect_many_write(record, &written);

	ok(reads(record, (size_t) len) && key.kind == INSPECTED_STRING && key.ttl_ms == 30000 &&
		   key.value_len == 5 && memcmp(key.value, "ab\0cd", 6) == 0,
	   "what is written is read");
	written.ttl_ms = -1;
	written.readers = written.hosts = LUA_READERS_ASKED;
	for (int i = 0; i < written.hosts; i++)
		written.host[i] = UINT64_MAX - (uint64_t) i;
	written.value_len = LUA_HELD_MAX;
	len = inspect_many_write(record, &written);
	ok(len <= INSPECT_MANY_RECORD_MAX && reads(record, (size_t) len) && key.ttl_ms == -1 &&
		   key.readers == written.readers && key.hosts == written.hosts &&
		   memcmp(key.host, written.host, sizeof(key.host)) == 0 && key.value_len == LUA_HELD_MAX,
	   "the longest record");
	written = (Inspected){.kind = INSPECTED_NONE, .ttl_ms = -1};
	len = inspect_many_write(record, &written);
	ok(reads(record, (size_t) len) && key.kind == INSPECTED_NONE && key.value_len == 0, "no key");
}

static void
test_garbage(void)
{
	static const char whole[] = "1\00030001\0001\0001\0003\0" ID "abc";
	static const struct
	{
		const char *text;
		size_t len;
	} wrong[] = {{TEXT("4\0000\0000\0000\0000\0")},
				 {TEXT("-1\0000\0000\0000\0000\0")},
				 {TEXT("1\000-1\0000\0000\0000\0")},
				 {TEXT("1\0001e9\0000\0000\0000\0")},
				 {TEXT("1\0002147483648\0000\0000\0000\0")},
				 {TEXT("1\0000\0002147483648\0000\0000\0")},
				 {TEXT("1\0000\00065\00065\0000\0")},
				 {TEXT("1\0000\0000\0000\000256\0")},
				 {TEXT("1\0000\0000\0000\0")},
				 {TEXT("no number")},
				 {TEXT("1\0001\0001\0001\0000\000"
					   "00C0FFEE00C0FFEE")}};
	bool any = false;

	for (size_t cut = 0; cut < sizeof(whole) - 1; cut++)
		any = any || reads(whole, cut);
	ok(!any && reads(TEXT(whole)), "a record that is cut is none");
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		ok(!reads(wrong[i].text, wrong[i].len), "malformed record %d", (int) i);
}

/* Counts a text of `records` records with `size` bytes each, in answer to `keys` keys. */
static int
count(int records, int size, int keys)
{
	static char text[2 * LUA_KEYS_SIZE];
	char *at = text;

	for (int i = 0; i < records; i++)
	{
		int head = sprintf(at, "1%c1%c0%c0%c%d%c", 0, 0, 0, 0, size, 0);

		memset(at + head, 'x', (size_t) size);
		at += head + size;
	}
	return inspect_many_count(text, (size_t) (at - text), keys);
}

static void
test_counts(void)
{
	ok(count(3, 10, 3) == 3, "a record for each key");
	ok(count(4, 10, 3) == 0, "more records than keys");
	ok(count(2, 10, 3) == 0, "fewer, though another one would fit");
	ok(count(0, 0, 1) == 0, "no record");
	ok(count(60, 250, 64) == 60, "fewer, since no other record might fit");
	ok(count(50, 250, 64) == 0, "fewer, though another one would fit in any case");
	ok(inspect_many_count(TEXT("1\0001\0000\0000\0001\0vx"), 1) == 0, "bytes behind the records");
	ok(inspect_many_count(TEXT("1\0001\0000\0000\0001\0vx"), 2) == 0, "a malformed record");
}

int
main(void)
{
	test_records();
	test_written();
	test_garbage();
	test_counts();
	return tap_done();
}
