-- Twins of PostgreSQL's own test of advisory locks (advisory_lock.sql), for
-- exclusive locks: scope "transaction" is pg_advisory_xact_lock, scope "session"
-- is pg_advisory_lock.
--
-- Protects from: surprises for users of advisory locks.

CREATE VIEW held AS
    SELECT resource, scope FROM redlock_locks
     WHERE state = 'held' AND pid = pg_backend_pid()
     ORDER BY resource COLLATE "C";

BEGIN;
SELECT redlock_acquire('1') > 0 AS "1", redlock_acquire('2', wait => NULL) > 0 AS "2",
	redlock_try('3') AS "3", redlock_try('4', ttl => NULL) AS "4";
TABLE held;
SELECT locktype, mode, granted FROM pg_locks
 WHERE locktype IN ('userlock', 'advisory') AND pid = pg_backend_pid();
-- neither pg_advisory_unlock_all nor redlock_release_all releases transaction locks
SELECT pg_advisory_unlock_all();
SELECT redlock_release_all();
TABLE held;
-- can't unlock transaction locks
SELECT redlock_release('1') AS "1", redlock_release('2') AS "2", redlock_release('3') AS "3",
	redlock_release('4') AS "4";
-- automatically release transaction locks at commit
COMMIT;
TABLE held;

BEGIN;
-- holding both session and transaction locks on the same objects, transaction first
SELECT redlock_acquire('1') > 0 AS "1 (transaction)", redlock_acquire('1', scope => 'session') > 0 AS "1 (session)",
	redlock_try('2') AS "2 (transaction)", redlock_try('2', scope => 'session') AS "2 (session)";
TABLE held;
ROLLBACK;
SELECT * FROM held WHERE scope = 'session';
-- unlocking session locks, and once too often
SELECT redlock_release('1'), redlock_release('1'), redlock_release('2'), redlock_release('2');
TABLE held;

BEGIN;
-- holding both session and transaction locks on the same objects, session first
SELECT redlock_acquire('1', scope => 'session') > 0 AS "1 (session)", redlock_acquire('1') > 0 AS "1 (transaction)",
	redlock_try('2', scope => 'session') AS "2 (session)", redlock_try('2') AS "2 (transaction)";
TABLE held;
ROLLBACK;
TABLE held;
-- releasing all session locks
SELECT redlock_release_all();
TABLE held;

BEGIN;
-- grabbing transaction locks multiple times
SELECT redlock_acquire('1') = redlock_acquire('1') AS "1", redlock_try('2'), redlock_try('2');
TABLE held;
SELECT count(*) FROM pg_locks WHERE locktype = 'userlock' AND pid = pg_backend_pid();
COMMIT;
TABLE held;

-- grabbing session locks multiple times
SELECT redlock_acquire('1', scope => 'session') = redlock_acquire('1', scope => 'session') AS "1",
	redlock_try('2', scope => 'session') AS "2", redlock_try('2', scope => 'session') AS "2 again";
TABLE held;
SELECT redlock_release('1'), redlock_release('2');
TABLE held;
SELECT redlock_release('1'), redlock_release('2');
TABLE held;
-- .. and releasing them all at once
SELECT redlock_acquire('1', scope => 'session') = redlock_acquire('1', scope => 'session') AS "1",
	redlock_try('2', scope => 'session') AS "2", redlock_try('2', scope => 'session') AS "2 again";
SELECT redlock_release_all();
TABLE held;
SELECT count(*) FROM pg_locks WHERE locktype = 'userlock' AND pid = pg_backend_pid();

DROP VIEW held;
