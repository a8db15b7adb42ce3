/*
 * peer.h
 *		What src/broker/node.c and node_checks.c do: time-outs, reconnecting, the handshake.
 *		src/protocol/guard.c itself decides what follows from the handshake.
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
