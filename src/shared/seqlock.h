/*
 * seqlock.h
 *		A sequence lock: readers copy what one writer changes, and the writer never waits.
 *
 * The number is odd during a change.  A reader copies the data, and copies again if the number was
 * odd, or has changed.  So neither many readers nor a stopped reader can delay the writer.  A copy
 * may be torn: do not look at the data before seqlock_end_read has returned true.
 *
 * The caller makes sure that there is one writer at a time.
 */
#ifndef REDLOCK_SEQLOCK_H
#define REDLOCK_SEQLOCK_H

#include "port/atomics.h"

typedef struct SeqLock
{
	pg_atomic_uint32 number; /* wraps: harmful only to a reader that stops in the middle of a copy
								for exactly 2^31 changes */
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

/* Is the copy since seqlock_begin_read good? */
static inline bool
seqlock_end_read(SeqLock *lock, uint32 number)
{
	pg_read_barrier();
	return number % 2 == 0 && pg_atomic_read_u32(&lock->number) == number;
}

/*
 * Called after a bad copy.  Pauses, and returns whether to copy again: false after a tenth of a
 * second, since the writer may be stopped.  *tries begins with 0.
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
