/*
 * peer.h
 *		What src/broker/node.c does: time-outs, reconnecting, the handshake.  What comes of
 *		it is decided by src/protocol/guard.c as it is.
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
