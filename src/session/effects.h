/*
 * effects.h
 *		Effects of the running transaction beyond this server's own tables.
 */
#ifndef REDLOCK_EFFECTS_H
#define REDLOCK_EFFECTS_H

#include "access/xact.h"
#include "nodes/pg_list.h"

/*
 * Begins to watch the statements of this session; called once in a session.  `refuse` is called
 * before a statement that may have an effect at once, and raises an error if the effect must not
 * happen.  `callback` becomes a transaction callback, called before a foreign data wrapper commits
 * its remote transactions; PostgreSQL may call it several times at one event.
 */
extern void effects_watch(void (*refuse)(void), XactCallback callback);

/* Relations that a utility statement writes: palloc'd OIDs. */
typedef struct UtilityWrites
{
	List *alone;   /* each may be a foreign table */
	List *parents; /* each, or partitions or children, may be foreign tables */
	bool routed;   /* a partition gets only some of the rows, or none */
} UtilityWrites;

/* Called before a utility statement. */
extern UtilityWrites effects_begin_utility(Node *statement);

/* Called after a utility statement with such relations. */
extern void effects_end_utility(UtilityWrites writes);

/* Called after the outermost CALL or DO, also after an error.  Never fails. */
extern void effects_end_call(void);

/* Has the transaction written data, or had an effect without a transaction id? */
extern bool effects_are_there(void);

/* Called when the transaction has ended.  Never fails. */
extern void effects_end_transaction(void);

/* Called after PostgreSQL has called all callbacks of an ended transaction.  Never fails. */
extern void effects_end_callbacks(void);

#endif /* REDLOCK_EFFECTS_H */
