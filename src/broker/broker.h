/*
 * broker.h
 *		The one process of a server that talks to the Redis nodes.
 */
#ifndef REDLOCK_BROKER_H
#define REDLOCK_BROKER_H

/* postmaster, _PG_init */
extern void broker_register(void);

/* Entry point of the background worker. */
extern PGDLLEXPORT void redlock_broker_main(Datum arg);

#endif /* REDLOCK_BROKER_H */
