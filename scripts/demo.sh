#!/bin/bash
# scripts/demo.sh: a story of two PostgreSQL hosts, five Redis nodes and one job
#
#   scripts/demo.sh              builds the extension, in a copy of the sources
#   scripts/demo.sh --installed  with the installed extension
#
# Installs missing packages (scripts/deps.sh), then works in a temporary directory
# with a copy of PostgreSQL and servers on the loopback interface; all are removed
# at the end.  Each query is really run, and its real result is shown.  Ends with
# an error if the story fails.
set -eu

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

installed=
case "${1-}" in
'') ;;
--installed) installed=1 ;;
*)
    echo "usage: $0 [--installed]" >&2
    exit 2
    ;;
esac

if [ -z "${REDLOCK_INNER-}" ]; then
    [ -n "$installed" ] || "$ROOT/scripts/deps.sh"
    run_in_private_copy scripts/demo.sh "$@"
fi

begin_inner

TTL_S=4

tell()
{
    echo
    echo "$*" | fmt -w 78
    echo
}

# Runs a query on a host and shows both.
show()
{
    local host=$1 query=$2

    echo "    host $host> $query"
    psql_on "$host" -q -v ON_ERROR_STOP=1 -P footer=off -c "$query" 2>&1 |
        sed '/^$/d; s/^/      /' || die "this query failed"
}

# Starts the job on a host.  The job's output is shown at once, and also goes into a
# file.
start_job()
{
    local host=$1

    echo "    host $host> CALL nightly_job();"
    psql_on "$host" -q -c "CALL nightly_job()" 2>&1 |
        sed -u "/^\$/d; s/^/      [host $host] /" | tee "$TMP/job.$host" &
    disown
}

job_said() { grep -q "$2" "$TMP/job.$1"; }

# the fencing token that the job on a host said
token_of() { sed -n 's/.*by token \([0-9]*\).*/\1/p' "$TMP/job.$1"; }

# ------------------------------------------------------------------

if [ -n "$installed" ]; then
    echo "redlock_pg as it is installed for $("$PG_CONFIG" --version)."
else
    echo "Building redlock_pg for $("$PG_CONFIG" --version)."
    build_and_install || die "the build failed"
fi

nodes="node1 node2 node3 node4 node5"
for node in $nodes; do
    start_redis $node
done
for host in A B; do
    init_postgres $host <<CONF
        shared_preload_libraries = 'redlock_pg'
        redlock.nodes = '$(redis_urls $nodes)'
        redlock.ttl = '${TTL_S}s'
CONF
    start_postgres $host
    psql_on $host -q -v ON_ERROR_STOP=1 <<'SQL'
        CREATE EXTENSION redlock_pg;
        CREATE PROCEDURE nightly_job() LANGUAGE plpgsql AS $$
        DECLARE
            token bigint;
        BEGIN
            RAISE NOTICE 'nightly job: asking for the lock';
            token := redlock_acquire('nightly job');
            PERFORM redlock_fence('nightly job');
            RAISE NOTICE 'nightly job: I have the lock, by token %, and start to work', token;
            FOR part IN 1 .. 15 LOOP
                PERFORM pg_sleep(1);
                IF part % 5 = 0 THEN
                    RAISE NOTICE 'nightly job: % of 15 parts done', part;
                END IF;
            END LOOP;
            RAISE NOTICE 'nightly job: finished';
        END $$;
SQL
    wait_for_value $host "SELECT count(*) FROM redlock_nodes WHERE state = 'ready'" 5 ||
        die "host $host does not reach its five nodes"
done

tell "1. Five independent Redis nodes are up, and two PostgreSQL hosts, A and B," \
    "which know nothing of each other. This is how host A sees the nodes:"
show A "SELECT node, state FROM redlock_nodes;"

tell "2. Both hosts are to run the same nightly job, but one at a time. Its first" \
    "statement takes a lock: token := redlock_acquire('nightly job'). Host A starts:"
start_job A
wait_until job_said A "I have the lock" || die "host A did not get the lock"

tell "3. Host B starts the same job. It waits, and knows for whom:"
start_job B
wait_for_value B "SELECT held_by IS NOT NULL FROM redlock_locks WHERE state = 'waiting'" t ||
    die "host B does not wait for host A"
show B "SELECT resource, state, held_by FROM redlock_locks;"
echo
echo "    A session that does not want to wait asks with redlock_try:"
echo
show B "SELECT redlock_try('nightly job');"
[ "$(value_on B "SELECT redlock_try('nightly job')")" = f ] ||
    die "host B got the lock that host A holds"

tell "4. Two of the five nodes fail: one hangs, one dies. Host A goes on renewing its" \
    "lease of $TTL_S seconds on the other three, a majority. Later than it would have run out:"
renewed=$(value_on A "SELECT renewed FROM redlock_stats")
kill -STOP "${REDIS_PID[node2]}"
stop_redis node4
wait_for_value A "SELECT count(*) FROM redlock_nodes WHERE state = 'ready'" 3 ||
    die "host A does not notice that two nodes are gone"
# a third of the ttl lies between two renewals
wait_for_value A "SELECT renewed >= $renewed + 4 FROM redlock_stats" t ||
    die "host A does not renew its lease on three nodes"
show A "SELECT node, state, last_error FROM redlock_nodes;"
echo
show A "SELECT resource, state, valid_for > '0' AS valid FROM redlock_locks;"
echo
show B "SELECT resource, state FROM redlock_locks;"
[ "$(value_on A "SELECT state FROM redlock_locks")" = held ] || die "host A lost its lock"
[ "$(value_on B "SELECT state FROM redlock_locks")" = waiting ] || die "host B does not wait"

tell "5. Host A loses power: all its processes are killed with SIGKILL, in the midst" \
    "of the job. Nobody renews its lease, and when that has run out, host B takes over:"
# not right after a renewal: the time should measure the lease, not the check for
# its end
wait_for_value A "SELECT valid_for < '$TTL_S s'::interval - '0.5 s' FROM redlock_locks" t ||
    die "host A has no lease"
! job_said A "finished" || die "host A was too fast: its job is already done"
killed=${EPOCHREALTIME/./}
kill_postgres A
wait_until job_said B "I have the lock" || die "host B did not get the lock"
took_ms=$(((${EPOCHREALTIME/./} - killed) / 1000))
wait_until job_said A "connection to server was lost" || die "host A still answers"
echo
printf '    Host B had the lock %d.%d s after the death of host A; the ttl is %d s.\n\n' \
    $((took_ms / 1000)) $((took_ms % 1000 / 100)) $TTL_S
[ $took_ms -le $((TTL_S * 1000)) ] || die "that is too late"
show B "SELECT resource, state, valid_for > '0' AS valid FROM redlock_locks;"

tell "6. It does the whole job, with three of five nodes:"
wait_until job_said B "finished" || die "host B did not finish the job"

tell "7. Its token is larger than that of host A, though no host knows of the other." \
    "In a statement of its own, after it got the lock and before the work, the job called" \
    "redlock_fence('nightly job'), which recorded the token beside its data. A holder with a" \
    "smaller token could not pass there any more:"
show B "SELECT resource, token FROM redlock_fences;"
[ "$(token_of B)" -gt "$(token_of A)" ] || die "the token of host B is not larger"
[ "$(value_on B "SELECT token FROM redlock_fences")" = "$(token_of B)" ] ||
    die "host B did not pass the fence"

tell "The job was done once, and never by two hosts at the same time."
