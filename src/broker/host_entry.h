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

/* Writes the entry anew.  Its texts are the facts and the configuration. */
extern void entry_write(void);
extern void entry_texts(const char *text[2], size_t len[2]);

/*
 * This host's configuration, for comparing others with it.  entry_write and entry_look_again
 * describe it; entry_look_again leaves the texts alone.
 */
extern const HostConfig *entry_config(void);
extern void entry_look_again(void);

/* The indexes of nodes in force.  A bit of places is a place in entry_config()->node. */
extern core_mask entry_nodes(core_mask places);

/* Does the entry, as entry_write wrote it last, name the present process of the node? */
extern bool entry_names(const RedisNode *node);

/* This host's configuration, with these lists. */
extern void describe_config(HostConfig *config, core_lists lists);

/* The step that the entry announces; leaving.c sets it. */
extern void entry_announce(HostStep step);
extern HostStep entry_step(void);

extern bool is_asked_or_held(const core_lease *lease);

#endif /* REDLOCK_HOST_ENTRY_H */
