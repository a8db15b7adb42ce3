#!/bin/bash
# bench/unused_cost.sh: the cost of preloading for statements without a lock
#
#   bench/unused_cost.sh
#
# The workload "unused" of bench/run measures time, which scatters by more than the
# difference.  This program counts instructions: pgbench's select-only and
# simple-update run on a bare server and on a server with redlock_pg preloaded, both
# under valgrind.  One client is enough, because all backends execute the same code.
# The difference between sessions of 4,000 and of 1,000 transactions leaves out the
# cost of a session.
set -eu

. "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

if [ -z "${REDLOCK_INNER-}" ]; then
    "$ROOT/scripts/deps.sh" --bench
    run_in_private_copy bench/unused_cost.sh
fi

begin_inner

# Prints the instructions of all sessions of pgbench with these options: pgbench first opens a
# session that reads the size of the tables.  The server's log names their processes, and
# valgrind counts when a process ends.
session_instructions()
{
    local name=$1 lines pids pid

    shift
    lines=$(wc -l <"$TMP/pg.$name.log")
    pgbench -n -M prepared --random-seed=1 -h "$TMP/tmp" -p "${PG_PORT[$name]}" "$@" postgres >"$TMP/pgbench.log" 2>&1 ||
        { cat "$TMP/pgbench.log" >&2 && return 1; }
    pids=$(tail -n "+$((lines + 1))" "$TMP/pg.$name.log" |
        sed -n 's/^[^[]*\[\([0-9]*\)\] .*connection authorized: .*application_name=pgbench.*/\1/p')
    [ -n "$pids" ] || die "the log names no session of pgbench"
    for pid in $pids; do
        wait_until is_counted "$name" "$pid" || die "valgrind has written no counts"
        awk '/^totals:/ { print $2 }' "$TMP/count.$name.$pid"
    done | awk '{ sum += $1 } END { print sum }'
}

is_counted() { grep -qs '^totals:' "$TMP/count.$1.$2"; }

build_and_install
for name in 1 2 3; do
    start_redis "n$name" --appendonly no
done
for name in bare preloaded; do
    init_postgres $name <<CONF
        autovacuum = off
        log_connections = on
        checkpoint_timeout = 1h
        bgwriter_lru_maxpages = 0
CONF
    if [ $name = preloaded ]; then
        {
            echo "shared_preload_libraries = 'redlock_pg'"
            echo "redlock.nodes = '$(redis_urls n1 n2 n3)'"
        } >>"$TMP/pg.$name/postgresql.conf"
    fi
    start_postgres $name
    pgbench -i -q -h "$TMP/tmp" -p "${PG_PORT[$name]}" postgres >"$TMP/init.log" 2>&1
    stop_postgres $name
    valgrind --quiet --tool=callgrind --callgrind-out-file="$TMP/count.$name.%p" --trace-children=yes \
        "$(dirname "$PG_CONFIG")/postgres" -D "$TMP/pg.$name" --cluster-name=$name >"$TMP/pg.$name.log" 2>&1 &
    PG_PID[$name]=$!
done
for name in bare preloaded; do
    wait_for_value $name "SELECT 1" 1
done

echo "instructions (valgrind), one session"
printf '%-30s %12s %12s %9s\n' '' bare preloaded 'more by %'
declare -A few many
for script in select-only simple-update; do
    for name in bare preloaded; do
        few[$name]=$(session_instructions $name -b $script -t 1000)
        many[$name]=$(session_instructions $name -b $script -t 4000)
    done
    awk -v what="$script, a transaction" -v b="${few[bare]}" -v B="${many[bare]}" \
        -v p="${few[preloaded]}" -v P="${many[preloaded]}" 'BEGIN {
        b = (B - b) / 3000; p = (P - p) / 3000
        printf "%-30s %12.0f %12.0f %9.3f\n", what, b, p, 100 * (p / b - 1) }'
done
