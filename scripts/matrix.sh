#!/bin/bash
# scripts/matrix.sh: run the tests on other versions of PostgreSQL, hiredis and the nodes
#
#   scripts/matrix.sh                       the short tier of scripts/test.sh in every row
#   scripts/matrix.sh trixie forky          in these rows
#   scripts/matrix.sh trixie -- tap t/hosts_exclude.t   with arguments for test.sh
#   scripts/matrix.sh --write [ROW ...]     then write the table in docs/compatibility.md
#                                           from each row's last result of the short tier
#   scripts/matrix.sh --list                the rows
#
# A row is a Debian release in its own directory, made with debootstrap from the archive
# of this machine's apt, with the packages of scripts/deps.sh.  The directory stays in
# ${REDLOCK_MATRIX:-/var/cache/redlock_matrix}, beside the log of its last run; remove the
# directory to get newer packages.  Nothing else of the machine changes: processes of a row
# have their own mounts and process numbers, which end with them.
#
# In trixie-sanitize PostgreSQL and the extension are built with the address and the
# undefined-behaviour sanitizer (scripts/build_postgres.sh): a finding ends the process, and
# a test fails.  The row runs the same tests, fewer at a time because they are slow, and
# without pg_cron.
#
# Must run as root.  Prints a line for each row, and ends with "N passed, N failed", which
# counts rows.
set -eu

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$ROOT/scripts/roots.sh"

TABLE=$ROOT/docs/compatibility.md
ROWS="bookworm trixie trixie-valkey trixie-sanitize forky forky-valkey experimental pgserver16"

# Sets the release of row $1, and the environment of its scripts.
describe_row()
{
    RELEASE=$1
    ENVIRONMENT=()
    case $1 in
    bookworm | trixie | forky) ;;
    trixie-valkey | forky-valkey)
        RELEASE=${1%-valkey}
        ENVIRONMENT=(REDIS_SERVER=valkey-server)
        ;;
    trixie-sanitize)
        RELEASE=trixie
        ENVIRONMENT=(PG_CONFIG=/opt/sanitize/pg_config ASAN_OPTIONS=detect_leaks=0
            PG_TEST_TIMEOUT_DEFAULT=300 TAP_JOBS=2)
        ;;
    experimental)
        RELEASE=sid
        ENVIRONMENT=(PG_MAJOR=19)
        ;;
    pgserver16)
        RELEASE=trixie
        ENVIRONMENT=(PG_CONFIG=/opt/pgserver/pginstall/bin/pg_config)
        ;;
    *) die "there is no row \"$1\"; there are: $ROWS" ;;
    esac
}

# Runs a command in a new process group, which ends with us.  Sets STATUS.
CHILD=
attended()
{
    set -m
    "$@" &
    CHILD=$!
    set +m
    STATUS=0
    wait "$CHILD" || STATUS=$?
    CHILD=
}
trap '[ -z "$CHILD" ] || kill -KILL -- "-$CHILD"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# ---- a row's root ----

# Makes the root of row $1 if there is none.  The directory gets its name when complete.
make_root()
{
    local row=$1 root=$CACHE/$1 made=$CACHE/$1.new

    [ ! -e "$root" ] || return 0
    rm -rf "$made"
    make_bare_root "$made" "$RELEASE"
    case $row in
    experimental)
        sed -i 'p; s/ sid main$/ experimental main/' "$made/etc/apt/sources.list"
        # apt does not install from experimental by itself
        printf '%s\n' 'Package: src:postgresql-19 src:redis' 'Pin: release a=experimental' \
            'Pin-Priority: 990' >"$made/etc/apt/preferences.d/matrix"
        ;;
    trixie-sanitize) add_sanitized "$made" ;;
    pgserver16) add_pgserver "$made" ;;
    esac
    in_root "$made" "${ENVIRONMENT[@]}" /mnt/scripts/deps.sh
    rm -f "$made"/var/cache/apt/archives/*.deb
    mv "$made" "$root"
}

# Adds PostgreSQL 16 from a Python package, because no release of Debian has 16.  The Perl
# modules of the TAP tests are of the release's version.
add_pgserver()
{
    local opt=$1/opt/pgserver

    mkdir "$opt"
    python3 -m pip --no-cache-dir download --no-deps --only-binary :all: --python-version 3.11 \
        --platform manylinux2014_x86_64 --dest "$opt" pgserver==0.1.4
    # the programs look for libraries in ../../../pgserver.libs, which a copy lacks
    (cd "$opt" && python3 -m zipfile -e ./*.whl . && mv pgserver/pginstall . &&
        cp pgserver.libs/* pginstall/lib && chmod +x pginstall/bin/* &&
        find pginstall/lib/postgresql/pgxs -type f -exec chmod +x {} + &&
        rm -r ./*.whl pgserver pgserver.libs ./*.dist-info)
    in_root "$1" sh -ec 'cd /opt/pgserver
        apt-get -q update
        apt-get -q download postgresql-client-17
        dpkg -x ./*.deb client
        mv client/usr/lib/postgresql/17/lib/pgxs/src/test/perl pginstall/lib/postgresql/pgxs/src/test
        rm -r ./*.deb client'
}

# The release's PostgreSQL, built with sanitizers; the extension is built by its flags.
add_sanitized()
{
    in_root "$1" sh -ec '/mnt/scripts/deps.sh
        mkdir /opt/sanitize
        pg_config=$(REDLOCK_CACHE=/opt/sanitize /mnt/scripts/build_postgres.sh sanitize)
        ln -s "$pg_config" /opt/sanitize/pg_config'
}

# ---- a row's run ----

# Prints the versions of row $1: "PostgreSQL | hiredis | nodes".
versions_of()
{
    in_root "$CACHE/$1" "${ENVIRONMENT[@]}" bash -c '. /mnt/scripts/lib.sh
        "$(find_pg_config)" --version | sed "s/^PostgreSQL \([^ ]*\).*/\1/"
        sed -n "s/^#define HIREDIS_\(MAJOR\|MINOR\|PATCH\) //p" /usr/include/hiredis/hiredis.h |
            paste -sd .
        "$(find_redis_server)" --version | sed "s/ .* v=/ /; s/^Redis server/Redis/; s/ sha=.*//"' |
        paste -sd '|' | sed 's/|/ | /g'
}

# Runs the tests in row $1 with the other arguments for test.sh, and prints its line.
run_row()
{
    local row=$1 root=$CACHE/$1 log=$CACHE/$1.log seconds=$SECONDS versions result=
    shift

    describe_row "$row"
    attended make_root "$row" >"$log" 2>&1
    if [ $STATUS -eq 0 ]; then
        versions=$(versions_of "$row")
        attended in_root "$root" "${ENVIRONMENT[@]}" /mnt/scripts/test.sh "$@" >"$log" 2>&1
        result=$(tail -n 1 "$log")
    fi
    [[ $result =~ ^[0-9]+\ passed,\ [0-9]+\ failed$ ]] || result="no result"
    seconds=$((SECONDS - seconds))
    echo "$row | ${versions:-no root} | $result | $((seconds / 60)) min $((seconds % 60)) s"
    [ $# -gt 0 ] || echo "| $row | ${versions:-} | $(date -u +%F) | $result |" >"$CACHE/$row.result"
    if [[ $result =~ ^[1-9][0-9]*\ passed,\ 0\ failed$ ]]; then
        PASSED=$((PASSED + 1))
    else
        FAILED=$((FAILED + 1))
        grep -E '^t/.* FAILED|^(not ok|test .*FAILED)' "$log" || tail -n 5 "$log"
        echo "see $log"
    fi
}

# Puts the last result of each row into the table, between its markers.
write_table()
{
    local row rows=

    for row in $ROWS; do
        [ ! -e "$CACHE/$row.result" ] || rows+=$(cat "$CACHE/$row.result")$'\n'
    done
    ROWS_TEXT="| row | PostgreSQL | hiredis | nodes | date | tests |
|---|---|---|---|---|---|
$rows" perl -0pi -e 's/(<!-- matrix -->\n).*(?=<!-- end of matrix -->)/$1$ENV{ROWS_TEXT}/s
        or die "$ARGV has no markers for the table\n"' "$TABLE"
}

write=
rows=()
while [ $# -gt 0 ]; do
    case $1 in
    --list)
        echo "$ROWS"
        exit
        ;;
    --write) write=1 ;;
    --)
        shift
        break
        ;;
    *)
        describe_row "$1"
        rows+=("$1")
        ;;
    esac
    shift
done
[ ${#rows[@]} -gt 0 ] || read -ra rows <<<"$ROWS"
[ "$(id -u)" -eq 0 ] || die "this must run as root"
need_debootstrap

PASSED=0
FAILED=0
mkdir -p "$CACHE"
for row in "${rows[@]}"; do
    run_row "$row" "$@"
done
[ -z "$write" ] || write_table

echo "$PASSED passed, $FAILED failed"
[ $FAILED -eq 0 ]
