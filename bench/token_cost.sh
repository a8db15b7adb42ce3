#!/bin/bash
# bench/token_cost.sh: the cost of fencing tokens and of the restart guard in an acquire
#
#   bench/token_cost.sh [ROUNDS]     15 by default
#
# Builds the extension three times: unchanged; with an acquire without a token but with
# the guard; and with the acquire of the published algorithm (SET NX PX, no counter, no
# marker).  All run at the same time against the same five Redis nodes, and take turns;
# a session acquires and releases its own lock in a loop.  Prints the medians over the
# rounds of the median time of an acquire, and of a pair, and their ratios to the first
# build: with the nodes on this machine, where all share its cores, and behind a proxy
# with 0.5 ms of delay.
set -eu

. "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

[[ $# -le 1 && ${1-15} =~ ^[1-9][0-9]*$ ]] || {
    echo "usage: $0 [ROUNDS]" >&2
    exit 2
}

if [ -z "${REDLOCK_INNER-}" ]; then
    "$ROOT/scripts/deps.sh"
    run_in_private_copy bench/token_cost.sh "$@"
fi

begin_inner
ROUNDS=${1-15}

VARIANTS=(all guard plain)

# Ends the acquire early in a copy of the sources, and fails if there is no acquire.
make_variant()
{
    GUARD=
    if [ "$2" = guard ]; then
        GUARD="
            if call('GET', LUA_MARKER) ~= known_marker then
                reply = redis.error_reply(LUA_FORGOT)
                break
            end"
    fi
    export GUARD
    export PLAIN="
            if call('SET', key, value, 'NX', 'PX', word4) then
                reply = word5
                break
            end
            reply = {call('PTTL', key), call('GET', key) or ''}
            do break end
"
    perl -0pi -e '
        s{^function ACQUIRE\(\)\n\K}{$ENV{GUARD}$ENV{PLAIN}}m
            or die "no acquire in redlock.lua\n"' "$1/src/protocol/redlock.lua"
    (cd "$1" && scripts/lua_text.pl >src/protocol/lua_text.c)
}

time_round()
{
    psql_on "$1" -AtqX -v ON_ERROR_STOP=1 -F ' ' <<'SQL'
SET client_min_messages = warning;
CREATE TEMP TABLE took (acquire float, pair float);
DO $$
DECLARE t0 timestamptz; t1 timestamptz; a float[]; p float[];
BEGIN
    FOR i IN 1 .. 2500 LOOP
        t0 := clock_timestamp();
        PERFORM redlock_acquire('own', scope => 'session');
        t1 := clock_timestamp();
        PERFORM redlock_release('own');
        IF i > 500 THEN
            a := a || extract(epoch FROM t1 - t0)::float * 1e6;
            p := p || extract(epoch FROM clock_timestamp() - t0)::float * 1e6;
        END IF;
    END LOOP;
    INSERT INTO took SELECT * FROM unnest(a, p);
END $$;
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY acquire),
       percentile_cont(0.5) WITHIN GROUP (ORDER BY pair) FROM took;
SQL
}

make -s PG_CONFIG="$PG_CONFIG" with_llvm=no clean >/dev/null 2>&1 || true
for name in guard plain; do
    cp -r . "$TMP/$name.src"
    make_variant "$TMP/$name.src" $name
done
build_and_install
declare -A CONFIG=([all]=$PG_CONFIG)
for name in guard plain; do
    CONFIG[$name]=$(copy_postgres "$TMP/$name" "$PG_CONFIG")
    (cd "$TMP/$name.src" && PG_CONFIG=${CONFIG[$name]} build_and_install)
done

gcc -O2 -Wall -o "$TMP/delay_proxy" bench/delay_proxy.c
far=
pairs=()
for name in 1 2 3 4 5; do
    start_redis "n$name" --appendonly no
    port=$(free_port)
    pairs+=("$port:${REDIS_PORT[n$name]}")
    far+=${far:+,}redis://127.0.0.1:$port
done
"$TMP/delay_proxy" 250 "${pairs[@]}" & # ends with us
for name in "${VARIANTS[@]}"; do
    for where in near far; do
        urls=$(redis_urls n1 n2 n3 n4 n5)
        [ $where = near ] || urls=$far
        init_postgres $name.$where <<CONF
            shared_preload_libraries = 'redlock_pg'
            redlock.nodes = '$urls'
            redlock.max_ttl = 10s
CONF
        (PATH=$(dirname "${CONFIG[$name]}"):$PATH && start_postgres $name.$where)
        PG_PID[$name.$where]=$(head -n 1 "$TMP/pg.$name.$where/postmaster.pid")
        value_on $name.$where "CREATE EXTENSION redlock_pg"
    done
done
for name in {all,guard,plain}.{near,far}; do
    wait_for_value $name "SELECT count(*) FROM redlock_nodes WHERE state = 'ready'" 5
    time_round $name >/dev/null
done

for where in near far; do
    for ((round = 1; round <= ROUNDS; round++)); do
        for name in "${VARIANTS[@]}"; do
            echo "$name $(time_round $name.$where)"
        done
    done >"$TMP/$where"
    case $where in
    near) echo "nodes on the same cores as all the rest" ;;
    far) echo "nodes 0.5 ms away" ;;
    esac
    awk '
    { a[$1] = a[$1] " " $2; p[$1] = p[$1] " " $3 }
    function median(list,    v, n, i, j, t) {
        n = split(list, v, " ")
        for (i = 2; i <= n; i++)
            for (j = i; j > 1 && v[j - 1] + 0 > v[j] + 0; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
        return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
    }
    function line(what, name) {
        printf "  %-24s %10.1f %10.1f %10.3f %10.3f\n", what, median(a[name]), median(p[name]),
            median(a["all"]) / median(a[name]), median(p["all"]) / median(p[name])
    }
    END {
        print "  medians of " NR / 3 " rounds    acquire us    pair us   ratio of the first to it"
        line("tokens and guard", "all")
        line("guard only", "guard")
        line("SET NX PX only", "plain")
    }' "$TMP/$where"
done
