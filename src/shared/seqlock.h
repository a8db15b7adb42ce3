/*
 * seqlock.h
 *		A sequence lock: readers copy what one writer changes, without a lock that
 *		the writer would have to wait for.
 *
 * The number is odd while the writer is at it.  A reader copies, and does so again
 * if the number was odd or is another afterwards.  So no number of readers, and no
 * reader that is stopped, can keep the writer waiting.  A copy may be torn until it
 * is found to be good: it must not be looked at before.
 *
 * There is one writer at a time, by other means.
 */
#ifndef REDLOCK_SEQLOCK_H
#define REDLOCK_SEQLOCK_H

#include "port/atomics.h"

typedef struct SeqLock
{
	pg_atomic_uint32 number; /* it wraps: a reader would have to stop in the middle
							  * of its copy for exactly 2^31 changes */
} SeqLock;

static inline void
seqlock_begin_write(SeqLock *lock)
{
	pg_atomic_write_u32(&lock->number, pg_atomic_read_u32(&lock->number) + 1);
	pg_write_barrier();
}

static inline void
seqlock_end_write(SeqLock *lock)
{
	pg_write_barrier();
	pg_atomic_write_u32(&lock->number, pg_atomic_read_u32(&lock->number) + 1);
}

static inline uint32
seqlock_begin_read(SeqLock *lock)
{
	uint32 number = pg_atomic_read_u32(&lock->number);

	pg_read_barrier();
	return number;
}

/* Is what was copied since seqlock_begin_read good? */
static inline bool
seqlock_end_read(SeqLock *lock, uint32 number)
{
	pg_read_barrier();
	return number % 2 == 0 && pg_atomic_read_u32(&lock->number) == number;
}

/*
 * After a copy that was not good: pauses, and says whether to copy once more.  The
 * writer may have lost its processor, or be stopped, so after a tenth of a second a
 * reader gives up.  *tries begins with 0.
 */
static inline bool
seqlock_try_again(int *tries)
{
	if (++*tries == 1000)
		return false;
	pg_usleep(100);
	return true;
}

#endif /* REDLOCK_SEQLOCK_H */
