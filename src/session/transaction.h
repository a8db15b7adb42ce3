/*
 * transaction.h
 *		The effect of a transaction's end, and of the process's end, on the holdings.
 */
#ifndef REDLOCK_TRANSACTION_H
#define REDLOCK_TRANSACTION_H

#include "session/holdings.h"

/* Registers the callbacks; called once in a session. */
extern void transaction_set_up(void);

/*
 * Called when the session releases a lock whose lease was lost.  The release must not hide the
 * loss: a commit of this transaction fails if the transaction has effects.
 */
extern void transaction_note_lost(const Holding *holding);

/* Called when the outermost CALL or DO has ended, by an error, too.  Never fails. */
extern void transaction_end_call(void);

#endif /* REDLOCK_TRANSACTION_H */
