/*
 * laws.c
 *		The laws of each step of a lease; see laws.h.
 */
#include "laws.h"

#include <stddef.h>

#define law(holds, text)                                                                           \
	do                                                                                             \
	{                                                                                              \
		if (!(holds))                                                                              \
			return (text);                                                                         \
	} while (0)

const char *
laws_broken(const core_lease *before, const core_event *event, const core_lease *after,
			const core_out *out)
{
	core_mask sent = out->acquire | out->confirm | out->renew | out->release;
	bool held = after->state == CORE_HELD;
	bool was_held = before->state == CORE_HELD;
	core_mask agreed = 0;

	law(!held || event->now_us < after->valid_until_us,
		"invariant 3: a lease is not HELD at or past its deadline");
	law(!held || after->valid_until_us <= after->granted_until_us,
		"invariant 3: no lease is valid for longer than the nodes granted");
	law(!held || after->granted_until_us <= event->now_us + core_validity_us(after->ttl_us),
		"invariant 3: validity is never more than the ttl gives");
	law(!held || !was_held || after->granted_until_us >= before->granted_until_us,
		"invariant 9: what the nodes granted is never shortened");
	law(!held || !was_held || event->type == CORE_LIMIT ||
			after->valid_until_us >= before->valid_until_us,
		"invariant 9: validity is never shortened, but by a limit");
	law(!held || after->hold_until_us == 0 || after->valid_until_us <= after->hold_until_us,
		"no lease is valid for longer than it may be held");
	law(!held || !was_held ||
			after->hold_until_us ==
				(event->type == CORE_LIMIT ? event->hold_until_us : before->hold_until_us),
		"how long a lease may be held is what its shell said last");
	law(!held || was_held || before->state == CORE_ASKING,
		"invariant 9: only a round of acquires makes a lease HELD");
	law((sent & ~(event->can_send & (after->members | after->left))) == 0,
		"commands go only to members that can be sent to");
	law((out->acquire & ~event->can_vote) == 0,
		"invariant 8: a node in quarantine is not asked for a grant");
	law((out->release & ~event->can_release) == 0 || after->state != CORE_RELEASING ||
			before->state == CORE_ASKING || before->state == CORE_BUSY,
		"what is over is released only where there is room");
	law((out->acquire & out->release) == 0 && ((out->acquire | out->release) & out->confirm) == 0 &&
			((out->acquire | out->release | out->confirm) & out->renew) == 0,
		"one command to a node in one step");
	law(out->acquire == 0 || after->state == CORE_ASKING, "acquires are sent while ASKING");
	law(out->confirm == 0 || after->state == CORE_ASKING, "confirms are sent while ASKING");
	law(out->renew == 0 || (held && was_held && after->renewed),
		"invariant 14: renewals are sent while HELD");
	law((out->outcome == CORE_GRANTED) == (held && !was_held), "a grant is told when it begins");
	law(out->release == 0 || (after->state != CORE_RELEASING && after->state != CORE_LOST) ||
			!after->renewed || core_tombstone(after) == after->bound + 1,
		"invariant 6: the release after renewals leaves a tombstone above all that they may pass");
	law(sent == 0 || after->state != CORE_FREE, "nothing is sent for a FREE lease");
	law(sent == 0 || event->type != CORE_LIMIT, "nothing is sent for a limit");
	law(!held || after->token > 0, "invariant 2: who holds the lock has a token");
	law(!was_held || after->token == before->token, "invariant 2: a token does not change");
	law(!held || was_held || after->bound == after->token,
		"invariant 5: a grant's renewals are bound by its token");
	law(!was_held || after->bound == before->bound ||
			(out->outcome == CORE_RENEWED && after->bound == before->raise &&
			 after->bound > before->bound),
		"invariant 5: the bound is raised by a majority");
	law(!held || after->raise >= after->bound, "a renewal does not lower the bound");
	law(!held || !after->renewing || !before->renewing || before->round != after->round ||
			after->raise == before->raise,
		"invariant 5: all renewals of a round raise the bound alike");
	law(!was_held || !before->renewed || after->renewed || !held, "a renewal is remembered");
	law((after->state != CORE_FREE && after->state != CORE_BUSY && after->state != CORE_RELEASING &&
		 !after->renewing) ||
			after->confirming == 0,
		"confirms are awaited in the round of the grant only");
	law(event->type != CORE_TICK || after->wake_at_us == 0 || after->wake_at_us > event->now_us ||
			(before->state == CORE_ASKING && after->state == CORE_BUSY),
		"a TICK is followed by a pause, or by another TICK that asks");
	law((after->wake_at_us == 0) == (after->state == CORE_FREE || after->state == CORE_LOST),
		"a TICK is wanted in all states but FREE and LOST");
	law(held || !after->renewing, "only a HELD lease is renewed");
	law(after->state != CORE_FREE || after->releasing == 0, "a FREE lease awaits nothing");

	for (int i = 0; i < CORE_NODES_MAX; i++)
	{
		law(after->state != CORE_FREE || after->node[i].key == CORE_KEY_ABSENT,
			"invariant 7: a FREE lease has no keys");
		law(!(out->release & CORE_BIT(i)) || before->node[i].key != CORE_KEY_ABSENT,
			"a release is asked only where a key is or may be");
		law(!(out->release & CORE_BIT(i)) || !held || !(after->members & CORE_BIT(i)) ||
				after->node[i].attempt != after->attempt,
			"invariant 6: what is HELD is not released");
		law(!(out->renew & CORE_BIT(i)) || after->node[i].attempt == after->attempt,
			"only the value of the current attempt is renewed");
		law(!(out->renew & CORE_BIT(i)) || after->node[i].key != CORE_KEY_ABSENT,
			"invariant 7: who was sent a renewal may have the key");
		law(!(out->confirm & CORE_BIT(i)) ||
				(after->token_at[i] > 0 && after->token_at[i] < after->token),
			"invariant 2: a token is written only over a smaller counter, that of the grant");
		law(!(out->confirm & before->confirming & CORE_BIT(i)), "a node is asked to confirm once");
		if ((after->members & CORE_BIT(i)) && after->node[i].vote == CORE_VOTE_YES &&
			after->token_at[i] == after->token)
			agreed |= CORE_BIT(i);
	}
	law(out->outcome != CORE_GRANTED || core_has_quorum(after->lists, agreed),
		"invariants 2, 4: a grant's token is held by a majority");
	return NULL;
}
