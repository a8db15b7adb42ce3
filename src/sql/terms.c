/*
 * terms.c
 *		Which terms of a lock can be combined; see terms.h.
 *
 * arguments.c has the rules about values: hold_at_least is at most hold_at_most, and the limit
 * redlock.max_hold.  Further rules apply when a session acquires a lock again (session.c): these
 * compare the call with the held lock.
 */
#include "postgres.h"

#include "sql/terms.h"

typedef enum PairKind
{
	PAIR_REFUSED,
	PAIR_REQUIRED /* the first term must be given with the second */
} PairKind;

typedef struct Pair
{
	PairKind kind;
	Term first;
	Term second;
	int sqlstate;
	const char *detail;
	const char *hint;
} Pair;

/* names in messages and documents */
static const char *const names[] = {
	[TERM_TRANSACTION] = "scope \"transaction\"",
	[TERM_DETACHED] = "scope \"detached\"",
	[TERM_SHARED] = "mode \"shared\"",
	[TERM_PERMITS] = "permits",
	[TERM_HOLD_AT_LEAST] = "hold_at_least",
	[TERM_HOLD_AT_MOST] = "hold_at_most",
	[TERM_KEEP_IDLE] = "keep_idle",
	[TERM_SEVERAL] = "several locks",
	[TERM_LOCK_CALL] = "CALL redlock_lock or redlock_lock_all",
};

/*
 * All other pairs can be combined.  A call that breaks several rules gets the error of the first
 * row. scripts/terms_table.pl reads the rows as text.
 */
static const Pair pairs[] = {
	{PAIR_REFUSED, TERM_TRANSACTION, TERM_LOCK_CALL, ERRCODE_INVALID_PARAMETER_VALUE,
	 "The transaction of a CALL ends with the CALL.",
	 "Use the scope \"session\" or \"call\", or the function redlock_acquire or "
	 "redlock_acquire_all."},
	{PAIR_REFUSED, TERM_DETACHED, TERM_LOCK_CALL, ERRCODE_INVALID_PARAMETER_VALUE,
	 "A procedure returns no token, and only a token releases a detached lock.",
	 "Use the function redlock_acquire or redlock_acquire_all."},
	{PAIR_REFUSED, TERM_DETACHED, TERM_SHARED, ERRCODE_FEATURE_NOT_SUPPORTED,
	 "The sessions of a server share one lease with one token, and the token does not tell which "
	 "session releases the lock.",
	 "Use another scope, or the mode \"exclusive\"."},
	{PAIR_REFUSED, TERM_DETACHED, TERM_PERMITS, ERRCODE_FEATURE_NOT_SUPPORTED,
	 "A permit is held by a session.",
	 "Acquire one detached lock for each permit, under names of your own."},
	{PAIR_REFUSED, TERM_DETACHED, TERM_KEEP_IDLE, ERRCODE_INVALID_PARAMETER_VALUE,
	 "A detached lock must have hold_at_most, and a lock with that limit does not stay with its "
	 "server.",
	 "Leave keep_idle out."},
	{PAIR_REFUSED, TERM_SHARED, TERM_PERMITS, ERRCODE_INVALID_PARAMETER_VALUE,
	 "Any number of sessions share a lock, each permit has one holder.",
	 "Leave out one of the two."},
	{PAIR_REFUSED, TERM_SHARED, TERM_HOLD_AT_LEAST, ERRCODE_INVALID_PARAMETER_VALUE,
	 "The sessions of a server share one lease, which lasts as long as any session holds the lock.",
	 "Leave hold_at_least out, or use the mode \"exclusive\"."},
	{PAIR_REFUSED, TERM_SHARED, TERM_HOLD_AT_MOST, ERRCODE_INVALID_PARAMETER_VALUE,
	 "The sessions of a server share one lease, which lasts as long as any session holds the lock.",
	 "Leave hold_at_most out, or use the mode \"exclusive\"."},
	{PAIR_REFUSED, TERM_KEEP_IDLE, TERM_HOLD_AT_LEAST, ERRCODE_INVALID_PARAMETER_VALUE,
	 "A lock with a hold limit does not stay with its server when it is released.",
	 "Leave out one of the two."},
	{PAIR_REFUSED, TERM_KEEP_IDLE, TERM_HOLD_AT_MOST, ERRCODE_INVALID_PARAMETER_VALUE,
	 "A lock with a hold limit does not stay with its server when it is released.",
	 "Leave out one of the two."},
	{PAIR_REFUSED, TERM_KEEP_IDLE, TERM_PERMITS, ERRCODE_INVALID_PARAMETER_VALUE,
	 "A permit that stays with a server would not be free for other servers.",
	 "Leave keep_idle out."},
	{PAIR_REFUSED, TERM_SEVERAL, TERM_PERMITS, ERRCODE_FEATURE_NOT_SUPPORTED,
	 "The functions for several locks have no parameter permits.",
	 "Acquire the lock with permits in a call of its own."},
	{PAIR_REQUIRED, TERM_HOLD_AT_MOST, TERM_DETACHED, ERRCODE_INVALID_PARAMETER_VALUE,
	 "A detached lock belongs to no session, so no session's end releases it.",
	 "Give a hold_at_most, and call redlock_extend before it ends."},
};

static const Pair *broken_rule(Terms given);

bool
terms_allow(Terms given, Term term)
{
	const Pair *pair = broken_rule(given | TERM(term));

	return pair == NULL || pair->kind == PAIR_REQUIRED;
}

void
terms_check(Terms given)
{
	const Pair *pair = broken_rule(given);

	if (pair == NULL)
		return;
	ereport(ERROR,
			(errcode(pair->sqlstate),
			 pair->kind == PAIR_REFUSED
				 ? errmsg("%s can't be combined with %s", names[pair->first], names[pair->second])
				 : errmsg("%s must be given with %s", names[pair->first], names[pair->second]),
			 errdetail("%s", pair->detail), errhint("%s", pair->hint)));
}

/* The first row that the terms break; NULL: none. */
static const Pair *
broken_rule(Terms given)
{
	for (int i = 0; i < (int) lengthof(pairs); i++)
	{
		bool first = (given & TERM(pairs[i].first)) != 0;
		bool second = (given & TERM(pairs[i].second)) != 0;

		if (second && first == (pairs[i].kind == PAIR_REFUSED))
			return &pairs[i];
	}
	return NULL;
}
