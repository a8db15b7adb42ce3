/*
 * effects.h
 *		Which effects beyond this server's own tables the running transaction may have.
 */
#ifndef REDLOCK_EFFECTS_H
#define REDLOCK_EFFECTS_H

#include "access/xact.h"
#include "nodes/pg_list.h"

/*
 * Begin to watch the statements of this session; once in a session.  `refuse` is called before
 * a statement that may have an effect at once, and raises an error if it must not.  `callback`
 * is registered, and is called before a foreign data wrapper commits its remote transactions;
 * it may be called several times at one event.
 */
extern void effects_watch(void (*refuse)(void), XactCallback callback);

/* Before a utility statement.  Returns the foreign tables that it writes, palloc'd OIDs. */
extern List *effects_begin_utility(Node *statement);

/* After one that writes foreign tables, and has succeeded. */
extern void effects_end_utility(List *foreign);

/* Has the transaction written, or done what its transaction id does not show? */
extern bool effects_are_there(void);

/* The transaction has ended.  Never fails. */
extern void effects_end_transaction(void);

#endif /* REDLOCK_EFFECTS_H */
