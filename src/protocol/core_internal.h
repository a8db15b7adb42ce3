/*
 * core_internal.h
 *		Functions that core.c and the files core_*.c share.  Lint lets no other file include this
 *		header.
 */
#ifndef REDLOCK_CORE_INTERNAL_H
#define REDLOCK_CORE_INTERNAL_H

#include "protocol/core.h"

/*
 * Renewals begin after a third of the ttl.  A failed round, or a round with a refusal, is
 * repeated after a ninth of the ttl.
 */
#define RENEW_AFTER_US(ttl_us) ((ttl_us) / 3)
#define RENEW_AGAIN_US(ttl_us) ((ttl_us) / 9)

/* core.c */
extern int64_t core_round_ends_us(const core_lease *lease);

/* core_acquire.c */
extern void core_on_acquire(core_lease *lease, const core_event *event, core_out *out);
extern void core_begin_acquire(core_lease *lease, const core_event *event, core_out *out);
extern void core_decide_acquire(core_lease *lease, const core_event *event, core_out *out);

/* core_renew.c */
extern void core_begin_renew(core_lease *lease, const core_event *event, core_out *out);
extern void core_set_limit(core_lease *lease, const core_event *event);
extern bool core_is_at_limit(const core_lease *lease);
extern void core_renew_at(core_lease *lease, int node, core_out *out);
extern void core_decide_renew(core_lease *lease, const core_event *event, core_out *out);
extern void core_note_refusal(core_lease *lease, const core_event *event, core_out *out);
extern void core_note_next_list(core_lease *lease, const core_event *event, core_out *out);
extern void core_relist(core_lease *lease, const core_event *event, core_out *out);
extern bool core_may_relist(const core_lease *lease);
extern void core_renew_soon(core_lease *lease);
extern int64_t core_within_limit(const core_lease *lease);

/* core_debts.c */
extern void core_begin_release(core_lease *lease, const core_event *event, core_out *out);
extern void core_tick_release(core_lease *lease, const core_event *event, core_out *out);
extern int64_t core_owed_for_us(const core_lease *lease);
extern void core_pay_debts(core_lease *lease, const core_event *event, core_mask nodes,
						   core_out *out);
extern void core_forget_debts(core_lease *lease);
extern void core_forget_left(core_lease *lease, core_mask nodes);

static inline int64_t
min_us(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t
max_us(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

#endif /* REDLOCK_CORE_INTERNAL_H */
