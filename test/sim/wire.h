/*
 * wire.h
 *		Connections between hosts and nodes, and commands in flight.
 *
 * While a connection lives, nodes execute commands in the order of sending;
 * replies keep this order.  When the connection breaks, or the host closes it,
 * a first part of the unexecuted commands may still be executed, soon or late,
 * from the old socket at the node.  These commands may overtake commands of
 * the next connection, or be overtaken.
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
	wire_state state; /* as the host sees it */
	uint32_t epoch; /* distinguishes events of this connection from those of earlier connections */
	bool gone;      /* dead; the host may not know */
	bool watched;   /* an EVENT_OVERDUE is scheduled */
	bool by_text;   /* the node does not know the script any more */
	uint32_t batch; /* number of the batch in execution */
	int failing_at; /* its command that fails; -1: none */
	node_memory memory; /* the node's memory for it */
	int64_t to_at_us;
	int64_t from_at_us;
	/*
	 * a ring: [head, executed) wait for their reply to arrive, [executed,
	 * tail) for execution
	 */
	uint32_t head;
	uint32_t executed;
	uint32_t tail;
	GuardFacts facts; /* the node's answers in the handshake */
	command command[WIRE_MAX];
	answer answer[WIRE_MAX];
} wire;

extern wire wires[HOSTS_MAX][NODES_MAX];

/*
 * The servers where a host's commands may have been lost, late, or executed
 * twice.
 */
extern core_mask stained[HOSTS_MAX];

extern void wire_begin(void);
extern void wire_connect(int host, int node);
extern void wire_send(int host, int node, const command *command);
extern void wire_close(int host, int node); /* by the host */
extern void wire_break(int host, int node, bool late, bool silent);
extern void wire_drop(int host, int node); /* unnoticed; all commands in flight are lost */
extern void wire_expire(int server, int resource);
extern void wire_save(server *server);              /* before data change */
extern void wire_text(char *text, uint32_t number); /* writes a number in place of a random text */

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
