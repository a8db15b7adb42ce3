/*
 * terms.h
 *		Which terms of a lock can be combined: one table for all functions that acquire locks.
 *
 * Errors come from the table. scripts/terms_table.pl writes the table of
 * docs/reference/functions.md from it, and sql/terms.sql tries all pairs.
 */
#ifndef REDLOCK_TERMS_H
#define REDLOCK_TERMS_H

/* The terms of a call.  Defaults are not terms: `permits` of 1, `keep_idle` of zero. */
typedef enum Term
{
	TERM_TRANSACTION,
	TERM_DETACHED,
	TERM_SHARED,
	TERM_PERMITS,
	TERM_HOLD_AT_LEAST,
	TERM_HOLD_AT_MOST,
	TERM_KEEP_IDLE,
	TERM_SEVERAL,  /* the function takes an array of names */
	TERM_LOCK_CALL /* the function is redlock_lock, a procedure without a result */
} Term;

/* A set of terms: a bit for each. */
typedef uint32 Terms;

#define TERM(term) ((Terms) 1 << (term))

/* Returns whether `term` can be added to the terms.  Raises no error. */
extern bool terms_allow(Terms given, Term term);

/* Raises an error (22023 or 0A000) if two of the terms can't be combined, or one is missing. */
extern void terms_check(Terms given);

#endif /* REDLOCK_TERMS_H */
