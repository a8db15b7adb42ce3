/*
 * word.h
 *		What hosts tell each other by the nodes: the work of src/broker/subscription.c.
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

/* A request of this host joins the channel of its lock on all nodes. */
extern void word_join(int host, int entry);

/* The host tells another that it waits. */
extern void word_want(int host, int resource, bool shared, int64_t waited_us, uint64_t to);

#endif /* SIM_WORD_H */
