/*
 * broker.h
 *		The background worker of a host that talks to the nodes.
 */
#ifndef REDLOCK_BROKER_H
#define REDLOCK_BROKER_H

/* Called by _PG_init in the postmaster. */
extern void broker_register(void);

/* Entry point of the background worker. */
extern PGDLLEXPORT void redlock_broker_main(Datum arg);

#endif /* REDLOCK_BROKER_H */
