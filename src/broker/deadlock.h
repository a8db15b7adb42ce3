/*
 * deadlock.h
 *		Deadlocks across hosts: the waits of this server, and the probes that are sent along
 *		them (protocol/probe.h).
 *
 * What waits for whom inside of this server is asked of PostgreSQL's lock manager, as
 * pg_blocking_pids does, when a probe comes: row locks, gates and all.
 *
 * Used by the broker only.  Probes are hints: a successor begins anew.
 */
#ifndef REDLOCK_DEADLOCK_H
#define REDLOCK_DEADLOCK_H

#include "broker/script.h"
#include "driver/driver_world.h"
#include "shared/lease.h"

extern void deadlock_init(const Driver *driver);

/* A request waits for what another has; it does no more. */
extern void deadlock_wait(Lease *lease, int64 now_us);
extern void deadlock_end(Lease *lease);

/*
 * The host that has the lock of a request, or waits for it before the request, as the nodes say;
 * 0: unknown; by_readers: hosts that share it, which the nodes know.
 */
extern void deadlock_held_by(Lease *lease, uint64 host, bool by_readers);

/* Send probes that are due.  Returns when to be called again. */
extern int64 deadlock_on_time(int64 now_us);

/* A probe came. */
extern void deadlock_hear(ScriptProbe *probe, int64 now_us);

#endif /* REDLOCK_DEADLOCK_H */
