/*
 * fault.h
 *		Faults that occur by themselves, and the plain Redlock client.
 */
#ifndef SIM_FAULT_H
#define SIM_FAULT_H

#include "world.h"

extern void fault_begin(void);
extern void fault_happens(void);             /* EVENT_FAULT */
extern void fault_calm(void);                /* EVENT_CALM */
extern void fault_plain(const event *event); /* EVENT_PLAIN */

/* A round of acquires counts the node's vote. */
extern void fault_on_vote(int host, int entry, int node);

/* Does the plain client hold this lock? */
extern bool fault_plain_is_valid(int resource);

/* A forced release deletes a key with this secret. */
extern void fault_plain_forced(uint32_t secret);

/* Is, or was, this secret the plain client's? */
extern bool fault_is_plain(uint32_t secret);

#endif /* SIM_FAULT_H */
