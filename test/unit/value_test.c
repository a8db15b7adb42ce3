/*
 * value_test.c
 *		Unit tests of the form of a lock's value, src/protocol/value.c.
 *
 * Protects from: a plain client's value read as a host's; a read past the end of a value.
 */
#include <string.h>

#include "protocol/value.h"
#include "tap.h"

#define SECRET "0123456789abcdeffedcba9876543210"
#define HEAD SECRET ":000000001:00c0ffee00c0ffee"

static Value value;

static void
read_text(const char *text)
{
	value_read(&value, text, strlen(text));
}

static void
test_ours(void)
{
	read_text(HEAD " host a");
	ok(value.ours && !value.shared && !value.kept && !value.may_idle, "an exclusive lock");
	ok(value.host == UINT64_C(0x00c0ffee00c0ffee), "its host");
	ok(value.text == VALUE_HEAD && value.permits == 0, "its text");
	read_text(SECRET ":000000001:99c0ffee00c0ffee host a");
	ok(value.host == UINT64_C(0x99c0ffee00c0ffee), "all digits count");
	read_text(HEAD "~host a");
	ok(value.ours && value.may_idle, "one that may be idle");
	read_text(HEAD "= host a");
	ok(value.ours && value.shared && !value.may_idle && value.text == VALUE_HEAD + 1,
	   "a shared lock");
	read_text(HEAD "=~host a");
	ok(value.ours && value.shared && value.may_idle, "one that may be idle");
	read_text(HEAD "~kept host a");
	ok(value.kept && !value.may_idle && value.text == VALUE_HEAD + 5, "a kept key is not idle");
	value_read(&value, HEAD " kept host a", VALUE_HEAD + 4);
	ok(value.ours && !value.kept, "a cut value is not kept");
	read_text(HEAD "= kept host a");
	ok(value.shared && !value.kept, "a reader's text may begin with any word");
	read_text(HEAD " permits=3 host=\"a\"");
	ok(value.permits == 3, "three permits");
	read_text(HEAD " permits=1000 ");
	ok(value.permits == 1000, "the most permits");
	read_text(HEAD " ");
	ok(value.ours && value.text == VALUE_HEAD, "a value without a text");
}

static void
test_others(void)
{
	static const char *const others[] = {
		"",
		"x",
		SECRET,
		HEAD,
		HEAD "=",
		HEAD "=x",
		HEAD "x",
		"0123456789ABCDEFfedcba9876543210:000000001:00c0ffee00c0ffee ",
		SECRET ":00000001x:00c0ffee00c0ffee ",
		"g123456789abcdeffedcba9876543210:000000001:00c0ffee00c0ffee ",
		SECRET ":x00000001:00c0ffee00c0ffee ",
		SECRET ":00000000a:00c0ffee00c0ffee ",
		SECRET ":000000001:g0c0ffee00c0ffee ",
		"0123456789abcdef-edcba9876543210:000000001:00c0ffee00c0ffee ",
		SECRET "-000000001:00c0ffee00c0ffee ",
		SECRET ":000000001-00c0ffee00c0ffee ",
		SECRET ":000000001:00c0ffee00c0ffeg "};

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
	{
		read_text(others[i]);
		ok(!value.ours && !value.shared && !value.kept && !value.may_idle && value.host == 0 &&
			   value.permits == 0 && value.text == 0,
		   "not ours: \"%s\"", others[i]);
	}
	read_text(HEAD " permits=1001 ");
	ok(value.permits == 0, "too many permits");
	read_text(HEAD " permits=10");
	ok(value.permits == 0, "a number without an end");
	read_text(HEAD " permits=10: ");
	ok(value.permits == 0, "a number that a colon ends");
	read_text(HEAD " permits=10- ");
	ok(value.permits == 0, "a number that a minus ends");
	for (size_t len = 0; len < VALUE_HEAD; len++)
	{
		value_read(&value, HEAD " host", len);
		if (value.ours)
			break;
	}
	ok(!value.ours, "the head alone, cut anywhere");
}

int
main(void)
{
	test_ours();
	test_others();
	return tap_done();
}
