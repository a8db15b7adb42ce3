/*
 * debt.h
 *		Keys at nodes, and whether they should exist: debts and repairs,
 *		seen from the world.
 *
 * The core's own account of its debts is not read.  A key is a debt when its
 * owner has released, or when its attempt has failed.  At a reachable node the
 * key must go within a bound.  A held lease must get its key back at a
 * returned node within the same bound.
 */
#ifndef SIM_DEBT_H
#define SIM_DEBT_H

#include "world.h"

extern void debt_begin(void);
extern void debt_check(void); /* after each event */

/* Records about a key at a server, besides the stored data. */
extern void debt_placed(int server, int resource, int node,
						bool in_time); /* false: placed by a late command */
extern void debt_placed_reader(int server, uint32_t secret, int node, bool in_time);
extern void debt_asked(int host, int entry);       /* by this secret from now on */
extern void debt_over(int host, int entry);        /* the core begins to delete its keys */
extern void debt_forgiven(int host, int entry);    /* the shell forgives the debts */
extern void debt_forgotten(int host, int entry);   /* commands in flight are not sent again */
extern void debt_left(int host, int node);         /* the host closes its connection for good */
extern void debt_failed(int host, int node);       /* the node answered with an error */
extern void debt_forced(int server, int resource); /* by a forced release; no repair is due */

/* Does this request have a key there, or a place among the readers? */
extern bool debt_stands(const server *server, int resource, uint32_t secret);

/* Returns the secret of the key there; 0: no key, or an expired one. */
extern uint32_t debt_standing(const server *server, int resource);

#endif /* SIM_DEBT_H */
