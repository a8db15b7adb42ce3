/*
 * memory.h
 *		All of the shared memory of redlock_pg: its place at the start of the server.
 */
#ifndef REDLOCK_MEMORY_H
#define REDLOCK_MEMORY_H

/* postmaster, _PG_init */
extern void memory_install_hooks(void);

#endif /* REDLOCK_MEMORY_H */
