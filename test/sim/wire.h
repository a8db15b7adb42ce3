/*
 * wire.h
 *		Connections between hosts and nodes, and what is under way on them.
 *
 * Commands are executed in the order in which they were sent while a connection
 * lives; replies come in that order.  When it breaks, or the host closes it, a
 * first part of what was not executed may still be, soon or late, since it may
 * lie in the old socket at the node's side: then it overtakes, or is overtaken
 * by, what the host sends on its next connection.
 */
#ifndef SIM_WIRE_H
#define SIM_WIRE_H

#include "protocol/guard.h"
#include "world.h"

typedef enum wire_state
{
	WIRE_DOWN,
	WIRE_HANDSHAKE,
	WIRE_UP
} wire_state;

typedef struct wire
{
	wire_state state;   /* as the host sees it */
	uint32_t epoch;     /* of events about it: a connection that is over has none */
	bool gone;          /* nothing gets through any more; the host may not know */
	bool watched;       /* an EVENT_OVERDUE is under way */
	bool by_text;       /* the node does not know the script any more */
	uint32_t batch;     /* that is being executed, */
	int failing_at;     /* at which command it fails; -1: it does not */
	node_memory memory; /* ... and what the node has left for it */
	int64_t to_at_us;
	int64_t from_at_us;
	/* a ring: [head, executed) wait for their reply to arrive, [executed, tail) to be executed */
	uint32_t head;
	uint32_t executed;
	uint32_t tail;
	GuardFacts facts; /* what the node said in the handshake */
	command command[WIRE_MAX];
	answer answer[WIRE_MAX];
} wire;

extern wire wires[HOSTS_MAX][NODES_MAX];

/* The servers at which commands of a host may have been lost, late, or executed twice. */
extern core_mask stained[HOSTS_MAX];

extern void wire_begin(void);
extern void wire_connect(int host, int node);
extern void wire_send(int host, int node, const command *command);
extern void wire_close(int host, int node); /* by the host */
extern void wire_break(int host, int node, bool late, bool silent);
extern void wire_drop(int host, int node); /* nobody is told, nothing is left */
extern void wire_expire(int server, int resource);
extern void wire_text(char *text, uint32_t number); /* what is random is a number here */

/* Events */
extern void wire_on_arrive(const event *event);
extern void wire_on_reach(const event *event);
extern void wire_on_late(const event *event);
extern void wire_on_answer(const event *event);

static inline wire *
wire_at(int host, int node)
{
	return &wires[host][node];
}

static inline bool
wire_can_send(int host, int node)
{
	const wire *wire = &wires[host][node];

	return wire->state == WIRE_UP && wire->tail - wire->head < WIRE_MAX;
}

static inline uint32_t
wire_in_flight(const wire *wire)
{
	return wire->tail - wire->head;
}

#endif /* SIM_WIRE_H */
