/*
 * deadlock.h
 *		Deadlocks across hosts: the waits of this host, and the probes along these waits
 *		(protocol/probe.h).
 *
 * Inside of this host, PostgreSQL's lock manager knows which process blocks which.  When a probe
 * arrives, the broker asks the lock manager, as pg_blocking_pids does.  So row locks and gates
 * count, too.
 *
 * Used by the broker only.  Probes are hints: a new broker starts without any.
 */
#ifndef REDLOCK_DEADLOCK_H
#define REDLOCK_DEADLOCK_H

#include "broker/script.h"
#include "driver/driver_world.h"
#include "shared/lease.h"

extern void deadlock_init(const Driver *driver);

/*
 * A request begins, or ends, to wait for another holder and to send probes.  The driver calls
 * deadlock_wait in the same wait again and again; later calls do nothing.
 */
extern void deadlock_wait(Lease *lease, int64 now_us);
extern void deadlock_end(Lease *lease);

/*
 * Notes which host a node named as the holder, or as an earlier waiter; 0: unknown. by_readers:
 * several hosts share the lock, and only the nodes know which.
 */
extern void deadlock_held_by(Lease *lease, uint64 host, bool by_readers);

/* Sends due probes.  Returns the time of the next call. */
extern int64 deadlock_on_time(int64 now_us);

/* Follows a probe that another host sent.  A probe for an unknown lock is dropped. */
extern void deadlock_hear(ScriptProbe *probe, int64 now_us);

#endif /* REDLOCK_DEADLOCK_H */
