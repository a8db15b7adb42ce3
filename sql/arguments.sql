-- Wrong arguments: each has its own error, and changes nothing.
--
-- Protects from: a NULL that returns as if a lock were held; names cut short, so that two names
-- mean the same lock; limits that count letters where the keys on the nodes count bytes; names that
-- forge lines of a log, or send commands to a terminal; durations of the wrong unit or sign, or
-- with an overflow; a refused call that leaves a lock behind.
--
-- Needs a database in UTF-8 and the default of redlock.max_ttl.

SELECT granted + refused + unreachable AS asked FROM redlock_stats \gset

-- the name: NULL and empty
SELECT redlock_acquire(NULL);
\echo :SQLSTATE
SELECT redlock_try(NULL);
\echo :SQLSTATE
SELECT redlock_release(NULL);
\echo :SQLSTATE
SELECT redlock_check(NULL);
\echo :SQLSTATE
SELECT redlock_acquire('');
\echo :SQLSTATE
SELECT redlock_try('');
\echo :SQLSTATE
SELECT redlock_release('');
\echo :SQLSTATE
SELECT redlock_check('');
\echo :SQLSTATE

-- the name: too long, in bytes
SELECT redlock_acquire(repeat('x', 256));
\echo :SQLSTATE
SELECT redlock_try(repeat('x', 256));
\echo :SQLSTATE
SELECT redlock_release(repeat('x', 256));
\echo :SQLSTATE
SELECT redlock_check(repeat('x', 256));
\echo :SQLSTATE
SELECT redlock_try(repeat(U&'\00E4', 128));
SELECT redlock_try(repeat(U&'\20AC', 85) || 'x');
SELECT redlock_try(repeat(U&'\+01F512', 64));
SELECT redlock_try(repeat('x', 1000000));

-- the name: control characters, which no message may repeat
SELECT redlock_acquire(E'a\nLOG:  b');
\echo :SQLSTATE
SELECT redlock_try(E'\t');
SELECT redlock_try(E'\x01');
SELECT redlock_try(E'a\x1b[31mb');
SELECT redlock_try(E'a\x1f');
SELECT redlock_try(E'a\x7f');
SELECT redlock_try(U&'a\0080');
SELECT redlock_try(U&'a\009Bb');
SELECT redlock_try(U&'\00E4\009F');
SELECT redlock_release(E'a\r');
SELECT redlock_check(E'a\r');
SELECT redlock_token(E'a\r');
SELECT redlock_fence(E'a\r');
CALL redlock_run(E'a\r', 'SELECT 1');

-- wait
SELECT redlock_acquire('a', wait => '-1 s');
\echo :SQLSTATE
SELECT redlock_acquire('a', wait => '-1 us');
SELECT redlock_acquire('a', wait => '1 month -31 days');
SELECT redlock_acquire('a', wait => '-178000000 years');
SELECT redlock_acquire('a', wait => '24 days 1 us');
\echo :SQLSTATE
SELECT redlock_acquire('a', wait => '1 month');
SELECT redlock_acquire('a', wait => '4294968.296 s');
SELECT redlock_acquire('a', wait => '178000000 years');
CALL redlock_run('a', 'SELECT 1', wait => '1 month');

-- ttl
SELECT redlock_acquire('a', ttl => '0');
\echo :SQLSTATE
SELECT redlock_try('a', ttl => '0');
SELECT redlock_try('a', wait => '-1 ms');
SELECT redlock_try_all(ARRAY['a'], wait => '1000 days');
\echo :SQLSTATE
SELECT redlock_acquire('a', ttl => '-1 s');
SELECT redlock_try('a', ttl => '1 month -31 days');
SELECT redlock_acquire('a', ttl => '1 us');
\echo :SQLSTATE
SELECT redlock_try('a', ttl => '99.999 ms');
\echo :SQLSTATE
SELECT redlock_acquire('a', ttl => '60001 ms');
\echo :SQLSTATE
SELECT redlock_try('a', ttl => '60001 ms');
SELECT redlock_try('a', ttl => '60.000001 s');
\echo :SQLSTATE
SELECT redlock_try('a', ttl => '1 day');
SELECT redlock_try('a', ttl => '1 month');
-- 2^32 ms and a little: no overflow to a little
SELECT redlock_try('a', ttl => '4294968.296 s');
SELECT redlock_try('a', ttl => '178000000 years');
-- redlock.ttl has the same limit, in a call without a ttl
SET redlock.ttl = '61s';
SELECT redlock_try('a');
\echo :SQLSTATE
RESET redlock.ttl;

-- scope
SELECT redlock_acquire('a', scope => NULL);
\echo :SQLSTATE
SELECT redlock_try('a', scope => NULL);
\echo :SQLSTATE
SELECT redlock_try('a', scope => 'statement');
\echo :SQLSTATE

-- in a transaction: the refused call adds no lock
BEGIN;
SELECT redlock_try('in transaction');
SAVEPOINT s;
SELECT redlock_try('a', ttl => '0');
ROLLBACK TO s;
SELECT resource FROM redlock_locks WHERE state <> 'releasing';
COMMIT;

-- No lock and no gate is left.  Only 'in transaction' has asked the nodes.
SELECT resource, state FROM redlock_locks WHERE state <> 'releasing';
SELECT count(*) FROM pg_locks WHERE locktype = 'userlock';
SELECT granted + refused + unreachable - :asked AS asked FROM redlock_stats;

-- the longest names: all bytes count
SELECT redlock_try(repeat('x', 255), scope => 'session');
SELECT redlock_try(repeat('x', 254) || 'y', scope => 'session');
SELECT redlock_try(repeat('x', 254), scope => 'session');
SELECT redlock_try(repeat(U&'\00E4', 127) || 'x', scope => 'session');
SELECT redlock_try(repeat(U&'\20AC', 85), scope => 'session');
SELECT redlock_try(repeat(U&'\+01F512', 63) || 'xyz', scope => 'session');
SELECT length(resource), octet_length(resource), right(resource, 1) IN ('x', 'y', 'z') AS latin
  FROM redlock_locks WHERE state = 'held'
 ORDER BY 1, 2, right(resource, 1);
SELECT redlock_check(repeat('x', 254)) > '0';
SELECT redlock_release(repeat('x', 255));
-- a name that differs in the last byte is still held
SELECT redlock_check(repeat('x', 254) || 'y') > '0';
SELECT redlock_release_all();

-- the neighbours of control characters are allowed
SELECT redlock_try(U&' ~\00A0\00C2\20AC\0100\071F', scope => 'session');
SELECT redlock_release_all();

-- the shortest and the longest durations
SELECT redlock_acquire('no wait', wait => '0', scope => 'session') > 0;
SELECT redlock_acquire('no wait', wait => '1 month -30 days', scope => 'session') > 0;
SELECT redlock_acquire('short wait', wait => '1 s', scope => 'session') > 0;
SELECT redlock_acquire('long wait', wait => '24 days', scope => 'session') > 0;
SELECT redlock_acquire('endless wait', wait => NULL, scope => 'session') > 0;
SELECT redlock_try('longest', ttl => '60 s', scope => 'session');
SELECT redlock_try('days', ttl => '1 day -86395 s', scope => 'session');
SELECT redlock_try('fraction', ttl => '5000.999 ms', scope => 'session');
SELECT redlock_try('months', ttl => '1 month -30 days 6 s', scope => 'session');
SELECT redlock_try('default', ttl => NULL, scope => 'session');
-- the shortest ttl is not refused, though a busy machine may lose the lease at once
DO $$
BEGIN
	PERFORM redlock_try('shortest', ttl => '100 ms');
	RAISE EXCEPTION 'give it back';
EXCEPTION
	WHEN raise_exception OR serialization_failure OR connection_exception OR query_canceled THEN
		NULL;
END $$;
-- by position: wait before ttl before scope
SELECT redlock_acquire('by position', '20 s', '7 s', 'session') > 0;
SELECT redlock_try('try by position', '8 s', 'session');
SELECT resource, scope, ttl FROM redlock_locks WHERE state = 'held'
 ORDER BY resource COLLATE "C";
-- validity: the ttl, less the time of the request and the clock drift
SELECT redlock_check('longest') BETWEEN '55 s' AND '59.398 s' AS longest,
       redlock_check('default') BETWEEN '1 s' AND '9.898 s' AS "default";
SELECT redlock_release_all();
