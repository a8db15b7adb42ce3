#!/bin/bash
# bench/list_cost.sh: what a list of all locks costs the other sessions
#
#   bench/list_cost.sh [ROUNDS]     20 by default
#
# Five Redis nodes keep 100,000 locks of another host.  16 sessions acquire and release
# their own keys.  Each round has two parts of 6 seconds: in one of them a further
# session calls redlock_holders again and again.  The parts change their order from
# round to round.  Prints the time of one list on the idle server; each part's pairs per
# second, and p50 and p99 of an acquire; and the medians and quartiles over the rounds,
# of both parts and of their ratio in each round.
set -eu -o pipefail

. "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

[[ $# -le 1 && ${1-20} =~ ^[1-9][0-9]*$ ]] || {
    echo "usage: $0 [ROUNDS]" >&2
    exit 2
}

if [ -z "${REDLOCK_INNER-}" ]; then
    "$ROOT/scripts/deps.sh" --bench
    run_in_private_copy bench/list_cost.sh "$@"
fi

begin_inner
ROUNDS=${1-20}
LOCKS=100000
SESSIONS=16
NODES=(n1 n2 n3 n4 n5)

# Writes locks many:1, many:2, ... as another host would, with their counters.
fill_node()
{
    redis-cli -p "${REDIS_PORT[$1]}" EVAL "
        local rest = ':000000001:00c0ffee00c0ffee host=\"db1.example.org\" cluster=\"alpha\" database=\"app\" role=\"worker\" pid=12345'
        for i = 1, $LOCKS do
            redis.call('SET', 'redlock:many:' .. i, string.format('%032x', i) .. rest, 'PX', 86400000)
            redis.call('SET', 'redlock:many:' .. i .. '\\0token', '1795259654466548', 'PX', 86400000)
        end
        return 'filled'" 0 | grep -x filled >/dev/null || die "node $1 was not filled"
}

# Prints the pairs per second, and p50 and p99 of an acquire in microseconds.
run_sessions()
{
    "$TMP/sql_client" --host "$TMP/tmp" --port "${PG_PORT[host]}" --clients $SESSIONS --keys own --seconds 5 --warmup 1 \
        --acquire "SELECT redlock_acquire(\$1, scope => 'session')" --release "SELECT redlock_release(\$1)" >"$TMP/figures"
    perl -ne '
        /"pairs":(\d+),"errors":0,/ or die "errors: $_";
        my $pairs = $1;
        /"acquire_us":\{"p50":([\d.]+),.*?"p99":([\d.]+)/ or die "no percentiles: $_";
        printf "%d %.0f %.0f\n", $pairs / 5, $1, $2' "$TMP/figures"
}

run_without() { run_sessions; }

run_with()
{
    local lister

    while :; do
        value_on host "SELECT count(*) FROM redlock_holders('many:')" || exit
    done >"$TMP/lists" 2>"$TMP/lists.err" &
    lister=$!
    wait_for_value host "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%redlock_holders%' AND state = 'active' AND pid <> pg_backend_pid()" 1
    run_sessions
    kill $lister || die "a list has failed: $(cat "$TMP/lists.err")"
    wait $lister 2>/dev/null || true
    value_on host "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%redlock_holders%' AND pid <> pg_backend_pid()" >/dev/null
    ! grep -v "$LOCKS" "$TMP/lists" || die "a list is not complete"
}

# Lines "round, without, with: three figures each" on standard input.
sum_up()
{
    perl -ane '
        push @{ $all[$_] }, $F[ $_ + 1 ] foreach 0 .. 5;
        push @{ $all[ $_ + 6 ] }, $F[ $_ + 4 ] / $F[ $_ + 1 ] foreach 0 .. 2;
        sub at { my ($part, @v) = @_; my $i = $part * $#v; return $v[$i] + ($i - int $i) * (($v[ $i + 1 ] // 0) - $v[$i]); }
        END {
            my @names = map { my $part = $_; map { "$part: $_" } "pairs/s", "p50, us", "p99, us" } "without", "with", "with / without";
            printf "%-26s %10s %10s %10s %10s %10s\n", "", "median", "quartile", "quartile", "least", "most";
            foreach my $i (0 .. 8) {
                my @v = sort { $a <=> $b } @{ $all[$i] };
                printf "%-26s" . ($i < 6 ? " %10.0f" x 5 : " %10.3f" x 5) . "\n", $names[$i], map { at($_, @v) } 0.5, 0.25, 0.75, 0, 1;
            }
        }' "$1"
}

build_and_install
gcc -O2 -Wall -I"$("$PG_CONFIG" --includedir)" -DPG_VERSION="\"$("$PG_CONFIG" --version)\"" \
    -o "$TMP/sql_client" bench/sql_client.c -L"$("$PG_CONFIG" --libdir)" -lpq
for name in "${NODES[@]}"; do
    start_redis "$name" --appendonly no
    fill_node "$name"
done
init_postgres host <<CONF
    shared_preload_libraries = 'redlock_pg'
    redlock.nodes = '$(redis_urls "${NODES[@]}")'
    redlock.max_ttl = 10s
    redlock.node_timeout = 5s
CONF
start_postgres host
value_on host "CREATE EXTENSION redlock_pg"
wait_for_value host "SELECT count(*) FROM redlock_nodes WHERE state = 'ready'" ${#NODES[@]}

value_is host "SELECT count(*) FROM redlock_holders('many:')" $LOCKS || die "the list is not complete"
echo "one list of $LOCKS locks, nothing else running: $(psql_on host -AtqX -c '\timing on' \
    -c "SELECT count(*) FROM redlock_holders('many:')" | sed -n 's/Time: *//p')"
run_sessions >/dev/null
printf '%-6s %s\n' round 'pairs/s, p50 and p99 of an acquire in us: without a list, with a list'
for ((round = 1; round <= ROUNDS; round++)); do
    declare -A figures=()
    parts=(without with)
    [ $((round % 2)) = 1 ] || parts=(with without)
    for part in "${parts[@]}"; do
        figures[$part]=$(run_$part)
    done
    echo "$round ${figures[without]} ${figures[with]}"
done | tee "$TMP/rounds"
sum_up "$TMP/rounds"
