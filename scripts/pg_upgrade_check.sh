#!/bin/bash
# scripts/pg_upgrade_check.sh: pg_upgrade with the installed extensions
#
#   PG_CONFIG=/new/pg_config scripts/pg_upgrade_check.sh /old/pg_config
#
# Upgrades a cluster of the old PostgreSQL, with databases that have 0.1.0 and the
# present version of redlock_pg, to the new PostgreSQL.  Fences, privileges and versions
# must be as before; the fence refuses the same tokens, and admits a new holder.  Works in
# a temporary directory with copies of both, like scripts/test.sh.
set -eu

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ $# -eq 1 ] || {
    echo "usage: PG_CONFIG=/new/pg_config $0 /old/pg_config" >&2
    exit 2
}

if [ -z "${REDLOCK_INNER-}" ]; then
    old_config=$1
    # its path in the copy
    after_copy() { copy_postgres "$TMP" "$old_config" >"$TMP/old"; }
    run_in_private_copy scripts/pg_upgrade_check.sh "$old_config"
fi

begin_inner

OLD_BIN=$(dirname "$(cat "$TMP/old")")
NEW_BIN=$(dirname "$PG_CONFIG")

with_old() { PATH=$OLD_BIN:$PATH "$@"; }

# prints the result of query $3 in database $2 of cluster $1
ask() { psql_on "$1" -d "$2" -Atq -v ON_ERROR_STOP=1 -c "$3"; }

# Compares the result of query $3 in database $2 of cluster $1 with $4.
expect()
{
    local got

    got=$(ask "$1" "$2" "$3" 2>&1) || true
    if [[ $got == $4 ]]; then
        echo "ok      $2: $5"
    else
        echo "FAILED  $2: $5: $got"
        failed=1
    fi
}

FENCES="SELECT string_agg(concat_ws('|', resource, token, passed_at), ' ' ORDER BY resource) FROM redlock_fences"
failed=0

for name in 1 2 3; do
    start_redis "n$name"
done
conf()
{
    echo "shared_preload_libraries = 'redlock_pg'"
    echo "redlock.nodes = '$(redis_urls n1 n2 n3)'"
}
ready() { wait_for_value "$1" "SELECT count(*) FROM redlock_nodes WHERE state = 'ready'" 3; }

echo "from $("$OLD_BIN/postgres" --version) to $("$NEW_BIN/postgres" --version)"
with_old init_postgres old < <(conf)
with_old start_postgres old
now=$(ask old postgres "SELECT default_version FROM pg_available_extensions WHERE name = 'redlock_pg'")
ask old postgres "CREATE EXTENSION redlock_pg"
ready old || die "the nodes are not ready"
ask old postgres "CREATE ROLE worker"
for db in earlier present; do
    ask old postgres "CREATE DATABASE $db"
done
ask old earlier "CREATE EXTENSION redlock_pg VERSION '0.1.0'"
ask old present "CREATE SCHEMA locks; CREATE EXTENSION redlock_pg SCHEMA locks; ALTER DATABASE present SET search_path = locks, public"
for db in earlier present; do
    ask old $db "BEGIN; SELECT redlock_acquire('$db'), redlock_acquire('newer'); SELECT redlock_fence('$db'), redlock_fence('newer'); COMMIT" >/dev/null
    # a fence whose holder had a larger token than the nodes will give
    ask old $db "UPDATE redlock_fences SET token = token + 1000000000000 WHERE resource = 'newer'"
    ask old $db "REVOKE EXECUTE ON FUNCTION redlock_release_all FROM PUBLIC; GRANT EXECUTE ON FUNCTION redlock_release_all TO worker"
    ask old $db "$FENCES" >"$TMP/fences.$db"
done
with_old stop_postgres old

init_postgres new < <(conf)
cd "$TMP/tmp"
pg_upgrade -b "$OLD_BIN" -B "$NEW_BIN" -d "$TMP/pg.old" -D "$TMP/pg.new" -s "$TMP/tmp" >"$TMP/upgrade.log" 2>&1 || {
    cat "$TMP/upgrade.log"
    find "$TMP/pg.new" -name '*.log' -path '*upgrade*' -exec tail -n 30 {} +
    die "pg_upgrade failed"
}
start_postgres new
ready new || die "the nodes are not ready"

version="SELECT extversion FROM pg_extension WHERE extname = 'redlock_pg'"
expect new earlier "$version" 0.1.0 "the version is as before"
expect new present "$version" "$now" "the version is as before"
for db in earlier present; do
    expect new $db "$FENCES" "$(cat "$TMP/fences.$db")" "the fences are as before"
    expect new $db "SELECT tgenabled FROM pg_trigger WHERE tgname = 'redlock_fence_merge'" R "the trigger fires for replication only"
    expect new $db "SELECT has_function_privilege('public', 'redlock_release_all()', 'EXECUTE'), has_function_privilege('worker', 'redlock_release_all()', 'EXECUTE')" \
        "f|t" "privileges are as before"
    expect new $db "BEGIN; SELECT redlock_acquire('newer') > 0; SELECT redlock_fence('newer'); COMMIT" \
        $'t\n*a newer holder of redlock "newer" has passed the fence*' "who is older than a fence is refused"
done
ask new earlier "ALTER EXTENSION redlock_pg UPDATE"
expect new earlier "$version" "$now" "it is updated"
for db in earlier present; do
    expect new $db "$FENCES" "$(cat "$TMP/fences.$db")" "the fences are as before"
    expect new $db "BEGIN; SELECT redlock_acquire('$db') > 0; SELECT redlock_fence('$db') > (SELECT token FROM redlock_fences WHERE resource = '$db'); COMMIT" \
        $'t\nt' "a new holder passes"
done
stop_postgres new

exit $failed
