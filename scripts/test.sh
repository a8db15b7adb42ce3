#!/bin/bash
# scripts/test.sh: build redlock_pg and run its tests, from nothing
#
#   scripts/test.sh                    the tests for each change, in minutes: unit, a
#                                      short campaign of the simulator, regress, tap
#   scripts/test.sh full               everything, as CI does
#   scripts/test.sh unit               the unit tests, without a server
#   scripts/test.sh sim                the core in the simulator: a short campaign,
#                                      its mutants, its node against a real one,
#                                      and the mutants of the nodes' script
#   scripts/test.sh fuzz               hostile bytes to the readers, for half a minute,
#                                      and the branches that no test takes
#   scripts/test.sh models             the models of the protocol, checked by TLC
#   scripts/test.sh regress            pg_regress and the isolation tester, with five
#                                      nodes and with redlock.nodes = 'local'
#   scripts/test.sh tap [t/FILE.t ...] the TAP tests, or some of them
#   scripts/test.sh guest              PostgreSQL's own tests, bare and with us
#   scripts/test.sh chaos              two minutes of real faults on real servers
#   scripts/test.sh bench              whether bench/run still has all its figures
#   scripts/test.sh soak               whether memory grows in a minute of all kinds of calls
#
# Installs missing packages (scripts/deps.sh), then works in a temporary directory
# with a copy of PostgreSQL, servers on the loopback interface and Redis nodes; all
# are removed at the end.  KEEP=1 in the environment keeps the directory.  TAP_JOBS
# is the number of TAP files at a time; by default three times the number of processors.
# Ends with the line "N passed, N failed", and with an error if a test failed.
set -eu

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

part=short
case "${1-}" in
'') ;;
full | unit | sim | fuzz | models | regress | tap | guest | chaos | bench | soak)
    part=$1
    shift
    ;;
*)
    echo "usage: $0 [full | unit | sim | fuzz | models | regress | tap [t/FILE.t ...] | guest | chaos | bench | soak]" >&2
    exit 2
    ;;
esac

if [ -z "${REDLOCK_INNER-}" ]; then
    case $part in
    full) "$ROOT/scripts/deps.sh" --bench --chaos --fuzz --models ;;
    fuzz) "$ROOT/scripts/deps.sh" --fuzz ;;
    models) "$ROOT/scripts/deps.sh" --models ;;
    bench) "$ROOT/scripts/deps.sh" --bench ;;
    chaos) "$ROOT/scripts/deps.sh" --chaos ;;
    soak) "$ROOT/scripts/deps.sh" --bench --chaos ;;
    *) "$ROOT/scripts/deps.sh" ;;
    esac
    case $part in
    full | guest)
        source=$("$ROOT/scripts/postgres_source.sh") || source=
        [ -n "$source" ] || [ "${CI-}" != true ] ||
            die "PostgreSQL's own tests must not be left out here"
        ;;
    esac
    case "$part $*" in
    full* | short* | 'tap ' | *session_drivers*) drivers=$("$ROOT/scripts/drivers.sh") ;;
    esac
    case $part in
    full | chaos) porcupine=$("$ROOT/scripts/porcupine.sh") ;;
    esac
    case $part in
    full | models)
        tlc=$("$ROOT/model/run" --fetch) || tlc=
        [ -n "$tlc" ] || [ "${CI-}" != true ] || die "the models must not be left out here"
        ;;
    esac
    # downloads that must come before root's rights are dropped
    after_copy()
    {
        [ -z "${source-}" ] || cp "$source" "$TMP/postgres-source"
        [ -z "${drivers-}" ] || cp -R "$drivers" "$TMP/drivers"
        [ -z "${porcupine-}" ] || cp "$porcupine" "$TMP/porcupine"
        [ -z "${tlc-}" ] || cp "$tlc" "$TMP/tla2tools.jar"
    }
    if [ "$part" = short ]; then
        run_in_private_copy scripts/test.sh
    else
        run_in_private_copy scripts/test.sh "$part" "$@"
    fi
fi

begin_inner

PASSED=0
FAILED=0
TAP_JOBS=${TAP_JOBS:-$((3 * $(nproc)))}

# with the minutes since the start
heading() { printf '\n== %s (%d min)\n' "$*" $((SECONDS / 60)); }

count()
{
    PASSED=$((PASSED + $1))
    FAILED=$((FAILED + $2))
}

# Counts the results of test programs in file $1, and prints "passed failed".
# Indented subtests count as one test; skipped tests and known shortcomings do not
# count.  Also reads the lines of pg_regress before 16.
tally()
{
    perl -ne '
        next if /^(not )?ok\b.*# *(skip|todo)/i;
        if (/^ok \d/ || /^(test|    ) .*\.\.\. ok\b/) { $passed++ }
        elsif (/^not ok \d/ || /^(test|    ) .*\.\.\. FAILED/) { $failed++ }
        END { print $passed + 0, " ", $failed + 0, "\n" }' "$1"
}

# Counts the results in log $1 of a command that ended with status $2.  A command
# that failed without a failed test, or ran no test, counts as a failure.
count_log()
{
    local passed failed

    read -r passed failed < <(tally "$1")
    if [ "$2" -ne 0 ] && [ "$failed" -eq 0 ]; then
        failed=1
    fi
    count "$passed" "$failed"
    [ "$failed" -eq 0 ]
}

# Prints the first lines of sanitizers' reports in these logs of servers.
show_findings()
{
    grep -h -A 12 -E 'ERROR: AddressSanitizer|: runtime error: ' "$@" | head -n 40 || true
}

# Runs the test programs of a target of the Makefile.
run_target()
{
    local target=$1 what=$2 log=$TMP/$1.log status=0

    heading "$what"
    HARNESS_VERBOSE=1 make -j "$(nproc)" PG_CONFIG="$PG_CONFIG" "$target" >"$log" 2>&1 || status=$?
    if count_log "$log" $status; then
        sed -n '/^Files=/p' "$log"
        grep -a -E '^ok .*# *skip|^# .* executions$' "$log" || true
    else
        cat "$log"
    fi
}

run_unit() { run_target unit "unit tests"; }

run_campaign() { run_target sim "simulator: a campaign of random faults"; }

run_sim()
{
    run_campaign
    run_target worlds "simulators of crowds, deadlocks, several locks, permits, and changes of settings"
    run_target sanitized "simulators with sanitizers"
    run_target mutants "simulator: broken cores that it must find"
    run_target conformance "simulator: its node does what a real one does"
    run_target script_mutants "simulator: broken scripts that conformance must find"
}

run_models()
{
    if [ ! -e "$TMP/tla2tools.jar" ]; then
        heading "the models are left out: TLC can't be fetched"
        [ "$part" = full ] || count 0 1
        return
    fi
    TLA2TOOLS=$TMP/tla2tools.jar run_target model "models: assumptions, and what fails without each"
}

run_fuzz()
{
    run_target fuzz "fuzzing: hostile bytes to the readers"
    run_target fuzz_mutants "fuzzing: broken readers that it must find"
    run_target branches "branches of the pure code that no test takes"
}

# Prints heading $1, runs the command after $2, and shows the last $2 lines of output; after a
# failure, the last 40.
run_script()
{
    local lines=$2

    heading "$1"
    shift 2
    if env -u REDLOCK_INNER "$@" >"$TMP/script.log" 2>&1; then
        tail -n "$lines" "$TMP/script.log"
        count 1 0
    else
        tail -n 40 "$TMP/script.log"
        count 0 1
    fi
}

# The demonstration fails unless each step shows what it says.
run_demo()
{
    run_script "scripts/demo.sh" 1 scripts/demo.sh
}

# The quick benchmark fails if a figure is missing.  The figures mean nothing on a machine that
# has just run the tests.
run_bench()
{
    run_script "benchmark: do all figures come out" 3 bench/run --quick --no-peers
}

run_soak()
{
    run_script "soak: does memory grow" 1 bench/soak/run --minutes 1
}

# Runs the short form, with a new seed each time, which the output shows.  After a
# failure its files stay in a directory of their own.
run_chaos()
{
    local porcupine=

    heading "chaos: real faults on real servers"
    [ ! -e "$TMP/porcupine" ] || porcupine=$TMP/porcupine
    if env -u REDLOCK_INNER PORCUPINE="$porcupine" CHAOS_KEEP="$(dirname "$TMP")/redlock_pg-chaos.$$" \
        test/chaos/run >"$TMP/chaos.log" 2>&1; then
        count 1 0
    else
        count 0 1
    fi
    cat "$TMP/chaos.log"
}

# Runs pg_regress and the isolation tester on a server with five nodes, and on a server
# with the node inside it.
run_regress()
{
    local name

    for name in 1 2 3 4 5; do
        start_redis "n$name"
    done
    # a long redlock.node_timeout keeps a busy machine from failing the tests
    run_regress_on main 5 "regression and isolation tests" <<CONF
        redlock.nodes = '$(redis_urls n1 n2 n3 n4 n5)'
        redlock.node_timeout = '10s'
CONF
    for name in 1 2 3 4 5; do
        stop_redis "n$name"
    done
    run_regress_on local 1 "regression and isolation tests with redlock.nodes = 'local'" <<CONF
        redlock.nodes = 'local'
CONF
}

# Runs both on server $1 with $2 nodes and the settings of stdin, the second also if the
# first fails.
run_regress_on()
{
    local server=$1 nodes=$2 status suite skip out

    heading "$3"
    init_postgres "$server" < <(
        cat
        echo "shared_preload_libraries = 'redlock_pg'"
        echo "max_prepared_transactions = 5"
    )
    start_postgres "$server"
    if ! value_on "$server" "CREATE EXTENSION redlock_pg" ||
        ! wait_for_value "$server" "SELECT count(*) FROM redlock_nodes WHERE state = 'ready'" "$nodes"; then
        psql_on "$server" -c "SELECT * FROM redlock_nodes" || true
        show_findings "$TMP/pg.$server.log"
        tail -n 30 "$TMP/pg.$server.log"
        count 0 1
        return
    fi

    for suite in regress isolation; do
        case $suite in
        regress)
            skip=ISOLATION
            out=.
            ;;
        isolation)
            skip=REGRESS
            out=output_iso
            ;;
        esac
        rm -f $out/regression.diffs
        status=0
        PGHOST=$TMP/tmp PGPORT=${PG_PORT[$server]} \
            make PG_CONFIG="$PG_CONFIG" installcheck TAP_TESTS= $skip= \
            >"$TMP/$suite.log" 2>&1 || status=$?
        grep -E '^(test|    ) .*\.\.\.|^(not )?ok\>|^# ' "$TMP/$suite.log" || true
        if ! count_log "$TMP/$suite.log" $status; then
            if [ -s $out/regression.diffs ]; then
                cat $out/regression.diffs
            else
                tail -n 40 "$TMP/$suite.log"
            fi
            show_findings "$TMP/pg.$server.log"
            echo "-- end of the server's log"
            tail -n 60 "$TMP/pg.$server.log"
        fi
    done

    stop_postgres "$server"
}

# Runs a TAP file; writes the report into NAME.out, and the counts into NAME.count.
run_tap_file()
{
    local file=$1 perllib=$2 pg_regress=$3 name dir log status=0 seconds=$SECONDS file_log

    name=$(basename "$file" .t)
    # a directory for the file alone: a name may begin like another file's name
    dir=$PWD/tap/$name
    log=$TMP/tap.$name.log
    mkdir -p "$dir/tmp_check/log"
    # PG 15 wants TESTDIR, 16 and later the other two
    TESTDIR=$dir TESTDATADIR=$dir/tmp_check TESTLOGDIR=$dir/tmp_check/log \
        PG_TEST_PORT_DIR=$TMP/ports PG_REGRESS=$pg_regress \
        prove --verbose -I t -I "$perllib" "$file" >"$log" 2>&1 || status=$?
    PASSED=0
    FAILED=0
    {
        if count_log "$log" $status; then
            printf '%-28s %s ok, %s s\n' "$file" "$PASSED" $((SECONDS - seconds))
            grep -a -E '^ok .*# *skip' "$log" || true
        else
            printf '%-28s FAILED, %s s\n' "$file" $((SECONDS - seconds))
            grep -a -E -B 8 -A 12 '^ *not ok' "$log" || true
            echo "-- end of its output"
            tail -n 30 "$log"
            # PostgreSQL's modules write the cause of a failure there
            if [ -e "$dir/tmp_check/log/regress_log_$name" ]; then
                echo "-- end of its own log"
                tail -n 30 "$dir/tmp_check/log/regress_log_$name"
            fi
            show_findings "$dir"/tmp_check/log/*.log
            for file_log in "$dir/tmp_check/log/$name"_*.log; do
                [ -e "$file_log" ] || continue
                echo "-- end of $(basename "$file_log"), without statements"
                grep -vE 'LOG:  statement:|^\s' "$file_log" | tail -n 40
            done
        fi
    } >"$TMP/tap.$name.out"
    echo "$PASSED $FAILED" >"$TMP/tap.$name.count"
    rm -rf "$dir"/tmp_check/t_*
    cat "$TMP/tap.$name.out"
}

# Makes an initdb for the TAP tests, which copies a cluster made once instead of
# creating one: this takes a tenth of the time.
copying_initdb()
{
    local dir=$TMP/initdb initdb
    initdb=$("$PG_CONFIG" --bindir)/initdb

    mkdir "$dir"
    "$initdb" -D "$dir/data" -A trust -N >"$dir/log" 2>&1 || {
        cat "$dir/log" >&2
        die "initdb failed"
    }
    cat >"$dir/initdb" <<END
#!/bin/sh
[ "\$*" = "-D \$2 -A trust -N" ] || exec "$initdb" "\$@"
exec cp -Rp "$dir/data" "\$2"
END
    chmod +x "$dir/initdb"
    PATH=$dir:$PATH
}

# Runs several TAP files at a time, because they mostly wait.  Long files come first.
run_tap()
{
    local perllib pg_regress file passed failed running=0

    heading "TAP tests, $TAP_JOBS at a time"
    perllib=$(dirname "$("$PG_CONFIG" --pgxs)")/../../src/test/perl
    pg_regress=$(dirname "$("$PG_CONFIG" --pgxs)")/../../src/test/regress/pg_regress
    mkdir -p "$TMP/ports"
    copying_initdb
    # shellcheck disable=SC2046
    [ $# -gt 0 ] || set -- $(long_first t/*.t)
    for file in "$@"; do
        if [ $running -ge "$TAP_JOBS" ]; then
            wait -n || true
            running=$((running - 1))
        fi
        run_tap_file "$file" "$perllib" "$pg_regress" &
        running=$((running + 1))
    done
    wait
    for file in "$@"; do
        read -r passed failed <"$TMP/tap.$(basename "$file" .t).count" || { passed=0; failed=1; }
        count "$passed" "$failed"
    done
}

# Prints the files whose header says that they take long, then all other files.
long_first()
{
    grep -l '^# Takes over a minute' "$@" || true
    grep -L '^# Takes over a minute' "$@" || true
}

. scripts/guest.sh

heading "build with $("$PG_CONFIG" --version)"
# As users build it, for its warnings; then with assertions, for the tests.
if ! build_and_install COPT=-Werror ||
    ! make PG_CONFIG="$PG_CONFIG" clean >>"$TMP/build.log" 2>&1 ||
    ! build_and_install COPT="-Werror -DUSE_ASSERT_CHECKING"; then
    count 0 1
else
    echo "built without a warning; installed with assertions"
    case $part in
    short)
        run_unit
        run_campaign
        run_regress
        run_tap
        ;;
    full)
        run_unit
        run_sim
        run_fuzz
        run_models
        run_regress
        run_tap
        run_guest
        run_chaos
        run_bench
        run_soak
        run_demo
        ;;
    unit) run_unit ;;
    sim) run_sim ;;
    fuzz) run_fuzz ;;
    models) run_models ;;
    regress) run_regress ;;
    tap) run_tap "$@" ;;
    guest) run_guest ;;
    chaos) run_chaos ;;
    bench) run_bench ;;
    soak) run_soak ;;
    esac
fi

echo
echo "$PASSED passed, $FAILED failed"
[ $FAILED -eq 0 ]
