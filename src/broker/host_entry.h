/*
 * host_entry.h
 *		This host's entry in the nodes' lists: configuration, facts, announced step.
 *
 * Used by the parts of the registry only.
 */
#ifndef REDLOCK_HOST_ENTRY_H
#define REDLOCK_HOST_ENTRY_H

#include "broker/node.h"
#include "protocol/core.h"
#include "protocol/hosts.h"

/*
 * entry_write describes this host again.  entry_texts returns the texts of the last entry_write:
 * facts, configuration.
 */
extern void entry_write(void);
extern void entry_texts(const char *text[2], size_t len[2]);

/*
 * This host's configuration, for comparisons.  entry_write and entry_look_again describe this host
 * again; entry_look_again keeps the texts.
 */
extern const HostConfig *entry_config(void);
extern void entry_look_again(void);

/* Turns a set of places in entry_config()->node into a set of node indexes. */
extern core_mask entry_nodes(core_mask places);

/* Does the last entry name the node's present process? */
extern bool entry_names(const RedisNode *node);

/* Describes this host's configuration as if the given lists were in force. */
extern void describe_config(HostConfig *config, core_lists lists);

/* The step that the entry announces; leaving.c sets it. */
extern void entry_announce(HostStep step);
extern HostStep entry_step(void);

extern bool is_asked_or_held(const core_lease *lease);

#endif /* REDLOCK_HOST_ENTRY_H */
