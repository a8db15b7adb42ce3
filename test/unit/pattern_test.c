/*
 * pattern_test.c
 *		Unit tests of patterns of names, src/protocol/pattern.c.
 *
 * Protects from: a verdict other than that of LIKE; a special character of a name widening the
 * pattern of this name; a good pattern refused, or a pattern without a possible name accepted.
 */
#include "protocol/pattern.h"

#include <string.h>

#include "dice.h"
#include "tap.h"

#define NAME_MAX_LEN 255

static const char *
repeated(const char *text, int times)
{
	static char out[4 * PATTERN_MAX];

	out[0] = '\0';
	while (times-- > 0)
		strcat(out, text);
	return out;
}

static void
test_matches(void)
{
	static const struct
	{
		const char *pattern;
		const char *name;
		bool matches;
	} cases[] = {
		{"job", "job", true},
		{"job", "jobs", false},
		{"jobs", "job", false},
		{"job", "Job", false},
		{"%", "a", true},
		{"%%", "a", true},
		{"_", "a", true},
		{"_", "ab", false},
		{"__", "a", false},
		{"a%", "a", true},
		{"a%", "ab/c", true},
		{"a%", "ba", false},
		{"%a", "ba", true},
		{"%a", "aab", false},
		{"%a%", "bab", true},
		{"%ab%ab", "abab", true},
		{"%ab%ab", "ab", false},
		{"%ab", "aab", true},
		{"%aab", "aaab", true},
		{"a%b%c", "axbxbxc", true},
		{"a%b%c", "axcxb", false},
		{"%_b", "b", false},
		{"%_b", "ab", true},
		{"_%", "a", true},
		{"_%_", "a", false},
		{"a\\%", "a%", true},
		{"a\\%", "ab", false},
		{"a\\_", "a_", true},
		{"a\\_", "ab", false},
		{"a\\\\", "a\\", true},
		{"\\a", "a", true},
		{"\\\\%", "\\x", true},
		{"_", "\xc3\xa9", true},
		{"__", "\xc3\xa9", false},
		{"%__", "\xe2\x82\xac", false},
		{"%_", "\xe2\x82\xac", true},
		{"%\xc3\xa9", "e\xc3\xa9", true},
		{"\\\xc3\xa9%", "\xc3\xa9t\xc3\xa9", true},
		{"\xc3\xa9", "e\xcc\x81", false}, /* no normalization */
		{"a\\", "a", false},
		{"%\\", "a", false},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		ok(pattern_matches(cases[i].pattern, cases[i].name) == cases[i].matches, "\"%s\" %s \"%s\"",
		   cases[i].pattern, cases[i].matches ? "matches" : "does not match", cases[i].name);
}

static void
test_check(void)
{
	static const struct
	{
		const char *pattern;
		PatternFault fault;
	} cases[] = {
		{"a", PATTERN_GOOD},
		{"%", PATTERN_GOOD},
		{"_", PATTERN_GOOD},
		{"", PATTERN_EMPTY},
		{"a\\", PATTERN_ENDS_IN_ESCAPE},
		{"\\", PATTERN_ENDS_IN_ESCAPE},
		{"a\\\\", PATTERN_GOOD},
		{"{%}", PATTERN_LISTS},
		{"{}", PATTERN_LISTS},
		{"\\{a,b\\}", PATTERN_LISTS},
		{"[%}", PATTERN_LISTS},
		{"(_)", PATTERN_LISTS},
		{"[%]", PATTERN_GOOD},
		{"(%}", PATTERN_GOOD},
		{"{", PATTERN_GOOD},
		{"}", PATTERN_GOOD},
		{"{%", PATTERN_GOOD},
		{"%}", PATTERN_GOOD},
		{"{%_", PATTERN_GOOD},
		{"_a}", PATTERN_GOOD},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		ok(pattern_check(cases[i].pattern, NAME_MAX_LEN) == cases[i].fault, "\"%s\" has fault %d",
		   cases[i].pattern, (int) cases[i].fault);
	ok(pattern_check(repeated("_", NAME_MAX_LEN), NAME_MAX_LEN) == PATTERN_GOOD,
	   "names of full length");
	ok(pattern_check(repeated("_", NAME_MAX_LEN + 1), NAME_MAX_LEN) == PATTERN_LONG_NAMES,
	   "names that are too long");
	ok(pattern_check(repeated("\\a", NAME_MAX_LEN), NAME_MAX_LEN) == PATTERN_GOOD,
	   "an escape takes no room in a name");
	ok(pattern_check(repeated("\xc3\xa9", 128), NAME_MAX_LEN) == PATTERN_LONG_NAMES,
	   "bytes count, not characters");
	ok(pattern_check(repeated("%", PATTERN_MAX), NAME_MAX_LEN) == PATTERN_GOOD, "a long pattern");
	ok(pattern_check(repeated("%", PATTERN_MAX + 1), NAME_MAX_LEN) == PATTERN_LONG,
	   "a pattern that is too long");
}

/* The definition of LIKE, slow and plain. */
static bool
is_like(const char *pattern, const char *name)
{
	if (*pattern == '\0')
		return *name == '\0';
	if (*pattern == '%')
		return is_like(pattern + 1, name) || (*name != '\0' && is_like(pattern, name + 1));
	if (*name == '\0')
		return false;
	if (*pattern == '_')
		return is_like(pattern + 1, name + 1);
	if (*pattern == '\\')
		pattern++;
	return *pattern == *name && is_like(pattern + 1, name + 1);
}

static void
random_text(const char *letters, char *out)
{
	size_t len = 1 + dice(7);

	for (size_t i = 0; i < len; i++)
		out[i] = letters[dice((uint32_t) strlen(letters))];
	out[len] = '\0';
}

static void
test_random(void)
{
	int matched = 0;
	int wrong = 0;
	int wide = 0;

	dice_begin(1);
	for (int i = 0; i < 200000; i++)
	{
		char pattern[16];
		char name[8];
		char own[16];
		char other[8];

		random_text("aab%%_\\", pattern);
		random_text("aab%_\\", name);
		random_text("aab%_\\", other);
		if (pattern_check(pattern, NAME_MAX_LEN) == PATTERN_GOOD)
		{
			matched += is_like(pattern, name);
			wrong += is_like(pattern, name) != pattern_matches(pattern, name);
		}
		pattern_of_name(own, name);
		wide += pattern_matches(own, other) != (strcmp(name, other) == 0);
		wide += !pattern_matches(own, name);
	}
	ok(matched > 10000 && wrong == 0, "as LIKE: %d matches, %d differences", matched, wrong);
	ok(wide == 0, "the pattern of a name matches this name only: %d differences", wide);
}

int
main(void)
{
	test_matches();
	test_check();
	test_random();
	return tap_done();
}
