/*
 * stats_file.h
 *		The statistics on disk, from a clean stop of the server to the next start.
 */
#ifndef REDLOCK_STATS_FILE_H
#define REDLOCK_STATS_FILE_H

/*
 * The postmaster, after the set-up of the shared memory.  Restores the statistics of the last stop,
 * and has them written at the next stop.
 */
extern void stats_file_set_up(void);

#endif /* REDLOCK_STATS_FILE_H */
