-- test/chaos/schema.sql: protected data, in each host's database and in the data server

-- Each write is logged with its new value.  If two writes make the same value, an update is
-- lost, and the primary key refuses the second row.
CREATE TABLE chaos_data (resource text PRIMARY KEY, value int NOT NULL, token bigint NOT NULL,
                         unfenced int NOT NULL DEFAULT 0, unfenced_writes int NOT NULL DEFAULT 0);
-- end of statement
CREATE TABLE chaos_log (resource text, value int, token bigint NOT NULL, PRIMARY KEY (resource, value));
-- end of statement
CREATE PROCEDURE chaos_note(name text) LANGUAGE plpgsql AS $$
DECLARE
    token bigint := redlock_token(name);
    at bigint := chaos_clock();
BEGIN
    RAISE NOTICE 'chaos % % %', token, at, at + (extract(epoch FROM redlock_check(name)) * 1e6)::bigint;
END $$;
-- end of statement
CREATE PROCEDURE chaos_fenced_write(name text) LANGUAGE plpgsql AS $$
DECLARE
    mine bigint := redlock_fence(name);
    now_is int;
BEGIN
    SELECT value INTO now_is FROM chaos_data WHERE resource = name;
    UPDATE chaos_data SET value = now_is + 1, token = mine WHERE resource = name;
    INSERT INTO chaos_log VALUES (name, now_is + 1, mine);
    RAISE NOTICE 'wrote % %', now_is + 1, mine;
END $$;
-- end of statement
-- works in several transactions, under the caller's lock
CREATE PROCEDURE chaos_work(name text, pieces int, fenced boolean) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. pieces LOOP
        CALL chaos_note(name);
        IF fenced THEN
            CALL chaos_fenced_write(name);
        END IF;
        PERFORM pg_sleep(random() * 0.05);
        COMMIT;
        RAISE NOTICE 'committed';
    END LOOP;
    CALL chaos_note(name);
END $$;
-- end of statement
CREATE PROCEDURE chaos_call(name text, waits interval, ttl interval, at_least interval, at_most interval,
                            pieces int, fenced boolean) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM redlock_acquire(name, wait => waits, ttl => ttl, scope => 'call', hold_at_least => at_least,
                            hold_at_most => at_most);
    CALL chaos_work(name, pieces, fenced);
END $$;
