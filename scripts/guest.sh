# scripts/guest.sh: PostgreSQL's own tests in a server with redlock_pg; sourced by test.sh
#
# Three clusters run the same tests: a bare cluster, a cluster with redlock_pg
# preloaded, and a cluster where each session also holds a lock.  A failure only
# with redlock_pg is ours, and so is a message of ours, or of damage, in the
# server's log.  PostgreSQL's tests may be of another minor version than the
# server, so some may fail in all three.

GUEST_SOURCE=$TMP/postgres-source
GUEST_MODES="bare preloaded held"

# Compiles a file to a loadable module in the same directory.
build_module()
{
    printf 'MODULES = %s\nPGXS := %s\ninclude $(PGXS)\n' \
        "$(basename "$1" .c)" "$("$PG_CONFIG" --pgxs)" |
        make -s -C "$(dirname "$1")" -f - PG_CONFIG="$PG_CONFIG" with_llvm=no \
            >"$TMP/module.log" 2>&1 || {
        cat "$TMP/module.log"
        return 1
    }
}

# The words of variable $2 in Makefile $1.
words_of()
{
    sed -e ':more' -e '/\\$/N; s/\\\n//; t more' "$1" | sed -n "s/^$2 *= *//p"
}

# Unpacks the tests and builds their modules.
prepare_guest()
{
    local library

    GUEST=$TMP/postgres
    mkdir -p "$GUEST"
    tar -C "$GUEST" --strip-components=1 -xf "$GUEST_SOURCE" --wildcards \
        '*/src/test/regress' '*/src/test/isolation' '*/src/pl/plpgsql/src'
    for library in autoinc refint; do
        cp "$("$PG_CONFIG" --pkglibdir)/$library.so" "$GUEST/src/test/regress"
    done
    build_module "$GUEST/src/test/regress/regress.c" &&
        build_module "$PWD/test/guest/hold_lock.c"
}

start_guest_cluster()
{
    local mode=$1

    init_postgres "$mode" < <(
        echo "max_prepared_transactions = 10"
        [ "$mode" = bare ] || cat <<CONF
shared_preload_libraries = 'redlock_pg'
redlock.nodes = '$(redis_urls n1 n2 n3 n4 n5)'
CONF
        [ "$mode" != held ] ||
            echo "session_preload_libraries = '$PWD/test/guest/hold_lock'"
    )
    start_postgres "$mode"
}

# Creates a database as pg_regress does.  For sessions with locks it also has
# redlock_acquire in a schema, and no more of the extension: some tests look at all
# objects.
create_guest_database()
{
    local mode=$1 name=$2 setting

    {
        echo "DROP DATABASE IF EXISTS $name;"
        echo "CREATE DATABASE $name TEMPLATE = template0;"
        for setting in lc_messages=C lc_monetary=C lc_numeric=C lc_time=C \
            bytea_output=hex timezone_abbreviations=Default; do
            echo "ALTER DATABASE $name SET ${setting%=*} TO '${setting#*=}';"
        done
        if [ "$mode" = held ]; then
            echo "\\connect $name"
            echo "CREATE SCHEMA redlock;"
            echo "GRANT USAGE ON SCHEMA redlock TO PUBLIC;"
            echo "SET search_path = redlock;"
            sed -n -e 's/MODULE_PATHNAME/$libdir\/redlock_pg/' -e '/^CREATE TYPE redlock_scope/p' \
                -e '/^CREATE FUNCTION redlock_acquire(/,/;$/p' \
                "redlock_pg--$(sed -n "s/^default_version = '\(.*\)'/\1/p" redlock_pg.control).sql"
        fi
    } | MESSAGES=warning psql_on "$mode" -q -v ON_ERROR_STOP=1
}

# Runs a suite on a cluster; the files are in $TMP/guest/MODE/SUITE.
guest_suite()
{
    local mode=$1 suite=$2 out=$TMP/guest/$1/$2 driver tests=$GUEST/src/test/regress
    local pgxs database=regression schedule options=
    local -a arguments

    pgxs=$(dirname "$("$PG_CONFIG" --pgxs)")/../test
    driver=$pgxs/regress/pg_regress
    arguments=(--max-concurrent-tests=20 --schedule="$tests/parallel_schedule")
    case $suite in
    core) ;;
    parallel)
        # in this order: some tests use the objects of earlier tests
        arguments=(test_setup create_misc create_index create_aggregate sanity_check
            select_parallel plpgsql triggers transactions portals subselect aggregates
            rangefuncs errors prepared_xacts plancache foreign_key)
        options="-c $(value_on "$mode" "SELECT name || '=regress' FROM pg_settings
            WHERE name IN ('force_parallel_mode', 'debug_parallel_query')")"
        ;;
    plpgsql)
        tests=$GUEST/src/pl/plpgsql/src
        database=pl_regression
        arguments=($(words_of "$tests/Makefile" REGRESS))
        ;;
    isolation)
        driver=$pgxs/isolation/pg_isolation_regress
        tests=$GUEST/src/test/isolation
        database=isolation_regression
        arguments=(--schedule="$tests/isolation_schedule")
        for schedule in "$tests"/specs/prepared-transactions*.spec; do
            schedule=$(basename "$schedule" .spec)
            grep -q "^test: $schedule\$" "$tests/isolation_schedule" || arguments+=("$schedule")
        done
        ;;
    esac

    mkdir -p "$out"
    create_guest_database "$mode" $database >"$out/log" 2>&1
    (
        cd "$out"
        PGHOST=$TMP/tmp PGPORT=${PG_PORT[$mode]} PGOPTIONS=$options \
            "$driver" --use-existing --dbname=$database --inputdir="$tests" --outputdir=. \
            --bindir="$("$PG_CONFIG" --bindir)" --dlpath="$GUEST/src/test/regress" \
            "${arguments[@]}" >>log 2>&1
    ) || true
}

# Prints the tests of a suite, one on each line: "ok name" or "failed name".
guest_results()
{
    perl -ne '
        if (/^(not )?ok \d+ +[-+] (\S+)/) { print $1 ? "failed" : "ok", " $2\n" }
        elsif (/^(?:test|    ) *(\S+) +\.\.\. (\S+)/) { print $2 eq "ok" ? "ok" : "failed", " $1\n" }
    ' "$TMP/guest/$1/$2/log" | sort
}

guest_failed() { guest_results "$@" | sed -n 's/^failed //p'; }

# Prints the output of test $3, or "nothing".
guest_output() { cat "$TMP/guest/$1/$2/results/$3.out" 2>/dev/null || echo nothing; }

# Compares a suite with the bare server's; a test that fails in both must fail alike.
compare_guest_suite()
{
    local mode=$1 suite=$2 test ours= bare_failed failed bare_total total

    bare_failed=$(guest_failed bare "$suite")
    failed=$(guest_failed "$mode" "$suite")
    bare_total=$(guest_results bare "$suite" | wc -l)
    total=$(guest_results "$mode" "$suite" | wc -l)
    for test in $failed; do
        if ! grep -qx "$test" <<<"$bare_failed" ||
            [ "$(guest_output bare "$suite" "$test")" != "$(guest_output "$mode" "$suite" "$test")" ]; then
            ours+=" $test"
        fi
    done
    printf '%s: bare %d failed of %d, %s %d failed of %d: ' "$suite" \
        "$(wc -w <<<"$bare_failed")" "$bare_total" "$mode" "$(wc -w <<<"$failed")" "$total"
    if [ "$total" -gt 0 ] && [ "$total" -eq "$bare_total" ] && [ -z "$ours" ]; then
        echo "the same${failed:+ (}$(echo $failed)${failed:+)}"
        count 1 0
    else
        echo "NOT the same:${ours:- others ran}"
        count 0 1
        echo "-- end of what the tests said: bare, then $mode"
        tail -n 15 "$TMP/guest/bare/$suite/log"
        tail -n 15 "$TMP/guest/$mode/$suite/log"
        echo "-- differences from what is expected: $mode"
        head -n 200 "$TMP/guest/$mode/$suite/regression.diffs" 2>/dev/null || true
    fi
}

# Prints messages of damage without their numbers, counted.
guest_damage()
{
    sed -nE -e 's/^[^]]*\] [^:]*(WARNING|LOG|ERROR|FATAL|PANIC|TRAP): +/\1: /' \
        -e "/terminated by signal|^PANIC|TRAP:|don't own a lock|not closed|leak|still referenced|still active|stuck|corrupt|Sanitizer|runtime error/{s/[0-9]+/N/g; p}" \
        "$TMP/pg.$1.log" | sort | uniq -c | sort
}

compare_guest_logs()
{
    local mode=$1 damage ours

    damage=$(comm -13 <(guest_damage bare) <(guest_damage "$mode"))
    ours=$(sed "s|$TMP||g" "$TMP/pg.$mode.log" |
        grep -E '(WARNING|ERROR|FATAL|PANIC): .*redlock' || true)
    if [ -z "$damage$ours" ]; then
        echo "log: nothing in that of $mode that the bare server's lacks"
        count 1 0
    else
        echo "log: that of $mode has what the bare server's lacks:"
        echo "$damage"
        head -n 20 <<<"$ours"
        count 0 1
    fi
}

run_guest()
{
    local name suite mode granted tests

    heading "PostgreSQL's own tests with redlock_pg in the server"
    if [ ! -e "$GUEST_SOURCE" ]; then
        echo "skipped: PostgreSQL's source can't be had here"
        return
    fi
    if ! prepare_guest; then
        count 0 1
        return
    fi
    for name in n1 n2 n3 n4 n5; do
        start_redis $name
    done
    for mode in $GUEST_MODES; do
        start_guest_cluster $mode
    done
    for suite in core plpgsql isolation parallel; do
        for mode in $GUEST_MODES; do
            guest_suite $mode $suite &
        done
        wait
        for mode in ${GUEST_MODES#bare }; do
            compare_guest_suite $mode $suite
        done
    done

    # each test has a session, and isolation tests have more
    tests=$(cat "$TMP"/guest/held/*/log | tally /dev/stdin | tr ' ' +)
    granted=$(value_on held "CREATE EXTENSION redlock_pg; SELECT granted FROM redlock_stats") ||
        granted=0
    echo "held: $granted locks granted"
    if [ "$granted" -ge $((tests)) ]; then
        count 1 0
    else
        echo "FAILED: a lock for each of $((tests)) tests was to be held"
        count 0 1
    fi
    for mode in $GUEST_MODES; do
        stop_postgres $mode
    done
    for mode in ${GUEST_MODES#bare }; do
        compare_guest_logs $mode
    done
    for name in n1 n2 n3 n4 n5; do
        stop_redis $name
    done
}
