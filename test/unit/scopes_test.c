/*
 * scopes_test.c
 *		Unit tests of scopes, src/protocol/scopes.c.
 *
 * Protects from: an allowed scope outside of the list; an unnoticed misspelt, empty or doubled
 * scope; a wrong word named in the error.
 */
#include "protocol/scopes.h"

#include <string.h>

#include "tap.h"

#define T SCOPE_IN_SET(SCOPE_TRANSACTION)
#define C SCOPE_IN_SET(SCOPE_CALL)
#define S SCOPE_IN_SET(SCOPE_SESSION)
#define D SCOPE_IN_SET(SCOPE_DETACHED)

static void
test_good(void)
{
	static const struct
	{
		const char *text;
		LockScopes scopes;
	} good[] = {{"transaction", T},
				{"call", C},
				{"session", S},
				{"detached", D},
				{"transaction,call", T | C},
				{"detached , transaction", T | D},
				{" \tCALL\n,\r\n Session ", C | S},
				{SCOPES_ALL_TEXT, T | C | S | D}};

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
	{
		LockScopes scopes = 0;
		const char *word;
		size_t len;

		ok(scopes_read(good[i].text, &scopes, &word, &len) == SCOPES_GOOD &&
			   scopes == good[i].scopes,
		   "\"%s\" has these scopes and no others", good[i].text);
	}
	ok(SCOPES_ALL == (T | C | S | D), "all scopes");
}

static void
test_bad(void)
{
	static const struct
	{
		const char *text;
		ScopesProblem problem;
		const char *word;
	} bad[] = {{"", SCOPES_EMPTY, ""},
			   {" \t", SCOPES_EMPTY, ""},
			   {",", SCOPES_EMPTY, ""},
			   {"call,", SCOPES_EMPTY, ""},
			   {"call, , session", SCOPES_EMPTY, ""},
			   {",call", SCOPES_EMPTY, ""},
			   {"call session", SCOPES_UNKNOWN, "call session"},
			   {"call;session", SCOPES_UNKNOWN, "call;session"},
			   {"transaction, sesion ,call", SCOPES_UNKNOWN, "sesion"},
			   {"calls", SCOPES_UNKNOWN, "calls"},
			   {"cal", SCOPES_UNKNOWN, "cal"},
			   {"cull", SCOPES_UNKNOWN, "cull"},
			   {"ca-l", SCOPES_UNKNOWN, "ca-l"},
			   {"\"call\"", SCOPES_UNKNOWN, "\"call\""},
			   {"all", SCOPES_UNKNOWN, "all"},
			   {"call, session,CALL", SCOPES_DOUBLED, "CALL"}};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
	{
		LockScopes scopes;
		const char *word;
		size_t len;

		ok(scopes_read(bad[i].text, &scopes, &word, &len) == bad[i].problem &&
			   len == strlen(bad[i].word) && memcmp(word, bad[i].word, len) == 0,
		   "\"%s\" is wrong at \"%s\"", bad[i].text, bad[i].word);
	}
}

static void
test_names(void)
{
	for (int i = 0; i <= SCOPE_DETACHED; i++)
	{
		const char *name = scope_name((LockScope) i);
		LockScope scope;

		ok(scope_find(name, strlen(name), &scope) && (int) scope == i, "\"%s\" is found", name);
	}
}

int
main(void)
{
	test_good();
	test_bad();
	test_names();
	return tap_done();
}
