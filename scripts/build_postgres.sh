#!/bin/bash
# scripts/build_postgres.sh: build PostgreSQL with checks that packages leave out
#
#   scripts/build_postgres.sh cassert     with assertions
#   scripts/build_postgres.sh sanitize    with assertions, the address sanitizer and
#                                         the undefined-behaviour sanitizer
#
# Prints the path of the new pg_config, for PG_CONFIG of scripts/test.sh.
# scripts/postgres_source.sh gets the source.  The build stays in
# ${REDLOCK_CACHE:-~/.cache/redlock_pg}, and is made once.  On two cores a build takes
# two minutes, or six.
set -eu

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

flags="-O1 -g -fno-omit-frame-pointer"
case "${1-}" in
cassert) ;;
sanitize) flags+=" -fsanitize=address,undefined -fno-sanitize=alignment" ;;
*)
    echo "usage: $0 cassert | sanitize" >&2
    exit 2
    ;;
esac
flavour=$1

source=$("$ROOT/scripts/postgres_source.sh")
cache=$(dirname "$source")
# the source's own version
version=$(tar -tf "$source" 2>/dev/null | sed -n '1s/^postgresql-\([^/]*\).*/\1/p') || true
prefix=$cache/postgresql-$version-$flavour

if [ ! -e "$prefix/bin/pg_config" ]; then
    "$ROOT/scripts/deps.sh" --postgres >&2
    work=$(mktemp -d "$prefix.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    echo "building PostgreSQL $version with $flags" >&2
    (
        cd "$work"
        tar --strip-components=1 -xf "$source"
        ./configure --prefix="$work/installed" --enable-cassert --enable-debug \
            --enable-tap-tests --without-readline --without-zlib --without-icu CFLAGS="$flags"
        make -j2
        make install
        for module in pg_stat_statements auto_explain spi; do
            make -C contrib/$module install
        done
    ) >"$prefix.log" 2>&1 || {
        tail -n 40 "$prefix.log" >&2
        die "the build failed; see $prefix.log"
    }
    # PostgreSQL finds its files relative to its programs
    mv "$work/installed" "$prefix"
    # scripts/postgres_source.sh finds this source for the new pg_config
    [ -e "$cache/source-for-postgresql-$version" ] ||
        ln -s "$(basename "$source")" "$cache/source-for-postgresql-$version"
fi
echo "$prefix/bin/pg_config"
