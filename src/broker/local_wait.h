/*
 * local_wait.h
 *		What a process of this server waits for: a lock of PostgreSQL's lock manager, or a shared
 *		lock in a gate.  Asked by the broker for probes of deadlock.c.
 */
#ifndef REDLOCK_LOCAL_WAIT_H
#define REDLOCK_LOCAL_WAIT_H

#include "storage/proc.h"

#include "broker/script.h"
#include "shared/lease.h"

/* The wait of a process in the lock manager, or in a gate. */
typedef struct LocalWait
{
	uint64 number;  /* unique on this host */
	bool in_gate;   /* in a gate, to share a lock */
	Lease *request; /* behind this lease, which is not granted; or NULL */
	Lease *shared;  /* may not join these readers, since a writer waits; or NULL */
	char what[SCRIPT_WHAT_SIZE];
} LocalWait;

/*
 * May this process wait?  Takes no lock; a wait that begins just now is found by the next probe.
 * The leader of a parallel query waits in an IPC event while a worker waits for a lock.
 */
extern bool local_wait_may_be(PGPROC *process);

/*
 * Describes the wait of this process.  Returns false if there is none.  Takes all partition locks
 * of the lock manager; allocates in the caller's memory context.
 */
extern bool local_wait_find(PGPROC *process, LocalWait *wait);

/* Writes the processes for which this process waits, up to `most`.  Returns their number. */
extern int local_wait_blockers(int pid, const LocalWait *wait, int *pids, int most);

/* Writes redlock "name"; a name that is cut ends in "... (after the quote). */
extern void local_wait_describe(const Lease *lease, char what[SCRIPT_WHAT_SIZE]);

#endif /* REDLOCK_LOCAL_WAIT_H */
