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
	pg_atomic_uint32 number;
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
 * A reader tries so often, so far apart, before it gives up: the writer may have
 * lost its processor, or be stopped.
 */
#define SEQLOCK_TRIES 1000
#define SEQLOCK_PAUSE_US 100

#endif /* REDLOCK_SEQLOCK_H */
