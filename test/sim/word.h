/*
 * word.h
 *		Messages between hosts through the nodes: the work of
 *		src/broker/subscription.c.
 *
 * Messages have connections of their own.  All messages are hints: FAULT_WORD
 * loses, repeats, delays and forges them.
 */
#ifndef SIM_WORD_H
#define SIM_WORD_H

#include "host.h"
#include "wire.h"

extern void word_begin(void);

/* A server executed this command, and publishes the message of its answer. */
extern void word_tell(int server, const command *command, const answer *answer);

/*
 * How many hosts wait for the lock, as a server counts; may lie under
 * FAULT_WORD.
 */
extern int word_waiting(int resource);

/* Events */
extern void word_on_hear(const event *event);

/* How long a try waits for an idle lease of another host. */
extern int64_t word_recall_us(void);

/* The host joins the channel of a request's lock on all nodes. */
extern void word_join(int host, int entry);

/* A server publishes the end of a lock that was released by force. */
extern void word_freed(int server, int resource);

/* The host tells the host `to`, through its node, of a forced release. */
extern void word_forced(int host, int node, int resource, uint64_t to);

/* The host publishes that it waits, for the host `to`. */
extern void word_want(int host, int resource, bool shared, int64_t waited_us, uint64_t to);

#endif /* SIM_WORD_H */
