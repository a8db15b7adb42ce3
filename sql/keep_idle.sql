-- keep_idle: the arguments, and the view.
--
-- Protects from: a keep_idle that is cut silently, or longer than an administrator allows; a
-- keep_idle together with limits that count from a grant; a lock kept idle without a request.

-- the setting: off, and free for each user
SHOW redlock.keep_idle;
CREATE ROLE keeper;
SET ROLE keeper;
SET redlock.keep_idle = '-1';
SET redlock.keep_idle = '25d';
SET redlock.keep_idle = 'soon';
SET redlock.keep_idle = '24d';
SHOW redlock.keep_idle;
RESET ROLE;

-- over the limit of an administrator: an error, as for the ttl
SELECT redlock_acquire('a', scope => 'session');
SELECT redlock_try('a');
CALL redlock_run('a', 'SELECT 1');
SET redlock.max_hold = '1min';
SET redlock.keep_idle = '61s';
SELECT redlock_try('a');
-- the setting does not apply to a call with its own keep_idle, or with hold limits
SELECT redlock_try('own', keep_idle => '1 min', scope => 'session');
SELECT redlock_try('limited', hold_at_least => '1 ms', hold_at_most => '1 min', scope => 'session');
RESET redlock.keep_idle;
SELECT redlock_acquire('a', keep_idle => '1 min 1 us');
SELECT redlock_try('a', keep_idle => '1 month');
CALL redlock_run('a', 'SELECT 1', keep_idle => '178000000 years');
SET redlock.max_hold = 0;
SELECT redlock_try('a', keep_idle => '1 ms');
SELECT redlock_try('none', keep_idle => '0', scope => 'session');
RESET redlock.max_hold;

-- other arguments
SELECT redlock_acquire('a', keep_idle => '-1 us');
SELECT redlock_try('a', keep_idle => '-10 years');
CALL redlock_run('a', 'SELECT 1', keep_idle => '-1 s');
SELECT redlock_acquire('a', keep_idle => 'soon');
SELECT redlock_acquire('a', keep_idle => '1 s', hold_at_least => '1 s');
SELECT redlock_try('a', keep_idle => '1 s', hold_at_most => '1 s');
CALL redlock_run('a', 'SELECT 1', keep_idle => '1 us', hold_at_most => '1 s');
SELECT redlock_try('zero', keep_idle => '0', hold_at_most => '1 min', scope => 'session');
SELECT redlock_try('null', keep_idle => NULL, scope => 'session');

-- held like other locks, and after the release idle, if requested
SELECT resource, state, scope, pid = pg_backend_pid() AS mine, database = current_database() AS here
  FROM redlock_locks ORDER BY resource;
SELECT redlock_release_all();
SELECT resource, state, scope, pid, database, token, valid_for > '0' AS valid, ttl, since <= now() AS since, held_by
  FROM redlock_locks WHERE state <> 'releasing';
-- the next holder takes the idle lock
BEGIN;
SELECT redlock_try('own');
SELECT resource, state, scope, pid = pg_backend_pid() AS mine, token = redlock_token('own') AS told, valid_for > '0' AS valid
  FROM redlock_locks WHERE state <> 'releasing';
COMMIT;
SELECT resource FROM redlock_locks WHERE state <> 'releasing';

-- by position
SELECT redlock_acquire('last', '1 s', '10 s', 'session', NULL, NULL, '10 min') > 0 AS acquired;
SELECT redlock_try('last', NULL, 'session', NULL, NULL, NULL);
CALL redlock_run('last by run', 'SELECT 1', '1 s', NULL, NULL, NULL, '10 min');
SELECT resource, state FROM redlock_locks WHERE state <> 'releasing' ORDER BY resource;
SELECT redlock_release_all();

-- redlock_release_idle is for operators
SET ROLE keeper;
SELECT redlock_release_idle();
RESET ROLE;
SELECT redlock_release_idle();
SELECT redlock_release_idle();

DROP ROLE keeper;
