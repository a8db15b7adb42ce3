/*
 * operator.h
 *		The operator, who changes settings while locks are in use, as README.md says.
 */
#ifndef SIM_OPERATOR_H
#define SIM_OPERATOR_H

#include "world.h"

#define LIST_MAX SERVERS_MAX

/* A redlock.nodes, and a redlock.nodes_next: addresses.  Two may be of one server. */
typedef struct list
{
	int count;
	int address[LIST_MAX];
	bool now[LIST_MAX];  /* is in the one, */
	bool next[LIST_MAX]; /* ... in the other */
} list;

extern void operator_begin(void);
extern void operator_acts(void); /* EVENT_OPERATOR */

/* What the file of this host says. */
extern const list *operator_list(int host);
extern int operator_server(int address);

/* May a call ask for a longer ttl than before max_ttl was raised? */
extern bool operator_allows_longer(void);

#endif /* SIM_OPERATOR_H */
