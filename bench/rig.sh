# bench/rig.sh: the nodes, links and servers of bench/run and bench/scale/run; sourced
# by their inner stages, after scripts/lib.sh
#
# The file $TMP/rig lists what runs; rig.py reads the file.

NODES=(n1 n2 n3 n4 n5)
DEADLOCK_TIMEOUT_MS=1000

# ---- links with a delay ----

proxies_answer()
{
    local port

    for port in "$@"; do
        [ "$(redis-cli -h 127.0.0.1 -p "$port" ping)" = PONG ] || return 1
    done
}

proxies_up_or_dead()
{
    ! kill -0 "$PROXY_PID" || proxies_answer "$@"
}

# Starts a proxy to all nodes that adds $1 us in each direction; sets PORTS.
start_proxy()
{
    local delay_us=$1 node pairs try

    for try in 1 2 3 4 5; do
        PORTS=()
        pairs=()
        for node in "${NODES[@]}"; do
            PORTS+=("$(free_port)")
            pairs+=("${PORTS[-1]}:${REDIS_PORT[$node]}")
        done
        "$TMP/bin/delay_proxy" "$delay_us" "${pairs[@]}" 2>"$TMP/proxy.$delay_us.log" &
        PROXY_PID=$!
        disown
        wait_until proxies_up_or_dead "${PORTS[@]}" || break
        if kill -0 "$PROXY_PID" 2>/dev/null; then
            return 0
        fi
        echo "try $try" >>"$TMP/proxy.$delay_us.log"
    done
    cat "$TMP/proxy.$delay_us.log" >&2
    die "the delay proxy does not start"
}

# ---- nodes ----

# Call this first: new nodes may not vote at once.
start_nodes()
{
    local node

    for node in "${NODES[@]}"; do
        start_redis "$node" --maxclients 20000
        echo "node $node ${REDIS_PORT[$node]} ${REDIS_PID[$node]}" >>"$TMP/rig"
    done
}

# Sets PORTS to the nodes' own ports.
use_node_ports()
{
    local node

    PORTS=()
    for node in "${NODES[@]}"; do
        PORTS+=("${REDIS_PORT[$node]}")
    done
}

# ---- clusters ----

# Creates and starts cluster $1 with the nodes at PORTS, by URLs of scheme $2 if
# given; standard input is appended to the configuration.
start_host()
{
    local name=$1 scheme=${2-redis} urls

    urls=$(printf ",$scheme://127.0.0.1:%s" "${PORTS[@]}")
    init_postgres "$name" <<CONF
shared_preload_libraries = 'redlock_pg'
redlock.nodes = '${urls#,}'
redlock.max_ttl = '10 s'
max_connections = 260
shared_buffers = 64MB
autovacuum = off
max_wal_size = 4GB
deadlock_timeout = ${DEADLOCK_TIMEOUT_MS}ms
$(cat)
CONF
    start_postgres "$name"
    value_on "$name" "CREATE EXTENSION redlock_pg"
    echo "host $name ${PG_PORT[$name]} ${PORTS[*]}" >>"$TMP/rig"
}

# Shared memory of cluster $1, which is stopped, with $2 locks, in MB.
shared_memory_mb()
{
    postgres -D "$TMP/pg.$1" -c "redlock.max_locks=$2" -C shared_memory_size 2>>"$TMP/pg.$1.log"
}

# Prints the most frequent lines of trouble in the clusters' logs.
note_logs()
{
    local host

    for host in "${!PG_PID[@]}"; do
        grep -E 'PANIC|FATAL|WARNING|TRAP|terminated by signal' "$TMP/pg.$host.log" |
            grep -v 'terminating connection due to administrator command' |
            sed -E 's/^.{23} [A-Z]+ \[[0-9]+\] //' | sort | uniq -c | sort -rn | head -n 10 |
            sed "s/^/note: log of host $host: /" || true
    done
}

# ---- programs, machine ----

# Builds the named programs of bench/ in $TMP/bin.
build_programs()
{
    local program

    mkdir -p "$TMP/bin"
    for program in "$@"; do
        gcc -O2 -Wall -I"$("$PG_CONFIG" --includedir)" -DPG_VERSION="\"$("$PG_CONFIG" --version)\"" \
            -o "$TMP/bin/$program" "bench/$program.c" -L"$("$PG_CONFIG" --libdir)" -lpq
    done
}

# Uses the variables version and command_line.
describe_machine()
{
    echo "processor: $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores"
    echo "memory: $(awk '/^MemTotal/ { printf "%.0f GiB", $2 / 1048576 }' /proc/meminfo)"
    echo "kernel: $(uname -sr)"
    echo "load before: $(cut -d ' ' -f 1-3 /proc/loadavg)"
    echo "PostgreSQL: $("$PG_CONFIG" --version | cut -d ' ' -f 2-)"
    echo "Redis: $(redis-server --version | sed 's/.*v=\([^ ]*\).*/\1/'), ${#NODES[@]} nodes, appendfsync always, files on $(stat -f -c %T "$NODES_TMP")"
    echo "hiredis: $(awk '/define HIREDIS_(MAJOR|MINOR|PATCH)/ { v = v s $3; s = "." } END { print v }' /usr/include/hiredis/hiredis.h)"
    echo "redlock_pg: $version"
    echo "date: $(date -I)"
    echo "command: $command_line"
}
