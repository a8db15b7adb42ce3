/*
 * scopes.h
 *		The scopes of a lock: their names, and lists of scopes.
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_SCOPES_H
#define REDLOCK_SCOPES_H

#include <stdbool.h>
#include <stddef.h>

/* From the narrowest scope to the widest; SCOPE_DETACHED is the last. */
typedef enum LockScope
{
	SCOPE_TRANSACTION, /* released after commit or abort, or after
						* ROLLBACK TO an earlier savepoint */
	SCOPE_CALL,        /* survives the COMMITs of a procedure; released at the end of
						* the transaction in which the outermost CALL or DO ends */
	SCOPE_SESSION,     /* until release, DISCARD ALL, or the end of the session */
	SCOPE_DETACHED     /* until release by token, or the end of hold_at_most */
} LockScope;

/* A set of scopes. */
typedef unsigned LockScopes;

#define SCOPE_IN_SET(scope) (1u << (scope))
#define SCOPES_ALL (SCOPE_IN_SET(SCOPE_DETACHED + 1) - 1)
#define SCOPES_ALL_TEXT "transaction, call, session, detached"

typedef enum ScopesProblem
{
	SCOPES_GOOD,
	SCOPES_EMPTY,   /* the list, or an element of it, is empty */
	SCOPES_UNKNOWN, /* a word is no scope */
	SCOPES_DOUBLED  /* a scope stands twice */
} ScopesProblem;

/* The name in SQL. */
extern const char *scope_name(LockScope scope);

/* Returns false if the word is no scope.  Capitals do not count. */
extern bool scope_find(const char *word, size_t len, LockScope *scope);

/*
 * Reads a list of scopes, separated by commas, with any blanks.  Unless SCOPES_GOOD: *word and *len
 * are the place of the wrong word, and *scopes is not a result.
 */
extern ScopesProblem scopes_read(const char *text, LockScopes *scopes, const char **word,
								 size_t *len);

#endif /* REDLOCK_SCOPES_H */
