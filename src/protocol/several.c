/*
 * several.c
 *		Acquiring several locks at once; see several.h.
 */
#include "protocol/several.h"

#include <stdbool.h>
#include <string.h>

static bool is_answered(const several_state *state, int from, int to);

int
several_compare(const char *one, size_t one_len, const char *other, size_t other_len)
{
	int order = memcmp(one, other, one_len < other_len ? one_len : other_len);

	if (order != 0)
		return order;
	return (one_len > other_len) - (one_len < other_len);
}

several_step
several_next(const several_state *state, int asked, int count, int *from)
{
	int first = 0; /* first lock without a grant */

	while (first < asked && state[first] == SEVERAL_GRANTED)
		first++;
	if (first == asked && asked == count)
		return SEVERAL_DONE;
	if (first == asked)
	{
		*from = asked;
		return SEVERAL_ASK;
	}
	/* a lock before a refused lock may yet be granted, or be refused too */
	for (int i = first; i < asked - 1; i++)
		if (state[i] == SEVERAL_REFUSED)
		{
			*from = i + 1;
			return is_answered(state, i + 1, asked) ? SEVERAL_RELEASE : SEVERAL_WAIT;
		}
	return first == asked - 1 ? SEVERAL_WAIT_FOR_LAST : SEVERAL_WAIT;
}

bool
several_try_again(int granted, int again)
{
	return granted > 0 && again < SEVERAL_AGAIN_MAX;
}

/*
 * A lock released before its answer may have been granted at the nodes, and may have refused
 * other hosts.  These hosts would need a message, and ask again.  The answer arrives in a
 * moment.
 */
static bool
is_answered(const several_state *state, int from, int to)
{
	for (int i = from; i < to; i++)
		if (state[i] == SEVERAL_ASKED)
			return false;
	return true;
}
