#!/bin/bash
# scripts/drivers.sh: build the programs of test/drivers that can be built here, and print
# the directory in which they are
#
# They stay in ${REDLOCK_CACHE:-~/.cache/redlock_pg}/drivers.  A driver whose tools this
# machine lacks is skipped, with a message; with CI=true that is a failure, since its test
# would be skipped, too.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
export PEERS_BUILD_DIR=${REDLOCK_CACHE:-${HOME:-/nowhere}/.cache/redlock_pg}/drivers
mkdir -p "$PEERS_BUILD_DIR"
for install in "$root"/test/drivers/*/install; do
    name=$(basename "$(dirname "$install")")
    log=$PEERS_BUILD_DIR/$name.log
    if ! "$install" >"$log" 2>&1; then
        echo "driver $name is left out: $(tail -n 1 "$log")" >&2
        [ "${CI-}" != true ] || exit 1
    fi
done
echo "$PEERS_BUILD_DIR"
