/*
 * wait_events.h
 *		The wait events of this extension, for pg_stat_activity.
 */
#ifndef REDLOCK_WAIT_EVENTS_H
#define REDLOCK_WAIT_EVENTS_H

typedef enum WaitsFor
{
	WAITS_FOR_NODES,      /* answers to a request for a lock, or a free entry of the lease table */
	WAITS_FOR_OTHER_HOST, /* the holder of a lock, or its last holder's hold_at_least */
	WAITS_FOR_PERMIT,     /* a permit, or the queue of permits */
	WAITS_IN_QUEUE,       /* another session of this server, outside of PostgreSQL's lock manager */
	WAITS_FOR_RENEWAL,    /* of a detached lock */
	WAITS_FOR_INSPECTION, /* the nodes' answers about a lock or a job */
	WAITS_FOR_HOSTS,      /* the list of hosts */
	WAITS_IN_BROKER,      /* the broker, without work */
	WAITS                 /* number of wait events */
} WaitsFor;

/*
 * Returns the wait event, for WaitLatch and the like.  The first call of a process for an event
 * takes a lightweight lock of PostgreSQL: the caller holds no lock of ours, and is in no critical
 * section.
 */
extern uint32 wait_event(WaitsFor what);

#endif /* REDLOCK_WAIT_EVENTS_H */
