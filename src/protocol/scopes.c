/*
 * scopes.c
 *		The scopes of a lock; see scopes.h.
 */
#include "protocol/scopes.h"

#include <string.h>

static const char *const names[] = {
	[SCOPE_TRANSACTION] = "transaction",
	[SCOPE_CALL] = "call",
	[SCOPE_SESSION] = "session",
	[SCOPE_DETACHED] = "detached",
};

static bool
is_blank(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool
is_word(const char *word, size_t len, const char *name)
{
	if (len != strlen(name))
		return false;
	for (size_t i = 0; i < len; i++)
	{
		char c = word[i] >= 'A' && word[i] <= 'Z' ? (char) (word[i] - 'A' + 'a') : word[i];

		if (c != name[i])
			return false;
	}
	return true;
}

const char *
scope_name(LockScope scope)
{
	return names[scope];
}

bool
scope_find(const char *word, size_t len, LockScope *scope)
{
	for (int i = 0; i <= SCOPE_DETACHED; i++)
		if (is_word(word, len, names[i]))
		{
			*scope = (LockScope) i;
			return true;
		}
	return false;
}

ScopesProblem
scopes_read(const char *text, LockScopes *scopes, const char **word, size_t *len)
{
	const char *at = text;

	*scopes = 0;
	for (;;)
	{
		LockScope scope;
		const char *end;

		for (; is_blank(*at); at++)
			;
		for (end = at; *end != '\0' && *end != ','; end++)
			;
		*word = at;
		for (*len = (size_t) (end - at); *len > 0 && is_blank(at[*len - 1]); --*len)
			;
		if (*len == 0)
			return SCOPES_EMPTY;
		if (!scope_find(*word, *len, &scope))
			return SCOPES_UNKNOWN;
		if (*scopes & SCOPE_IN_SET(scope))
			return SCOPES_DOUBLED;
		*scopes |= SCOPE_IN_SET(scope);
		if (*end == '\0')
			return SCOPES_GOOD;
		at = end + 1;
	}
}
