/*
 * lists_file.h
 *		The two lists of nodes that are in force, on disk: while redlock.nodes_next is in
 *		force, a server that crashes or restarts must not forget that redlock.nodes was, too.
 *
 * A file of the server's, with its passwords, only for its owner; base backups leave it out.
 *
 * Used by the broker only.
 */
#ifndef REDLOCK_LISTS_FILE_H
#define REDLOCK_LISTS_FILE_H

#include "shared/url.h"

/* What goes wrong is logged, and is no error: the first and the last return false then. */
extern bool lists_file_write(const NodeUrls *now, const NodeUrls *next);
extern void lists_file_remove(void);
extern bool lists_file_read(NodeUrls *now, NodeUrls *next);

#endif /* REDLOCK_LISTS_FILE_H */
