-- Functions that are wrongly marked PARALLEL SAFE, in a parallel worker.
--
-- Protects from: a lock that a worker takes, and frees at the worker's end; a worker that denies a
-- lock of the session; a wrong error, for example about unset nodes.

CREATE FUNCTION in_worker(command text) RETURNS text
LANGUAGE plpgsql PARALLEL SAFE AS $$
DECLARE
	result text;
BEGIN
	EXECUTE command INTO result;
	RETURN result;
END $$;
SELECT redlock_acquire('a', scope => 'session') > 0;

-- the setting has another name since 16
SELECT name AS parallel_mode FROM pg_settings
WHERE name IN ('force_parallel_mode', 'debug_parallel_query') \gset
SET :"parallel_mode" = on;
SELECT in_worker('SELECT redlock_acquire(''a'')');
\echo :SQLSTATE
SELECT in_worker('SELECT redlock_try(''a'')');
SELECT in_worker('SELECT redlock_release(''a'')');
SELECT in_worker('SELECT redlock_release_all()');
SELECT in_worker('SELECT redlock_check(''a'')');
SELECT in_worker('SELECT redlock_token(''a'')');
SELECT in_worker('SELECT redlock_fence(''a'')');
SELECT in_worker('CALL redlock_run(''a'', ''SELECT 1'')');
-- marked PARALLEL UNSAFE, redlock_check runs in the leader
SELECT redlock_check('a') > '0';
-- a worker has the nodes of its server
SELECT current_setting('redlock.nodes') <> '' AS nodes;
SELECT in_worker('SELECT count(*) > 0 FROM redlock_hosts') AS hosts;
SELECT in_worker('SELECT count(*) FROM redlock_diagnose() WHERE finding LIKE ''redlock.nodes is not set%''') AS wrong;
-- the views run in the leader, whatever the plan
SELECT resource, state FROM redlock_locks WHERE state = 'held';
RESET :"parallel_mode";

SELECT redlock_release('a');
DROP FUNCTION in_worker;
