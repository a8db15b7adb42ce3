#!/bin/bash
# scripts/postgres_source.sh: get PostgreSQL's source, and print its path
#
# Prints the path of an archive with the upstream source of the PostgreSQL in use
# (PG_CONFIG or PG_MAJOR choose it), from the distribution's source package.  If
# this version is not available, takes another minor version of the same major
# version.  The archive stays in ${REDLOCK_CACHE:-~/.cache/redlock_pg}.
#
# apt does the work, with its mirrors, proxies and signatures.  apt gets a separate
# configuration, with the machine's sources as source packages, and separate
# directories, so the machine's apt does not change.  Fails without apt, or if no
# mirror answers.
set -eu

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

pg_config=$(find_pg_config)
[ -n "$pg_config" ] || die "no PostgreSQL found; set PG_CONFIG"
version=$("$pg_config" --version | sed 's/^PostgreSQL \([^ ]*\).*/\1/')
major=$(expr "$version" : '\([0-9]*\)')
cache=${REDLOCK_CACHE:-${XDG_CACHE_HOME:-${HOME:-/var/tmp}/.cache}/redlock_pg}
archive=$cache/source-for-postgresql-$version

if [ -e "$archive" ]; then
    echo "$archive"
    exit
fi
command -v apt-get >/dev/null || die "no apt-get here to get PostgreSQL's source with"

mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
mkdir -p "$work"/{sources,conf,lists/partial,archives/partial,out}

# The machine's configuration, without the commands after an update.
eval "$(apt-config shell list Dir::Etc::sourcelist/f lists Dir::Etc::sourceparts/d \
    parts Dir::Etc::parts/d)"
cp "$parts"/* "$work/conf" 2>/dev/null || true
cat >"$work/conf/zzz-private" <<CONF
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
CONF
cat >"$work/apt.conf" <<CONF
Dir::Etc::parts "$work/conf";
CONF

# The machine's sources, as sources of source packages.
for file in "$list" "$lists"/*.list; do
    if [ -e "$file" ]; then
        sed -n 's/^deb[[:space:]]/deb-src /p' "$file" >"$work/sources/$(basename "$file" .list).list"
    fi
done
for file in "$lists"/*.sources; do
    if [ -e "$file" ]; then
        sed 's/^Types:.*/Types: deb-src/' "$file" >"$work/sources/$(basename "$file")"
    fi
done

with_apt()
{
    local command=$1
    shift
    env LC_ALL=C APT_CONFIG="$work/apt.conf" "$command" -q -q \
        -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/sources" \
        -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/archives" \
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= \
        -o APT::Sandbox::User=root -o Acquire::http::Timeout=30 -o Acquire::Retries=1 "$@" </dev/null
}

# A source may fail to answer, if another source has the package.
with_apt apt-get update >"$work/log" 2>&1 || true
served=$(with_apt apt-cache --only-source showsrc "postgresql-$major" 2>/dev/null |
    sed -n 's/^Version: //p' | sort -rV)

cd "$work/out"
for candidate in $(grep -E "^([0-9]+:)?${version//./\\.}-" <<<"$served") $served; do
    if with_apt apt-get source --download-only --tar-only "postgresql-$major=$candidate" \
        >>"$work/log" 2>&1; then
        mv ./*.orig.tar.* "$archive"
        echo "$archive"
        exit
    fi
done
cat "$work/log" >&2
die "the source of PostgreSQL $version can't be had"
