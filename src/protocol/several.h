/*
 * several.h
 *		Acquiring several locks at once: which are asked for, kept and given back.
 *
 * It is all or none.  All hosts take the locks in one order, that of their names, but ask
 * for all of them together.  What was granted behind one that is refused is given back, and
 * what is waited for is the first that is refused, while those before it are kept.  So who
 * waits has none behind the one that it waits for: in a circle of those who do, each name
 * would be behind the one before it (Havender: Avoiding deadlock in multitasking systems,
 * 1968).
 *
 * Pure, like the core.
 */
#ifndef REDLOCK_SEVERAL_H
#define REDLOCK_SEVERAL_H

#include <stdbool.h>
#include <stddef.h>

#define SEVERAL_MAX 64

/* So often a try asks again. */
#define SEVERAL_AGAIN_MAX 2

/* The order: as memcmp, a name before those that begin with it. */
extern int several_compare(const char *one, size_t one_len, const char *other, size_t other_len);

typedef enum several_state
{
	SEVERAL_ASKED, /* not known yet */
	SEVERAL_GRANTED,
	SEVERAL_REFUSED /* another has it, or is to have it first */
} several_state;

typedef enum several_step
{
	SEVERAL_WAIT,          /* for answers */
	SEVERAL_WAIT_FOR_LAST, /* until the last that was asked for is granted: all else is */
	SEVERAL_GIVE_BACK,     /* those from *from on that were asked for, all of which are answered */
	SEVERAL_ASK,           /* for those from *from on */
	SEVERAL_DONE           /* all are granted */
} several_step;

/* Of `count` names the first `asked` were asked for; state: theirs.  All in the order. */
extern several_step several_next(const several_state *state, int asked, int count, int *from);

/*
 * A try is refused a name, and has those before it, so many.  May it give back what it has behind
 * that name, and ask once more from there on?  `again`: how often it has done so.
 *
 * Hosts that try for the same names at one instant may get some of them each, and refuse each
 * other.  The host that has the first name asks again.  The others were refused that name, and give
 * back the rest.  So one host gets them all.
 */
extern bool several_try_again(int granted, int again);

#endif /* REDLOCK_SEVERAL_H */
