/*
 * holder_test.c
 *		How a session that holds a lock describes itself.
 */
#include <string.h>

#include "shared/holder.h"
#include "shared/text.h"
#include "tap.h"

static char text[160];

static const char *
written(size_t size, const HolderWords *words)
{
	memset(text, 'x', sizeof(text));
	holder_write(text, size, words);
	return text;
}

static void
is(const char *got, const char *expected, const char *what)
{
	ok(strcmp(got, expected) == 0, "%s: %s", what, got);
}

static void
test_writing(void)
{
	HolderWords words = {0, "a", "db1", "mydb", 677, "app"};

	is(written(160, &words), "cluster=\"a\" host=\"db1\" database=\"mydb\" pid=677 user=\"app\"",
	   "the cluster's name comes first");
	words.cluster = "";
	is(written(160, &words), "host=\"db1\" database=\"mydb\" pid=677 user=\"app\"",
	   "one without a name is not named");
	words.permits = 4;
	words.pid = 0;
	is(written(160, &words), "permits=4 host=\"db1\" database=\"mydb\" detached user=\"app\"",
	   "a detached lock with permits");

	words = (HolderWords){0, NULL, "db1", "x pid=1 user=postgres", 677, "a\"b\\c"};
	is(written(160, &words),
	   "host=\"db1\" database=\"x pid=1 user=postgres\" pid=677 user=\"a\\\"b\\\\c\"",
	   "a name that imitates other words is quoted");
	words.database = "\303\251\350\252\236";
	words.user = "a\nb\377\303";
	is(written(160, &words),
	   "host=\"db1\" database=\"\303\251\350\252\236\" pid=677 user=\"a\\x0ab\\xff\\xc3\"",
	   "UTF-8 stays, other bytes are escaped");
}

/* The text is too short for all words. */
static void
test_cutting(void)
{
	static const char long_name[] =
		"long_long_long_long_long_long_long_long_long_long_long_long_lon";
	HolderWords words = {0, long_name, "db1", long_name, 1234567, "app"};
	bool fits = true;
	bool is_read = true;
	bool is_utf8 = true;

	is(written(160, &words),
	   "cluster=\"long_long_long_long_long_long_long_long_long_lon\"... host=\"db1\" "
	   "database=\"long_long_long_long_long_long_long_long_long_lon\"... pid=1234567 user=\"app\"",
	   "the longest values are cut, not the words at the end");
	words.host = words.user = long_name;
	is(written(130, &words),
	   "cluster=\"long_long_long_l\"... host=\"long_long_long_l\"... "
	   "database=\"long_long_long_l\"... "
	   "pid=1234567 user=\"long_long_long_l\"...",
	   "all are long");
	words.cluster = "";
	is(written(32, &words), "host=\"long_long\"... pid=1234567",
	   "with room for little, machine and process are told");

	words = (HolderWords){1000,
						  "\303\251\303\251\303\251\303\251\303\251\303\251\303\251",
						  "\"\"\"\"\"\"\"\"\"\"\"\"\"",
						  "\360\237\224\222\360\237\224\222\360\237\224\222",
						  1234567,
						  "app"};
	for (size_t size = 32; size <= sizeof(text); size++)
	{
		char whole[sizeof(text)];

		(void) written(size, &words);
		fits = fits && memchr(text, '\0', size) != NULL;
		is_read = is_read && holder_permits(text) == 1000;
		text_to_utf8(whole, sizeof(whole), text, strlen(text));
		is_utf8 = is_utf8 && strcmp(whole, text) == 0;
	}
	ok(fits, "each text fits");
	ok(is_read, "each is recognized");
	ok(is_utf8, "no character is cut in two");
}

static void
test_reading(void)
{
	static const struct
	{
		const char *text;
		int permits;
	} texts[] = {
		{"host=db1 database=mydb pid=677 user=app", 1},
		{"host=\"db1\" database=\"mydb\" pid=677 user=\"app\"", 1},
		{"cluster=\"a\" host=\"db1\"", 1},
		{"permits=4 cluster=\"a\" host=\"db1\"", 4},
		{"permits=1000 host=db1", 1000},
		{"permits=1001 host=db1", 0},
		{"permits=99999999999999999999 host=db1", 0},
		{"permits=0 host=db1", 0},
		{"permits= host=db1", 0},
		{"permits=-4 host=db1", 0},
		{"permits=+4 host=db1", 0},
		{"permits=4", 0},
		{"permits=4 ", 0},
		{"permits=4 plain", 0},
		{"permits=4host=db1", 0},
		{" host=db1", 0},
		{"cluster=a", 0},
		{"plain", 0},
		{"", 0},
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		ok(holder_permits(texts[i].text) == texts[i].permits, "%s: %d", texts[i].text,
		   texts[i].permits);
}

static void
test_parts(void)
{
	HolderWords words = {3, "a", "db1", "x pid=1 user=postgres", 677, "a\"b\\c"};
	HolderParts parts;
	bool read;

	read = holder_read(&parts, written(160, &words));
	ok(read && strcmp(parts.cluster, "a") == 0 && strcmp(parts.host, "db1") == 0 &&
		   parts.pid == 677 && !parts.detached,
	   "parts of a description");
	is(parts.database, "x pid=1 user=postgres", "a value in quotes");
	is(parts.user, "a\"b\\c", "with quotes and backslashes");
	words.pid = 0;
	words.cluster = "";
	words.user = "a\nb";
	read = holder_read(&parts, written(160, &words));
	ok(read && parts.detached && parts.pid == 0 && parts.cluster[0] == '\0', "a detached lock");
	is(parts.user, "a\\x0ab", "a control character stays escaped");
	words.user = "a long name that is cut";
	(void) holder_read(&parts, written(60, &words));
	ok(strcmp(parts.database + strlen(parts.database) - 3, "...") == 0, "a cut value: %s",
	   parts.database);
	read = holder_read(&parts, "host=db1 database=mydb pid=677 user=app");
	ok(read && strcmp(parts.host, "db1") == 0 && strcmp(parts.user, "app") == 0 && parts.pid == 677,
	   "a host of 0.1.0");
	ok(!holder_read(&parts, "my host=x") && parts.host[0] == '\0', "a plain client");
	read = holder_read(&parts, "host=\"x strange=1 pid=7");
	ok(read && parts.pid == 0, "a quote without an end");
	read = holder_read(&parts, "host=\"x\" strange=1 pid=7");
	ok(read && parts.pid == 0, "nothing is read behind an unknown word");
	ok(holder_read(&parts, "host=") && parts.host[0] == '\0', "an empty value");
	{
		char text[256] = "host=\"";

		/* 159 bytes of a part would end within a character */
		for (int i = 0; i < 80; i++)
			strcat(text, "\xc3\xa9");
		read = holder_read(&parts, strcat(text, "\" pid=7"));
		ok(read && strlen(parts.host) == 158 && parts.pid == 7, "a stranger's long value");
	}
}

int
main(void)
{
	test_parts();
	test_writing();
	test_cutting();
	test_reading();
	return tap_done();
}
