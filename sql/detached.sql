-- Detached locks belong to a role, not to a session.
--
-- Protects from: a detached lock without an end, or by a procedure; a detached lock that ends with
-- its session, transaction or savepoint, or counts for its session; a wrong token, or another
-- lock's token, that releases, prolongs or shows a lock; a role that takes a stranger's lock by a
-- guessed token; a commit that relies on an ended lease; a transaction that releases an attached
-- lock before its changes are visible.

CREATE VIEW detached AS
    SELECT resource, state, scope, pid, database = current_database() AS here, token > 0 AS token,
           valid_for > '0' AS valid, CASE WHEN role = session_user THEN 'this one' ELSE role END AS role, until > now() AS ends, since <= now() AS since
      FROM redlock_locks WHERE state <> 'releasing' ORDER BY resource COLLATE "C";
CREATE VIEW ended AS
    SELECT resource, until BETWEEN now() AND now() + '11 min' AS in_ten_minutes,
           until BETWEEN now() + '50 min' AND now() + '61 min' AS in_an_hour FROM redlock_locks
     WHERE state = 'held' ORDER BY resource COLLATE "C";
CREATE ROLE regress_redlock_app;
CREATE ROLE regress_redlock_member IN ROLE regress_redlock_app;
CREATE ROLE regress_redlock_stranger;
GRANT SELECT ON detached, ended TO PUBLIC;

-- wrong arguments
SELECT redlock_acquire('a', scope => 'detached');
SELECT redlock_try('a', scope => 'detached');
SELECT redlock_acquire_all(ARRAY['a', 'b'], scope => 'detached');
SELECT redlock_acquire('a', scope => 'detached', hold_at_most => '0');
SELECT redlock_acquire('a', scope => 'detached', hold_at_most => '1 day 1 s');
SELECT redlock_acquire('a', scope => 'detached', hold_at_most => '1 min', hold_at_least => '2 min');
SELECT redlock_acquire('a', scope => 'detached', hold_at_most => '1 min', keep_idle => '1 min');
CALL redlock_lock('a', scope => 'detached', hold_at_most => '1 min');
CALL redlock_lock('a', scope => 'detached');
SELECT redlock_release('a', NULL);
SELECT redlock_release(NULL, 1);
SELECT redlock_check('a', NULL);
SELECT redlock_attach('a', NULL);
SELECT redlock_extend('a', 1, NULL);
SELECT redlock_extend('a', 1, '0');
SELECT redlock_extend('a', 1, '1 day 1 s');
SELECT redlock_extend('a', 1, '1 year');
\set VERBOSITY sqlstate
SELECT redlock_acquire('a', scope => 'detached');
SELECT redlock_acquire('a', scope => 'detached', hold_at_most => '1 day 1 s');
CALL redlock_lock('a', scope => 'detached', hold_at_most => '1 min');
SELECT redlock_release('a', NULL);
SELECT redlock_extend('a', 1, NULL);
\set VERBOSITY default
TABLE detached;

-- redlock.keep_idle does not apply to a detached lock
SET redlock.keep_idle = '1 min';
SET ROLE regress_redlock_app;
SELECT redlock_acquire('a', scope => 'detached', hold_at_most => '10 min') AS token \gset
TABLE detached;
SELECT redlock_token('a') IS NULL AS not_the_sessions;
SELECT redlock_check('a');
SELECT redlock_release('a');
SELECT redlock_release_all();
SELECT redlock_check('a', :token) BETWEEN '1 ms' AND '10 min' AS valid;
RESET redlock.keep_idle;
-- a detached lock belongs to no session: this session can't acquire the lock again, either
SELECT redlock_try('a');
SELECT redlock_try('a', scope => 'detached', hold_at_most => '1 min');
\set VERBOSITY terse
SELECT redlock_acquire('a', wait => '0');
SELECT redlock_acquire('a', wait => '50 ms');
SET lock_timeout = '50 ms';
SELECT redlock_acquire_all(ARRAY['0', 'a'], scope => 'session');
RESET lock_timeout;
\set VERBOSITY default

-- another token, or another name, is refused
SELECT redlock_check('a', :token + 1);
SELECT redlock_release('a', :token + 1);
SELECT redlock_extend('a', :token - 1, '1 hour');
SELECT redlock_attach('a', 0);
SELECT redlock_release('b', :token);
SELECT redlock_check('b', :token);
\set VERBOSITY sqlstate
SELECT redlock_release('a', :token + 1);
SELECT redlock_release('b', :token);
\set VERBOSITY default
TABLE ended;

-- a try that returns the token; null while another session holds the lock
SELECT redlock_try_detached('a', '1 min') IS NULL AS held;
SELECT redlock_try_detached('a', '1 min', wait => '50 ms') IS NULL AS still_held;
SET lock_timeout = '50 ms';
\set VERBOSITY terse
SELECT redlock_try_detached('a', '1 min', wait => NULL);
\set VERBOSITY default
RESET lock_timeout;
SELECT redlock_try_detached(resource => 'tried', hold_at_most => '10 min', wait => '1 s', ttl => '5 s', hold_at_least => '1 ms') AS tried \gset
SELECT state, scope, pid, role, ttl, token = :tried AS token, until > now() AS ends FROM redlock_locks WHERE resource = 'tried';
SELECT redlock_extend('tried', :tried, '1 hour') > now() AS extended, redlock_check('tried', :tried) > '0' AS valid;
BEGIN;
SELECT redlock_attach('tried', :tried);
SELECT redlock_token('tried') = :tried AS attached;
COMMIT;
-- longer than hold_at_least
SELECT pg_sleep(0.01);
SELECT redlock_release('tried', :tried);
-- the errors of redlock_try
SELECT redlock_try_detached(NULL, '1 min');
SELECT redlock_try_detached('tried', NULL);
SELECT redlock_try_detached('tried', '0');
SELECT redlock_try_detached('tried', '1 day 1 s');
SELECT redlock_try_detached('tried', '1 min', hold_at_least => '2 min');
SELECT redlock_try_detached('tried', '1 min', wait => '-1 s');
SELECT redlock_try_detached('tried', '1 min', ttl => '1 hour');
SELECT redlock_try('tried', scope => 'session');
SELECT redlock_try_detached('tried', '1 min');
SELECT redlock_release('tried');
-- the end of hold_at_most frees the lock
SELECT redlock_try_detached('tried', '50 ms') > 0 AS tried;
SELECT redlock_try_detached('tried', '1 min', wait => '10 s') AS tried \gset
SELECT redlock_release('tried', :tried);

-- the role, its members and superusers may use the token; another role may not
SET ROLE regress_redlock_stranger;
SELECT redlock_check('a', :token);
SELECT redlock_release('a', :token);
SELECT redlock_extend('a', :token, '1 hour');
SELECT redlock_attach('a', :token);
-- the error does not tell a stranger whether the token is right
SELECT redlock_release('a', :token + 1);
\set VERBOSITY sqlstate
SELECT redlock_release('a', :token);
\set VERBOSITY default
TABLE ended;
SET ROLE regress_redlock_member;
SELECT redlock_extend('a', :token, '1 hour') > now() + '50 min' AS extended;
TABLE ended;
-- redlock_extend never shortens the time
SELECT redlock_extend('a', :token, '1 min') > now() + '50 min' AS as_before;
TABLE ended;
SELECT redlock_release('a', :token) AS released;
SELECT redlock_release('a', :token);
TABLE detached;
RESET ROLE;
SELECT redlock_acquire('a', scope => 'detached', hold_at_most => '10 min') AS token \gset
SET ROLE regress_redlock_app;
\set VERBOSITY sqlstate
SELECT redlock_release('a', :token);
\set VERBOSITY default
SELECT redlock_acquire('b', scope => 'detached', hold_at_most => '10 min') AS other \gset
RESET ROLE;
SELECT redlock_release('b', :other) AS superuser;
SELECT redlock_release('a', :token) AS own;

-- a SECURITY DEFINER function releases with the rights of its owner
CREATE FUNCTION give_back(text, bigint) RETURNS boolean SECURITY DEFINER SET search_path = public
    BEGIN ATOMIC SELECT redlock_release($1, $2); END;
ALTER FUNCTION give_back OWNER TO regress_redlock_app;
SET ROLE regress_redlock_app;
SELECT redlock_acquire('a', scope => 'detached', hold_at_most => '10 min') AS token \gset
SET ROLE regress_redlock_stranger;
SELECT redlock_release('a', :token);
SELECT give_back('a', :token);
RESET ROLE;
DROP FUNCTION give_back;

-- the lock counts for the role, not for the session, and outlives transactions, savepoints and
-- DISCARD ALL
SET redlock.max_locks_per_session = 3;
SELECT redlock_try('mine', scope => 'session');
BEGIN;
SELECT redlock_acquire('rolled back', scope => 'detached', hold_at_most => '10 min') AS back \gset
SAVEPOINT s;
SELECT redlock_acquire('to savepoint', scope => 'detached', hold_at_most => '10 min') AS save \gset
SELECT redlock_acquire('error', scope => 'detached', hold_at_most => '10 min') / 0;
ROLLBACK TO s;
ROLLBACK;
SELECT redlock_acquire('one too many', scope => 'detached', hold_at_most => '10 min');
SELECT redlock_try_detached('one too many', '10 min');
DISCARD ALL;
SELECT pg_advisory_unlock_all();
SELECT redlock_release_all();
TABLE detached;
SELECT redlock_release('rolled back', :back), redlock_release('to savepoint', :save);
-- the view has the token of a lock whose statement failed
SELECT redlock_release(resource, token) FROM redlock_locks
 WHERE resource = 'error' AND scope = 'detached' AND state = 'held';
TABLE detached;

-- several locks, all or none
SELECT redlock_acquire_all(ARRAY['b', 'a', 'b'], scope => 'detached', hold_at_most => '10 min') AS tokens \gset
SELECT redlock_try_all(ARRAY['c', 'a'], scope => 'detached', hold_at_most => '10 min');
SELECT redlock_try_all(ARRAY['d', 'c'], scope => 'detached', hold_at_most => '10 min');
TABLE detached;
SELECT tokens[1] = tokens[3] AS twice,
       redlock_release('a', tokens[2]), redlock_release('b', tokens[1])
  FROM (SELECT :'tokens'::bigint[] AS tokens) t;
SELECT bool_and(redlock_release(resource, token)) FROM redlock_locks WHERE state = 'held' AND scope = 'detached';
TABLE detached;

-- a lock belongs to a session, or is detached: never both
SELECT redlock_try('a', scope => 'session');
SELECT redlock_acquire('a', scope => 'detached', hold_at_most => '10 min');
SELECT redlock_try_all(ARRAY['a', 'b'], scope => 'detached', hold_at_most => '10 min');
SELECT redlock_extend('a', redlock_token('a'), '10 min');
SELECT redlock_attach('a', redlock_token('a'));
SELECT redlock_release('a', redlock_token('a'));
SELECT redlock_release('a');

-- a transaction attaches to a detached lock
CREATE TABLE work (what text);
SELECT redlock_acquire('a', scope => 'detached', hold_at_most => '10 min') AS token \gset
BEGIN;
SELECT redlock_check('a');
ROLLBACK;
BEGIN;
SELECT redlock_attach('a', :token);
SELECT redlock_attach('a', :token);
SELECT redlock_check('a') > '0' AS valid, redlock_token('a') = :token AS token,
       redlock_fence('a') = :token AS fenced;
SELECT redlock_release('a');
SELECT redlock_release_all();
INSERT INTO work VALUES ('attached');
COMMIT;
SELECT redlock_token('a') IS NULL AS until_the_commit, token = :token AS fenced FROM redlock_fences WHERE resource = 'a';
TABLE work;
TABLE detached;
-- refused in an attached transaction
BEGIN;
SELECT redlock_attach('a', :token);
SAVEPOINT s;
SELECT redlock_release('a', :token);
ROLLBACK TO s;
SELECT redlock_acquire('a');
ROLLBACK TO s;
SELECT redlock_try_all(ARRAY['0', 'a'], scope => 'session');
ROLLBACK TO s;
SELECT redlock_acquire('a', scope => 'detached', hold_at_most => '10 min');
ROLLBACK TO s;
SELECT redlock_attach('a', :token + 1);
ROLLBACK TO s;
PREPARE TRANSACTION 'attached';
TABLE detached;
-- a rollback to a savepoint undoes the attach; RELEASE keeps the attach
BEGIN;
SAVEPOINT s;
SELECT redlock_attach('a', :token);
ROLLBACK TO s;
SELECT redlock_token('a') IS NULL AS gone;
SAVEPOINT s;
SELECT redlock_attach('a', :token);
RELEASE s;
SELECT redlock_token('a') = :token AS there;
COMMIT;
-- an attached lock counts for the session
SET redlock.max_locks_per_session = 1;
BEGIN;
SELECT redlock_try('mine');
SELECT redlock_attach('a', :token);
ROLLBACK;
RESET redlock.max_locks_per_session;
SELECT redlock_release('a', :token);
-- a released lock counts no more, even before the nodes know of the release
SET redlock.max_locks_per_session = 1;
SELECT count(redlock_release('a' || i, redlock_acquire('a' || i, scope => 'detached', hold_at_most => '10 min')))
  FROM generate_series(1, 100) i;
RESET redlock.max_locks_per_session;
SELECT redlock_acquire('a', scope => 'detached', hold_at_most => '10 min') AS token \gset

-- a later lock of the name has a larger token; the former token can't attach
SELECT redlock_release('a', :token);
SELECT redlock_acquire('a', scope => 'detached', hold_at_most => '10 min') > :token AS larger;
BEGIN;
SELECT redlock_attach('a', :token);
ROLLBACK;
SELECT redlock_release(resource, token) FROM redlock_locks
 WHERE resource = 'a' AND scope = 'detached' AND state = 'held';
TABLE detached;

-- warnings: an attach outside of a transaction block, and with a snapshot older than the grant
SELECT redlock_acquire('warned', scope => 'detached', hold_at_most => '1 min') AS token \gset
SELECT redlock_attach('warned', :token);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT redlock_attach('warned', :token);
SELECT redlock_acquire('newer', scope => 'detached', hold_at_most => '1 min') AS newer \gset
SELECT redlock_attach('newer', :newer);
COMMIT;
SELECT redlock_release('warned', :token), redlock_release('newer', :newer);

DROP TABLE work;
DROP VIEW detached, ended;
DELETE FROM redlock_fences WHERE resource = 'a';
DROP ROLE regress_redlock_app, regress_redlock_member, regress_redlock_stranger;
