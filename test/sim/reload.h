/*
 * reload.h
 *		The work of src/broker/members.c after a change of redlock.nodes.
 */
#ifndef SIM_RELOAD_H
#define SIM_RELOAD_H

#include "world.h"

extern void reload_on_reload(const event *event);
extern void reload_nodes(int host);  /* puts the list of the host's file into force */
extern void reload_forget(int host); /* shared memory is new */

/* Is the list of the host's file in force? */
extern bool reload_is_done(int host);

#endif /* SIM_RELOAD_H */
