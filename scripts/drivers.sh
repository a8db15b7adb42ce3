#!/bin/bash
# scripts/drivers.sh: build the programs of test/drivers, and print their directory
#
# The programs stay in ${REDLOCK_CACHE:-~/.cache/redlock_pg}/drivers.  If this machine lacks
# the tools for a driver, the driver is skipped, with a message.  With CI=true this is a
# failure, because the driver's test would be skipped, too.
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
