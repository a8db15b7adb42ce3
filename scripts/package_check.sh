#!/bin/bash
# scripts/package_check.sh: build Debian's packages, install them and use them
#
#   scripts/package_check.sh                  for bookworm and trixie
#   scripts/package_check.sh RELEASE ...      for these releases of Debian
#
# For each release, in its own root (scripts/roots.sh): builds the packages from the
# archive of "make dist" and from debian/, runs lintian, checks the lists of files,
# installs the packages, runs scripts/demo.sh with them, and removes them.  At last runs
# pg_upgrade from the first release's PostgreSQL to the last release's, with the packages
# of both (scripts/pg_upgrade_check.sh).
#
# Must run as root.  The packages remain in packages/ of each root.  Ends with
# "N passed, N failed".
set -eu

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
. "$ROOT/scripts/roots.sh"

# ---- in a root ----

SERVER_TOOLS="perl redis-server"
BUILD_TOOLS="build-essential debhelper libhiredis-dev lintian postgresql-server-dev-all unzip"

apt() { apt-get -q -y -o Dpkg::Use-Pty=0 "$@"; }
install_packages() { apt install --no-install-recommends "$@"; }

# Prepares a root in which no server starts, and no cluster is created.
prepare()
{
    mkdir -p /etc/postgresql-common/createcluster.d
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
    echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.d/redlock_pg.conf
    apt update
    install_packages $SERVER_TOOLS $BUILD_TOOLS
}

build()
{
    local name version tree pg_config

    rm -rf /packages/built
    mkdir /packages/built
    cd /packages/built
    unzip -q ../redlock_pg-*.zip
    tree=$(echo redlock_pg-*)
    version=${tree#redlock_pg-}
    name=redlock-pg
    # as users of the archive do
    pg_config=$(ls /usr/lib/postgresql/*/bin/pg_config | sort -V | tail -n 1)
    make -s -C "$tree" PG_CONFIG="$pg_config"
    make -s -C "$tree" PG_CONFIG="$pg_config" DESTDIR=/packages/built/installed install
    rm -rf "$tree" installed
    unzip -q ../redlock_pg-*.zip
    tar -czf "${name}_$version.orig.tar.gz" "$tree"
    cp -r /mnt/debian "$tree"
    cd "$tree"
    pg_buildext updatecontrol
    dpkg-buildpackage -us -uc
}

check_lintian() { lintian --allow-root --fail-on error /packages/built/*.changes; }

# Prints the lists of files, and fails if a file is missing.
check_files()
{
    local deb list major file missing=0

    for deb in /packages/built/postgresql-*-redlock_*.deb; do
        major=${deb##*/postgresql-}
        major=${major%%-*}
        list=$(dpkg -c "$deb")
        echo "$list"
        for file in "usr/lib/postgresql/$major/lib/redlock_pg.so" \
            "usr/lib/postgresql/$major/bin/redlock-exec" \
            $(cd /mnt && ls redlock_pg.control redlock_pg--*.sql |
                sed "s|^|usr/share/postgresql/$major/extension/|") \
            $(cd /mnt && ls README.md docs/*.md docs/*/*.md monitoring/*/* |
                sed "s|^|usr/share/doc/postgresql-$major-redlock/|"); do
            # long documents are compressed
            grep -qE " \./$file(\.gz)?$" <<<"$list" || {
                echo "missing in $(basename "$deb"): $file"
                missing=1
            }
        done
        dpkg -I "$deb" | grep -E '^ (Depends|Version):'
    done
    return $missing
}

check_installed()
{
    install_packages /packages/built/postgresql-*-redlock_*.deb
    # apt has installed the server, too
    (cd /mnt && debian/tests/demo)
    apt purge 'postgresql-*-redlock'
    ! ls -d /usr/lib/postgresql/*/lib/redlock_pg* /usr/lib/postgresql/*/bin/redlock-exec /usr/share/postgresql/*/extension/redlock_pg* \
        /usr/share/doc/*redlock* 2>/dev/null
}

# Runs pg_upgrade, with the other release's PostgreSQL beside this release's.
check_pg_upgrade()
{
    local mirror=$1 release=$2 old new

    echo "deb $mirror $release main" >/etc/apt/sources.list.d/old.list
    printf 'Package: *\nPin: release n=%s\nPin-Priority: 100\n' "$release" >/etc/apt/preferences.d/old
    apt update
    install_packages /packages/old/postgresql-*-redlock_*.deb /packages/built/postgresql-*-redlock_*.deb
    for old in $(find_extensions | head -n 1); do
        for new in $(find_extensions | tail -n 1); do
            PG_CONFIG=$new /mnt/scripts/pg_upgrade_check.sh "$old"
        done
    done
}

# pg_config of each PostgreSQL that has the extension, older ones first
find_extensions()
{
    local library

    for library in $(ls /usr/lib/postgresql/*/lib/redlock_pg.so | sort -V); do
        echo "${library%/lib/*}/bin/pg_config"
    done
}

if [ "${1-}" = --inside ]; then
    shift
    "$@"
    exit
fi

# ---- on the machine ----

[ "$(id -u)" -eq 0 ] || die "must run as root"
need_debootstrap
[ $# -gt 0 ] || set -- bookworm trixie

PASSED=0
FAILED=0
LOG=$(mktemp)
trap 'rm -f "$LOG"' EXIT

# Runs a step in the root of release $1; shows the output if $3 is not empty, or if the
# step fails.
step()
{
    local release=$1 what=$2 shown=$3
    shift 3

    printf '== %s: %s\n' "$release" "$what"
    if in_root "$CACHE/package-$release" /mnt/scripts/package_check.sh --inside "$@" >"$LOG" 2>&1; then
        PASSED=$((PASSED + 1))
        [ -z "$shown" ] || cat "$LOG"
        return 0
    fi
    FAILED=$((FAILED + 1))
    cat "$LOG"
    echo "== $release: FAILED: $what"
    return 1
}

make_root()
{
    local root=$CACHE/package-$1

    [ ! -e "$root" ] || return 0
    echo "== $1: making its root"
    rm -rf "$root.new"
    make_bare_root "$root.new" "$1" >"$LOG" 2>&1 || {
        cat "$LOG"
        die "no root of $1"
    }
    mv "$root.new" "$root"
}

cd "$ROOT"
make -s PG_CONFIG="$(find_pg_config)" dist
archive=$(ls redlock_pg-*.zip)
for release; do
    make_root "$release"
    mkdir -p "$CACHE/package-$release/packages"
    rm -f "$CACHE/package-$release"/packages/*.zip
    cp "$archive" "$CACHE/package-$release/packages"
    step "$release" "tools" "" prepare &&
        step "$release" "build" "" build &&
        step "$release" "lintian" yes check_lintian &&
        step "$release" "files" yes check_files &&
        step "$release" "install, demo, remove" yes check_installed || true
done
rm -f "$archive"

if [ $# -gt 1 ] && [ $FAILED -eq 0 ]; then
    first=$1
    last=${*: -1}
    rm -rf "$CACHE/package-$last/packages/old"
    cp -r "$CACHE/package-$first/packages/built" "$CACHE/package-$last/packages/old"
    step "$last" "pg_upgrade from that of $first" yes check_pg_upgrade "$(mirror_of "$first")" "$first" || true
fi

echo
echo "$PASSED passed, $FAILED failed"
[ $FAILED -eq 0 ]
