/*
 * grants.h
 *		The patterns of names that roles may lock, with redlock.restrict = on.
 *
 * The table redlock_grants of the database has the patterns.
 */
#ifndef REDLOCK_GRANTS_H
#define REDLOCK_GRANTS_H

#include "utils/relcache.h"

#include "session/request.h"

/* The columns of redlock_grants. */
#define GRANTS_ROLE 1 /* name, when the grant was made */
#define GRANTS_PATTERN 2
#define GRANTS_ROLE_ID 3

/*
 * Raises an error if redlock.restrict is on, unless the current role may lock all of these names:
 * 42501 no pattern granted to the role matches a name; 55000 the database has no table of grants.
 * Superusers may lock all names.
 */
extern void grants_check(const LockName *names, int count);

/* Numbers of grants, for redlock_diagnose. */
typedef struct GrantsCount
{
	int all;
	int dropped; /* grants of roles that have been dropped */
	int renamed; /* grants of roles that have another name now */
} GrantsCount;

/* Has the table these columns?  Its owner may have altered it. */
extern bool grants_is_table(Relation table);

/* Returns false if the database has no table of grants. */
extern bool grants_count(GrantsCount *count);

#endif /* REDLOCK_GRANTS_H */
