/*
 * word.h
 *		What hosts tell each other by the nodes, and whose turn is next: the work of
 *		src/broker/subscription.c and turns.c.
 *
 * Words go by connections of their own.  All of them are hints, which FAULT_WORD loses,
 * repeats, holds back and forges.
 */
#ifndef SIM_WORD_H
#define SIM_WORD_H

#include "host.h"
#include "wire.h"

extern void word_begin(void);

/* A server executed this command, and tells what follows from it. */
extern void word_tell(int server, const command *command, const answer *answer);

/* So many hosts wait for the lock, as that server knows. */
extern int word_waiting(int resource);

/* Events */
extern void word_on_hear(const event *event);

/* For how long a try waits for a lease that another host has for nobody. */
extern int64_t word_recall_us(void);

/* A host may have missed a release: when it asks; 0: not because of that. */
extern int64_t word_miss_us(int host, int slot);

/* From when on a turn is a long one. */
extern int64_t word_long_turn_us(void);

/* The turn of this host is over. */
extern void word_end_turn(int host, int slot);

/* When its next request may ask; 0: at once. */
extern int64_t word_begin_us(int host, int resource, bool shared);

#endif /* SIM_WORD_H */
