/*
 * operator.h
 *		The operator, who changes settings while locks are in use, as
 *		docs/how-to says.
 */
#ifndef SIM_OPERATOR_H
#define SIM_OPERATOR_H

#include "world.h"

#define LIST_MAX SERVERS_MAX

/*
 * The nodes of redlock.nodes and redlock.nodes_next, as addresses.  Two
 * addresses may be of one server.
 */
typedef struct list
{
	int count;
	int address[LIST_MAX];
	bool now[LIST_MAX];  /* is in redlock.nodes */
	bool next[LIST_MAX]; /* is in redlock.nodes_next */
} list;

extern void operator_begin(void);
extern void operator_acts(void); /* EVENT_OPERATOR */

/* The list in the file of this host. */
extern const list *operator_list(int host);
extern int operator_server(int address);

/* May a call ask for a longer ttl than before max_ttl was raised? */
extern bool operator_allows_longer(void);

#endif /* SIM_OPERATOR_H */
