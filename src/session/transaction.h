/*
 * transaction.h
 *		What the end of a transaction, or of this process, does to the holdings.
 */
#ifndef REDLOCK_TRANSACTION_H
#define REDLOCK_TRANSACTION_H

#include "session/holdings.h"

/* Register the callbacks; once in a session. */
extern void transaction_set_up(void);

/*
 * The session releases a lock whose lease was lost.  The release must not hide the loss: a commit
 * of this transaction fails if the transaction has effects.
 */
extern void transaction_note_lost(const Holding *holding);

/* The outermost CALL or DO has ended, by an error too.  Never fails. */
extern void transaction_end_call(void);

#endif /* REDLOCK_TRANSACTION_H */
