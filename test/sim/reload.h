/*
 * reload.h
 *		What src/broker/members.c does when redlock.nodes has changed.
 */
#ifndef SIM_RELOAD_H
#define SIM_RELOAD_H

#include "world.h"

extern void reload_on_reload(const event *event);
extern void reload_nodes(int host);  /* the list in the host's file comes into force */
extern void reload_forget(int host); /* shared memory is new */

/* Is what the file says in force? */
extern bool reload_is_done(int host);

#endif /* SIM_RELOAD_H */
