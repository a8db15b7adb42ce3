#!/bin/bash
# bench/waiting.sh: measure what waiting for a lock costs
#
#   bench/waiting.sh [--quick] [--rounds N] [PART ...]
#
#   local      many sessions of one host contend for one resource
#   hosts      two hosts contend for one resource
#   wake       from a release on one host to the grant on another
#   commands   what many sessions that wait send to a node
#   stopped    acquire while two of five nodes are stopped
#   deadlock   a redlock and a row lock, taken in opposite order
#
# Without a PART all of them, in about five minutes; --quick takes one, and its
# figures only show that the script works.  Installs what is missing and then
# works in a temporary directory with servers of its own, like scripts/test.sh.
#
# What is compared is measured in one run, in rounds that take turns, and the
# median of the rounds counts.  Absolute figures say as much about the machine
# as about the extension; the ratios are what to look at.  Each target is
# printed with "met" or "missed".  Fails only if something can't be measured.
#
# Every figure goes to bench/results/waiting.csv, one a line.
set -eu

. "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

ALL_PARTS=(local hosts wake commands stopped deadlock)

usage()
{
    echo "usage: $0 [--quick] [--rounds N] [${ALL_PARTS[*]}]" >&2
    exit 2
}

arguments=("$@")
quick=
rounds=
parts=()
while [ $# -gt 0 ]; do
    case $1 in
    --quick) quick=1 ;;
    --rounds)
        [[ ${2-} =~ ^[1-9][0-9]*$ ]] || usage
        rounds=$2
        shift
        ;;
    *)
        [[ $1 != -* && " ${ALL_PARTS[*]} " == *" $1 "* ]] || usage
        parts+=("$1")
        ;;
    esac
    shift
done
[ ${#parts[@]} -gt 0 ] || parts=("${ALL_PARTS[@]}")

# The inner stage may not be allowed to write into the checkout, so it inherits
# the open file as descriptor 3.
if [ -z "${REDLOCK_INNER-}" ]; then
    "$ROOT/scripts/deps.sh"
    mkdir -p "$ROOT/bench/results"
    exec 3>"$ROOT/bench/results/waiting.csv"
    echo "redlock_pg $(git -C "$ROOT" describe --always --dirty 2>/dev/null || echo "of unknown version")," \
        "$(nproc) processors, load $(cut -d ' ' -f 1-3 /proc/loadavg)"
    run_in_private_copy bench/waiting.sh ${arguments+"${arguments[@]}"}
fi

. "$ROOT/bench/waiting_parts.sh"

# Rounds and lengths of the parts.
if [ -n "$quick" ]; then
    LOCAL_ROUNDS=${rounds:-2}    LOCAL_S=1
    HOSTS_ROUNDS=${rounds:-1}    HOSTS_S=4
    WAKE_ROUNDS=${rounds:-1}     WAKE_TURNS=20
    COMMANDS_ROUNDS=${rounds:-1} COMMANDS_S=3
    STOPPED_ROUNDS=${rounds:-2}  STOPPED_S=1
    DEADLOCK_ROUNDS=${rounds:-2}
else
    LOCAL_ROUNDS=${rounds:-5}    LOCAL_S=2
    HOSTS_ROUNDS=${rounds:-3}    HOSTS_S=8
    WAKE_ROUNDS=${rounds:-3}     WAKE_TURNS=40
    COMMANDS_ROUNDS=${rounds:-3} COMMANDS_S=5
    STOPPED_ROUNDS=${rounds:-5}  STOPPED_S=3
    DEADLOCK_ROUNDS=${rounds:-4}
fi

# Transaction scope outside of a transaction block warns.
MESSAGES=error
export PGOPTIONS='-c client_min_messages=error -c log_min_messages=error'

NODES=(n1 n2 n3 n4 n5)

wanted()
{
    local part

    for part in "$@"; do
        [[ " ${parts[*]} " != *" $part "* ]] || return 0
    done
    return 1
}

# ---- links with a delay ----

declare -A PROXY_PID
PROXY_PORTS=()

proxies_answer()
{
    local port

    for port in "${PROXY_PORTS[@]}"; do
        [ "$(redis-cli -h 127.0.0.1 -p "$port" ping)" = PONG ] || return 1
    done
}

proxies_up_or_dead()
{
    ! kill -0 "${PROXY_PID[$1]}" || proxies_answer
}

# Starts proxies to all nodes, known by name $1, that add $2 us in each
# direction; sets PROXY_PORTS.
start_proxies()
{
    local name=$1 delay_us=$2 node pairs try

    for try in 1 2 3 4 5; do
        PROXY_PORTS=()
        pairs=()
        for node in "${NODES[@]}"; do
            PROXY_PORTS+=("$(free_port)")
            pairs+=("${PROXY_PORTS[-1]}:${REDIS_PORT[$node]}")
        done
        "$TMP/delay_proxy" "$delay_us" "${pairs[@]}" 2>"$TMP/proxy.$name.log" &
        PROXY_PID[$name]=$!
        disown
        wait_until proxies_up_or_dead "$name" || break
        if kill -0 "${PROXY_PID[$name]}" 2>/dev/null; then
            return 0
        fi
    done
    cat "$TMP/proxy.$name.log" >&2
    die "the delay proxy does not start"
}

# ---- clusters ----

# Starts cluster $1; the other arguments are the ports of its nodes.
start_host()
{
    local name=$1 urls
    shift

    urls=$(printf ',redis://127.0.0.1:%s' "$@")
    init_postgres "$name" <<CONF
shared_preload_libraries = 'redlock_pg'
redlock.nodes = '${urls#,}'
max_connections = 260
shared_buffers = 64MB
autovacuum = off
deadlock_timeout = ${DEADLOCK_TIMEOUT_MS}ms
CONF
    start_postgres "$name"
    value_on "$name" "CREATE EXTENSION redlock_pg"
    wait_for_all_ready "$name" || {
        psql_on "$name" -c "SELECT * FROM redlock_nodes" >&2
        die "the nodes of host $name are not ready"
    }
}

# Messages of the servers that nothing here should have caused.
show_trouble()
{
    local host trouble

    for host in "${!PG_PID[@]}"; do
        trouble=$(value_on "$host" "SELECT format('lost %s, unrenewed %s, unreachable %s', lost, unrenewed, unreachable)
                                      FROM redlock_stats WHERE lost + unrenewed + unreachable > 0") || true
        [ -z "$trouble" ] || echo "note: host $host counted: $trouble"
        grep -E 'PANIC|FATAL|WARNING|TRAP|terminated by signal' "$TMP/pg.$host.log" |
            grep -v 'terminating connection due to administrator command' |
            sed -E 's/^.{23} [A-Z]+ \[[0-9]+\] //' | sort | uniq -c | sort -rn | head -n 10 |
            sed "s/^/note: log of host $host: /" || true
    done
}

begin_inner

build_and_install
gcc -O2 -Wall -o "$TMP/delay_proxy" bench/delay_proxy.c

for node in "${NODES[@]}"; do
    start_redis "$node"
done
direct=()
for node in "${NODES[@]}"; do
    direct+=("${REDIS_PORT[$node]}")
done
if wanted local hosts commands stopped deadlock; then
    start_host a "${direct[@]}"
fi
if wanted hosts commands; then
    start_host b "${direct[@]}"
fi
if wanted local; then
    start_proxies near 250
    NEAR_PORT=${PROXY_PORTS[0]}
    start_host near "${PROXY_PORTS[@]}"
fi
if wanted wake; then
    start_proxies far 2500
    FAR_PORT=${PROXY_PORTS[0]}
    start_host far_a "${PROXY_PORTS[@]}"
    start_host far_b "${PROXY_PORTS[@]}"
fi

echo "$("$PG_CONFIG" --version), $(redis-server --version | cut -d ' ' -f 1-3), ${#NODES[@]} nodes"
echo "part,case,sessions,round,metric,value" >&3

failed=0
for part in "${ALL_PARTS[@]}"; do
    wanted "$part" || continue
    # a subshell of its own, where an error ends the part and not the run
    set +e
    (
        set -e
        "part_$part"
    )
    status=$?
    set -e
    if [ $status -ne 0 ]; then
        echo "could not measure: $part"
        failed=1
        # what it left must not disturb the others
        for node in "${NODES[@]}"; do
            kill -CONT "${REDIS_PID[$node]}"
        done
        for host in "${!PG_PID[@]}"; do
            value_on "$host" "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                               WHERE backend_type = 'client backend'
                                 AND pid <> pg_backend_pid()" >/dev/null
            wait_for_value "$host" "SELECT count(*) FROM redlock_locks" 0 || true
        done
    fi
done

echo
show_trouble
kill ${PROXY_PID[@]+"${PROXY_PID[@]}"} 2>/dev/null || true
echo "took $SECONDS s"
exit $failed
