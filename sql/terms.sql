-- All pairs of terms, and each term alone, for each function that acquires.  Each call uses another
-- name.
--
-- Protects from: functions with different refusals; a wrong row in the table of terms
-- (src/sql/terms.c).
\set VERBOSITY terse
CREATE TEMP TABLE terms (position int, term text, argument text, kind text);
INSERT INTO terms VALUES
    (1, 'transaction', $$scope => 'transaction'$$, 'scope'),
    (2, 'call', $$scope => 'call'$$, 'scope'),
    (3, 'session', $$scope => 'session'$$, 'scope'),
    (4, 'detached', $$scope => 'detached'$$, 'scope'),
    (5, 'shared', $$mode => 'shared'$$, 'mode'),
    (6, 'permits', 'permits => 2', 'permits'),
    (7, 'hold_at_least', $$hold_at_least => '1 ms'$$, 'hold_at_least'),
    (8, 'hold_at_most', $$hold_at_most => '1 min'$$, 'hold_at_most'),
    (9, 'keep_idle', $$keep_idle => '1 s'$$, 'keep_idle');
CREATE TEMP TABLE functions (function text, call text);
INSERT INTO functions VALUES
    ('acquire', 'SELECT redlock_acquire(%1$L%2$s)'),
    ('acquire_all', 'SELECT redlock_acquire_all(ARRAY[%1$L, %1$L || 2]%2$s)'),
    ('lock', 'CALL redlock_lock(%1$L%2$s)'),
    ('lock_all', 'CALL redlock_lock_all(ARRAY[%1$L, %1$L || 2]%2$s)'),
    ('run', 'CALL redlock_run(%1$L, ''SELECT 1''%2$s)'),
    ('run_all', 'CALL redlock_run_all(ARRAY[%1$L, %1$L || 2], ''SELECT 1''%2$s)'),
    ('try', 'SELECT redlock_try(%1$L%2$s)'),
    ('try_all', 'SELECT redlock_try_all(ARRAY[%1$L, %1$L || 2]%2$s)');
CREATE TEMP TABLE tried (function text, first int, second int, accepted boolean, code text, message text, detail text, hint text);

DO $$
DECLARE
    tried record;
    code text;
    message text;
    detail text;
    hint text;
BEGIN
    FOR tried IN
        SELECT f.function, format(f.call, format('%s/%s/%s', f.function, a.position, b.position),
                                  ', ' || a.argument || CASE WHEN a.position < b.position THEN ', ' || b.argument ELSE '' END) AS call,
               a.position AS first, b.position AS second
          FROM functions f, terms a, terms b
         WHERE a.position = b.position OR (a.position < b.position AND a.kind <> b.kind)
         ORDER BY 1, 3, 4
    LOOP
        BEGIN
            EXECUTE tried.call;
            INSERT INTO tried VALUES (tried.function, tried.first, tried.second, true);
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
                                    detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
            INSERT INTO tried VALUES (tried.function, tried.first, tried.second, false, code,
                                      regexp_replace(message, '\(unknown.*', '(...)'), detail, hint);
        END;
    END LOOP;
END $$;
SELECT count(*), count(DISTINCT function) AS functions FROM tried;

-- refused
SELECT a.term, nullif(b.term, a.term) AS and_term, code, string_agg(function, ' ' ORDER BY function) AS functions, message, detail, hint
  FROM tried JOIN terms a ON a.position = first JOIN terms b ON b.position = second
 WHERE NOT accepted AND code <> '42883' GROUP BY first, second, a.term, b.term, code, message, detail, hint ORDER BY first, second, code, message;

-- accepted
SELECT a.term, nullif(b.term, a.term) AS and_term, string_agg(function, ' ' ORDER BY function) AS functions
  FROM tried JOIN terms a ON a.position = first JOIN terms b ON b.position = second
 WHERE accepted GROUP BY first, second, a.term, b.term ORDER BY first, second;

-- the functions that lack an argument
SELECT a.kind AS lacks, function FROM tried JOIN terms a ON a.position = first
 WHERE first = second AND code = '42883' GROUP BY 1, 2 ORDER BY 1, 2;
SELECT count(*) AS said_so FROM tried JOIN terms a ON a.position = first JOIN terms b ON b.position = second
 WHERE code = '42883' AND NOT (function LIKE 'run%' AND 'scope' IN (a.kind, b.kind)) AND NOT (function LIKE '%_all' AND 'permits' IN (a.kind, b.kind));

-- a detached lock with hold_at_most, and each other term
SELECT redlock_acquire('least', scope => 'detached', hold_at_most => '1 min', hold_at_least => '1 ms') > 0 AS acquired;
\set VERBOSITY default
SELECT redlock_acquire('idle', scope => 'detached', hold_at_most => '1 min', keep_idle => '1 s');
-- the defaults are no terms
SELECT redlock_acquire('none', scope => 'detached', hold_at_most => '1 min', keep_idle => '0', mode => 'exclusive', permits => 1) > 0 AS acquired;
-- the setting applies only where keep_idle can be given, and redlock.max_hold bounds it only there
SET redlock.keep_idle = '2 d';
SELECT redlock_try('setting', permits => 2), redlock_try('setting 2', hold_at_most => '1 min'), redlock_try('setting 3', scope => 'detached', hold_at_most => '1 min');
SELECT redlock_try('setting 4');
RESET redlock.keep_idle;

-- Acquiring again: each way to hold a lock, with each way to ask for the lock again.  `same` means
-- the same token: the session keeps its lease.
CREATE TEMP TABLE ways (position int, way text, argument text);
INSERT INTO ways VALUES
    (1, 'exclusive', ''),
    (2, 'shared', $$, mode => 'shared'$$),
    (3, 'permits => 2', ', permits => 2'),
    (4, 'permits => 3', ', permits => 3'),
    (5, 'hold limits', $$, hold_at_least => '1 ms', hold_at_most => '1 min'$$),
    (6, 'keep_idle', $$, keep_idle => '1 s'$$),
    (7, 'detached', $$, scope => 'detached', hold_at_most => '1 min'$$),
    (8, 'attached', NULL);
CREATE TEMP TABLE again (held int, asked int, outcome text);

DO $$
DECLARE
    tried record;
    name text;
    token bigint;
    other bigint;
BEGIN
    FOR tried IN
        SELECT h.position AS held, h.way, h.argument AS holds, a.position AS asked, a.argument AS asks
          FROM ways h, ways a WHERE h.way <> 'detached' AND a.way <> 'attached' ORDER BY 1, 4
    LOOP
        name := format('again/%s/%s', tried.held, tried.asked);
        BEGIN
            IF tried.way = 'attached' THEN
                token := redlock_acquire(name, scope => 'detached', hold_at_most => '1 min');
                PERFORM redlock_attach(name, token);
            ELSE
                EXECUTE format('SELECT redlock_acquire(%L%s)', name, tried.holds) INTO token;
            END IF;
            EXECUTE format('SELECT redlock_acquire(%L%s)', name, tried.asks) INTO other;
            INSERT INTO again VALUES (tried.held, tried.asked, CASE WHEN token = other THEN 'same' ELSE 'another token' END);
        EXCEPTION WHEN OTHERS THEN
            INSERT INTO again VALUES (tried.held, tried.asked, SQLSTATE || ': ' || replace(SQLERRM, name, 'again'));
        END;
    END LOOP;
END $$;
SELECT outcome, h.way AS held, string_agg(a.way, ', ' ORDER BY asked) AS asked
  FROM again JOIN ways h ON h.position = held JOIN ways a ON a.position = asked
 GROUP BY outcome, held, h.way ORDER BY outcome = 'same' DESC, outcome, held;

SELECT redlock_release_all() > 0 AS released;
SELECT count(*) > 0 AS released FROM (SELECT redlock_release(resource, token) FROM redlock_locks WHERE scope = 'detached' AND state = 'held' AND token IS NOT NULL) r;
SELECT redlock_release_idle() >= 0 AS given_up;
