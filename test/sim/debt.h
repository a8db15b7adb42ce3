/*
 * debt.h
 *		What keys stand at which node, and whether they should: debts and repairs,
 *		seen from the world's side.
 *
 * The core's own account of what it owes is not asked.  A key is a debt from when
 * its owner has let go, or its attempt was not won.  Where the node is reachable
 * it is gone within a bound; so is what a held lease lacks at a node that is back.
 */
#ifndef SIM_DEBT_H
#define SIM_DEBT_H

#include "world.h"

extern void debt_begin(void);
extern void debt_check(void); /* after each event */

/* What is known of a key at a server, beside what it stores. */
extern void debt_placed(int server, int resource, int node,
						bool in_time); /* not by a late command */
extern void debt_placed_reader(int server, uint32_t secret, int node, bool in_time);
extern void debt_asked(int host, int entry);     /* by this secret from now on */
extern void debt_over(int host, int entry);      /* the core begins to delete its keys */
extern void debt_forgiven(int host, int entry);  /* the shell gave up what is owed */
extern void debt_forgotten(int host, int entry); /* ... what is under way is not sent again */
extern void debt_left(int host, int node);       /* the host closes its connection for good */
extern void debt_failed(int host, int node);     /* the node answered with an error */

/* Does this request's key stand there, or is it among those who share it? */
extern bool debt_stands(const server *server, int resource, uint32_t secret);

/* Whose key stands there?  0: nobody's.  What has expired goes when it is looked at. */
extern uint32_t debt_standing(const server *server, int resource);

#endif /* SIM_DEBT_H */
