/*
 * peer.h
 *		The work of src/broker/node.c and node_checks.c: time-outs,
 *		reconnecting, the handshake.  src/protocol/guard.c decides the
 *		consequences of a handshake.
 */
#ifndef SIM_PEER_H
#define SIM_PEER_H

#include "host.h"

extern void peer_lose(int host, int node, const char *why);
extern void peer_connect_later(int host, int node);

/* Events */
extern void peer_on_overdue(const event *event);
extern void peer_on_handshake(const event *event);

#endif /* SIM_PEER_H */
