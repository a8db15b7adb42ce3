/*
 * joint_file.h
 *		The joint lists, on disk.  While redlock.nodes_next is in force, a server that crashes or
 *		restarts must not forget that redlock.nodes was in force, too.
 *
 * The file belongs to the server's user alone, since it has passwords.  Base backups leave it out;
 * a copy of the data directory has it.
 *
 * Used by the broker only.
 */
#ifndef REDLOCK_JOINT_FILE_H
#define REDLOCK_JOINT_FILE_H

#include "pgstat.h"

#include "shared/url.h"

/* pg_basebackup leaves out this directory. */
#define JOINT_FILE PG_STAT_TMP_DIR "/redlock_pg.lists"

/*
 * A failure is logged, and raises no error.  joint_file_write and joint_file_read return false
 * then.
 */
extern bool joint_file_write(const NodeUrls *now, const NodeUrls *next);
extern void joint_file_remove(void);
extern bool joint_file_read(NodeUrls *now, NodeUrls *next);

#endif /* REDLOCK_JOINT_FILE_H */
