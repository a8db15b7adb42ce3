# scripts/lib.sh: shared by demo.sh, test.sh, lint.sh and others; sourced by bash
#
# All work is done in a temporary directory, which is removed at the end: it has
# a copy of the sources, where the extension is built, and a copy of the
# PostgreSQL installation, where the extension is installed.  PostgreSQL finds
# its files relative to its binaries, so the copy is complete by itself, and
# neither the machine's PostgreSQL nor this checkout changes.  The user of the
# servers needs no rights to write to the checkout.
#
# The Redis nodes write each command to disk before they answer, as
# docs/how-to/install.md says.  If the machine has a disk in memory, their
# directories are in a second temporary directory there, so writing is cheap.
#
# PostgreSQL refuses to run as root, so a script has two stages.  The outer
# stage runs as the caller, prepares the temporary directory and starts the
# script again from the copy; root starts it as an unprivileged user.  The
# inner stage does the work.  The outer stage waits, and always cleans up.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Limit of each wait, in seconds.
WAIT_S=${PG_TEST_TIMEOUT_DEFAULT:-60}

die()
{
    echo "$(basename "$0"): $*" >&2
    exit 1
}

# ------------------------------------------------------------------
# Outer stage
# ------------------------------------------------------------------

# For a PostgreSQL with sanitizers (scripts/build_postgres.sh): a finding ends the
# process.  libfaketime is loaded before them, and memory at the end of a program
# is no leak.  Sanitizers keep freed memory for a while; a small limit keeps this
# memory from looking like growth (t/nodes_hostile.t).
if [ -z "${REDLOCK_INNER-}" ]; then
    export ASAN_OPTIONS=detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=1:verify_asan_link_order=0:quarantine_size_mb=16
    export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1:abort_on_error=1
fi

# Prints the pg_config of the PostgreSQL to use: PG_CONFIG, else that of PG_MAJOR,
# else the newest installed.  Debian's /usr/bin/pg_config is a wrapper, so the
# pg_config beside the server is used.
find_pg_config()
{
    if [ -n "${PG_CONFIG-}" ]; then
        echo "$("$PG_CONFIG" --bindir)/pg_config"
        return
    fi
    for dir in /usr/lib/postgresql/${PG_MAJOR:-*}/bin; do
        if [ -x "$dir/postgres" ] && [ -x "$dir/pg_config" ]; then
            echo "$dir/pg_config"
        fi
    done | sort -V | tail -n 1
}

# The program of a node: REDIS_SERVER, else Redis', else Valkey's.
find_redis_server()
{
    local program

    for program in ${REDIS_SERVER:-redis-server valkey-server}; do
        if command -v "$program"; then
            return
        fi
    done
    die "no ${REDIS_SERVER:-redis-server} found"
}

# Prints the user to run the servers, for root.
find_unprivileged_user()
{
    for user in postgres nobody; do
        if id "$user" >/dev/null 2>&1; then
            echo "$user"
            return
        fi
    done
    die "no user \"postgres\" or \"nobody\" to run the servers as"
}

# Copies the sources without the products of a build.
copy_sources()
{
    mkdir -p "$1"
    tar -C "$ROOT" -cf - --exclude=./.git --exclude='*.o' --exclude='*.bc' \
        --exclude='*.so' --exclude='*.a' --exclude=./tmp_check \
        --exclude=./results --exclude=./output_iso \
        --exclude=./exec/redlock-exec --exclude='./test/unit/*_test' --exclude='./test/fuzz/*_fuzz' --exclude=./test/sim/sim \
        --exclude=./test/sim/conformance . | tar -C "$1" -xf - --no-same-owner
}

# Prints PostgreSQL's own directory, if it was built with --prefix; nothing if it
# shares the system's directories.
prefix_of()
{
    local prefix

    prefix=$(dirname "$("$1" --bindir)")
    case "$("$1" --libdir) $("$1" --includedir) $("$1" --sharedir)" in
    /usr/*) ;;
    "$prefix"/*" $prefix"/*" $prefix"/*) echo "$prefix" ;;
    esac
}

# Copies PostgreSQL under $1 with its directories' full paths, and prints the
# copy's pg_config.  Headers, translations and the system's libraries are only
# linked to.  Bitcode for the JIT compiler, more than half of all, is left out.
# A PostgreSQL with its own directory is copied whole, because the user of the
# servers may not have the right to read the original.
copy_postgres()
{
    local to=$1 pg_config=$2 dir prefix copied

    prefix=$(prefix_of "$pg_config")
    if [ -n "$prefix" ]; then
        mkdir -p "$to$prefix"
        tar -C "$prefix" -cf - . | tar -C "$to$prefix" -xf - --no-same-owner
    fi

    for dir in $("$pg_config" --bindir) $("$pg_config" --pkglibdir) \
        $("$pg_config" --sharedir); do
        if [ ! -e "$to$dir" ]; then
            mkdir -p "$to$dir"
            tar -C "$dir" -cf - --exclude=./bitcode . |
                tar -C "$to$dir" -xf - --no-same-owner
        fi
    done
    for dir in $("$pg_config" --includedir) $("$pg_config" --pkgincludedir) \
        $("$pg_config" --includedir-server) $("$pg_config" --libdir) \
        $("$pg_config" --localedir); do
        if [ -e "$dir" ] && [ ! -e "$to$dir" ]; then
            mkdir -p "$(dirname "$to$dir")"
            ln -s "$dir" "$to$dir"
        fi
    done

    copied="$to$("$pg_config" --bindir)/pg_config"
    case "$("$copied" --pkglibdir) $("$copied" --sharedir)" in
    "$to"/*" $to"/*) echo "$copied" ;;
    *) die "the copy of PostgreSQL in $to does not find its own files" ;;
    esac
}

# Kills every process whose program or working directory is in directory $1.
# Servers are stopped in order elsewhere; this ends the rest of an interrupted run.
kill_living_in()
{
    local dir=$1 proc pid exe cwd round found

    for round in 1 2 3 4 5; do
        found=
        for proc in /proc/[0-9]*; do
            pid=${proc#/proc/}
            [ "$pid" != "$$" ] && [ "$pid" != "${BASHPID-}" ] || continue
            exe=$(readlink "$proc/exe" 2>/dev/null) || exe=
            cwd=$(readlink "$proc/cwd" 2>/dev/null) || cwd=
            case "$exe/ $cwd/" in
            "$dir"/* | *" $dir"/*)
                found=1
                kill -KILL "$pid" 2>/dev/null || true
                ;;
            esac
        done
        [ -n "$found" ] || return 0
    done
}

# Removes the System V segments that killed servers in directory $1 have left; else
# only their next start would.  (Other shared memory is in the data directory: see
# dynamic_shared_memory_type.)
remove_segments_of()
{
    local pidfile key_and_id

    find "$1" -name postmaster.pid 2>/dev/null | while read -r pidfile; do
        key_and_id=$(sed -n 7p "$pidfile")
        if [ -n "$key_and_id" ]; then
            ipcrm -m ${key_and_id##* } 2>/dev/null || true
        fi
    done
}

outer_cleanup()
{
    local status=$?

    trap - EXIT INT TERM HUP
    cd /
    # its whole group: a shell heeds a signal only once its command has ended
    if [ -n "$INNER_PID" ] && kill -TERM -- "-$INNER_PID" 2>/dev/null; then
        wait "$INNER_PID" || true
    fi
    kill_living_in "$TMP"
    [ -z "$NODES_TMP" ] || kill_living_in "$NODES_TMP"
    remove_segments_of "$TMP"
    # a script may save files of the directory
    if declare -F before_removal >/dev/null; then
        before_removal || status=1
    fi
    if [ -n "${KEEP-}" ]; then
        echo "kept: $TMP${NODES_TMP:+ and $NODES_TMP}"
    else
        rm -rf "$TMP" ${NODES_TMP:+"$NODES_TMP"}
    fi
    exit $status
}

# Runs script $1 (a path in the checkout) in a private copy, with the other
# arguments, and exits with its status.  With KEEP=1 in the environment the
# temporary directory stays, to examine a failure.
run_in_private_copy()
{
    local script=$1 base=${TMPDIR:-/tmp} pg_config redis user name drop=() more=()
    shift

    pg_config=$(find_pg_config)
    [ -n "$pg_config" ] || die "no PostgreSQL found; set PG_CONFIG"

    # the servers' sockets are there, and need short paths
    [ ${#base} -le 40 ] || base=/tmp

    INNER_PID=
    NODES_TMP=
    TMP=$(mktemp -d "$base/redlock_pg.XXXXXX")
    trap outer_cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
    # the real name, as /proc shows it
    TMP=$(cd "$TMP" && pwd -P)
    NODES_TMP=$(mktemp -d /dev/shm/redlock_pg.XXXXXX 2>/dev/null) || NODES_TMP=

    copy_sources "$TMP/src"
    pg_config=$(copy_postgres "$TMP" "$pg_config")
    # tests call the program of a node by the names of Redis
    redis=$(find_redis_server)
    mkdir -p "$TMP/tmp" "$TMP/redis"
    ln -s "$redis" "$TMP/redis/redis-server"
    ln -s "$(command -v "${redis%-server}-cli")" "$TMP/redis/redis-cli"
    # a script may add files
    if declare -F after_copy >/dev/null; then
        after_copy
    fi

    if [ "$(id -u)" -eq 0 ]; then
        user=$(find_unprivileged_user)
        # the links, not their targets
        chown -R -P -h "$user:$(id -g "$user")" "$TMP" ${NODES_TMP:+"$NODES_TMP"}
        drop=(setpriv "--reuid=$user" "--regid=$(id -g "$user")" --clear-groups)
    fi

    # number of TAP files at a time, the long forms of some tests, and whether a test
    # without its programs fails
    for name in TAP_JOBS TOKENS LOCKS COMMITS FUZZ_SEED FUZZ_CALLS CI; do
        [ -z "${!name-}" ] || more+=("$name=${!name}")
    done
    # the copy's libraries are not in the directory for which it was built
    if [ -n "$(prefix_of "$pg_config")" ]; then
        more+=(LD_LIBRARY_PATH="$("$pg_config" --libdir)")
    fi
    case "$("$pg_config" --cflags)" in
    *-fsanitize=*) more+=(ASAN_OPTIONS="$ASAN_OPTIONS" UBSAN_OPTIONS="$UBSAN_OPTIONS") ;;
    esac

    cd "$TMP/src"
    # The inner stage gets a process group: an interrupt from the keyboard reaches
    # only us, and our trap lets the inner stage stop its servers.
    set -m
    "${drop[@]}" env -i \
        HOME="$TMP/tmp" TMPDIR="$TMP/tmp" TMP="$TMP" \
        NODES_TMP="${NODES_TMP:-$TMP}" \
        PATH="$(dirname "$pg_config"):$TMP/redis:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
        LC_ALL=C TERM="${TERM-dumb}" \
        PG_CONFIG="$pg_config" PG_TEST_TIMEOUT_DEFAULT="$WAIT_S" \
        REDLOCK_INNER=1 "${more[@]}" \
        bash "$TMP/src/$script" "$@" </dev/null &
    INNER_PID=$!
    set +m
    wait "$INNER_PID" && status=0 || status=$?
    INNER_PID=
    exit $status
}

# ------------------------------------------------------------------
# Inner stage
# ------------------------------------------------------------------

# Waits until a command succeeds; fails after WAIT_S seconds.
wait_until()
{
    local end=$((SECONDS + WAIT_S))

    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.05
    done
}

# Prints a free port below the system's range for outgoing connections.  Prints each
# port once, because a port may be reserved before its server starts; and PostgreSQL
# servers use their port only in the name of a Unix socket.
free_port()
{
    mkdir -p "$TMP/ports.given"
    perl -MIO::Socket::INET -e '
        for (1 .. 1000) {
            my $port = 10240 + int(rand(22000));
            if (mkdir("$ARGV[0]/$port") && IO::Socket::INET->new(LocalAddr => "127.0.0.1",
                    LocalPort => $port, Listen => 1, Proto => "tcp")) {
                print "$port\n";
                exit 0;
            }
        }
        exit 1;' "$TMP/ports.given"
}

# ---- Redis nodes, known by a name ----

declare -A REDIS_PID REDIS_PORT

redis_answers()
{
    [ "$(redis-cli -h 127.0.0.1 -p "${REDIS_PORT[$1]}" ping)" = PONG ]
}

redis_up_or_dead()
{
    ! kill -0 "${REDIS_PID[$1]}" || redis_answers "$1"
}

# Starts the Redis node $1; other arguments go to redis-server.  By default the node
# forgets nothing at a restart, so it votes at once.
start_redis()
{
    local name=$1 dir=$NODES_TMP/redis.$1 try
    shift

    mkdir -p "$dir"
    for try in 1 2 3 4 5; do
        REDIS_PORT[$name]=$(free_port)
        # from the node's directory, by which cleaning up finds the process
        (cd "$dir" && exec redis-server --port "${REDIS_PORT[$name]}" \
            --bind 127.0.0.1 --dir "$dir" --save '' \
            --appendonly yes --appendfsync always \
            --daemonize no "$@") >"$dir/log" 2>&1 &
        REDIS_PID[$name]=$!
        disown
        wait_until redis_up_or_dead "$name" || break
        # another process may have taken the port
        if redis_answers "$name" && kill -0 "${REDIS_PID[$name]}" 2>/dev/null; then
            return 0
        fi
    done
    cat "$dir/log" >&2
    die "Redis node $name does not start"
}

# Prints the addresses of the named Redis nodes, for redlock.nodes.
redis_urls()
{
    local name urls=

    for name in "$@"; do
        urls+=${urls:+,}redis://127.0.0.1:${REDIS_PORT[$name]}
    done
    echo "$urls"
}

stop_redis()
{
    local pid=${REDIS_PID[$1]}

    unset "REDIS_PID[$1]"
    kill -CONT "$pid" 2>/dev/null || true
    kill -KILL "$pid" 2>/dev/null || return 0
    wait_until eval "! kill -0 $pid"
}

# ---- PostgreSQL clusters, known by a name ----

declare -A PG_PID PG_PORT

# Creates cluster $1; standard input is appended to its configuration.
init_postgres()
{
    local name=$1 dir=$TMP/pg.$1

    PG_PORT[$name]=$(free_port)
    initdb -D "$dir" -A trust -N -E UTF8 --no-locale >"$dir.initdb.log" 2>&1 || {
        cat "$dir.initdb.log" >&2
        die "initdb failed"
    }
    {
        echo "listen_addresses = ''"
        echo "unix_socket_directories = '$TMP/tmp'"
        echo "port = ${PG_PORT[$name]}"
        echo "fsync = off"
        echo "dynamic_shared_memory_type = mmap"
        echo "log_line_prefix = '%m [%p] %q%a '"
        cat
    } >>"$dir/postgresql.conf"
}

start_postgres()
{
    local name=$1 dir=$TMP/pg.$1

    pg_ctl -w -D "$dir" -l "$dir.log" -t "$WAIT_S" \
        -o "--cluster-name=$name" start >/dev/null || {
        tail -n 50 "$dir.log" >&2
        die "PostgreSQL $name does not start"
    }
    PG_PID[$name]=$(head -n 1 "$dir/postmaster.pid")
}

stop_postgres()
{
    local name=$1 mode=${2:-fast}

    unset "PG_PID[$name]"
    pg_ctl -w -D "$TMP/pg.$name" -m "$mode" -t "$WAIT_S" stop >/dev/null
}

# Prints the processes whose parent is $1.
children_of()
{
    local stat line pid rest

    for stat in /proc/[0-9]*/stat; do
        { read -r line <"$stat"; } 2>/dev/null || continue
        pid=${line%% *}
        rest=${line##*) }  # state ppid ...
        set -- "$1" $rest
        [ "$3" != "$1" ] || echo "$pid"
    done
}

# Kills cluster $1 as a power failure would: every process, at once.
kill_postgres()
{
    local pid=${PG_PID[$1]} pids

    unset "PG_PID[$1]"
    # a stopped postmaster starts no children, and does not see them die
    kill -STOP "$pid"
    pids=$(children_of "$pid")
    kill -KILL "$pid" $pids
    wait_until eval "! kill -0 $pid"
}

# psql on cluster $1
psql_on()
{
    local name=$1
    shift
    PGOPTIONS="-c client_min_messages=${MESSAGES:-notice}" \
        psql -X -h "$TMP/tmp" -p "${PG_PORT[$name]}" -d postgres "$@"
}

# prints the value of query $2 on cluster $1
value_on()
{
    psql_on "$1" -Atq -v ON_ERROR_STOP=1 -c "$2"
}

# Does query $2 return $3 on cluster $1?
value_is() { [ "$(value_on "$1" "$2")" = "$3" ]; }
wait_for_value() { wait_until value_is "$@"; }

inner_cleanup()
{
    local status=$? name

    trap - EXIT INT TERM HUP
    for name in "${!PG_PID[@]}"; do
        stop_postgres "$name" immediate 2>/dev/null || true
    done
    for name in "${!REDIS_PID[@]}"; do
        stop_redis "$name" || true
    done
    exit $status
}

# Must be called first in the inner stage.
begin_inner()
{
    trap inner_cleanup EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    trap 'exit 129' HUP
}

# Builds the extension and installs it into the private copy of PostgreSQL.
build_and_install()
{
    make -s -j2 PG_CONFIG="$PG_CONFIG" "$@" >"$TMP/build.log" 2>&1 &&
        make -s PG_CONFIG="$PG_CONFIG" install >>"$TMP/build.log" 2>&1 || {
        cat "$TMP/build.log" >&2
        return 1
    }
}
