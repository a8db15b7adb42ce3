/*
 * several.h
 *		Acquiring several locks at once: which locks are asked for, kept and released.
 *
 * A call gets all its locks or none.  All hosts take the locks in the order of their names, but
 * ask for all of them together.  If a lock is refused, the call releases the granted locks
 * behind it, keeps the granted locks before it, and waits for the refused lock.  So a waiting
 * call holds no lock behind the lock for which it waits.  In a cycle of waiting calls each name
 * would be behind the name before, all around the cycle, which is impossible (Havender: Avoiding
 * deadlock in multitasking systems, 1968).
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_SEVERAL_H
#define REDLOCK_SEVERAL_H

#include <stdbool.h>
#include <stddef.h>

#define SEVERAL_MAX 64

/* how often a try asks again */
#define SEVERAL_AGAIN_MAX 2

/* The order of names: as memcmp, a prefix first. */
extern int several_compare(const char *one, size_t one_len, const char *other, size_t other_len);

typedef enum several_state
{
	SEVERAL_ASKED, /* no answer yet */
	SEVERAL_GRANTED,
	SEVERAL_REFUSED /* another session has the lock, or is to get the lock first */
} several_state;

typedef enum several_step
{
	SEVERAL_WAIT,          /* wait for answers */
	SEVERAL_WAIT_FOR_LAST, /* wait until the last requested lock is granted: all others are
							* granted */
	SEVERAL_RELEASE,       /* release the requested locks from *from on; all are answered */
	SEVERAL_ASK,           /* ask for the locks from *from on */
	SEVERAL_DONE           /* all locks are granted */
} several_step;

/*
 * Returns the next step.  Of `count` names, in order, the first `asked` were asked for; state:
 * their states.
 */
extern several_step several_next(const several_state *state, int asked, int count, int *from);

/*
 * A try was refused a name, after this many granted names before it.  Returns true if the try
 * may release its locks behind the refused name, and ask once more from this name on.  again: how
 * often the try has asked again.
 *
 * When hosts try for the same names at one instant, each host may get some names, and all hosts
 * refuse each other.  The host with the first name asks again.  Every other host was refused the
 * first name, and releases its names.  So one host gets all names.
 */
extern bool several_try_again(int granted, int again);

#endif /* REDLOCK_SEVERAL_H */
