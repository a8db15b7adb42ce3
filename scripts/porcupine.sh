#!/bin/bash
# scripts/porcupine.sh: build the independent checker of test/chaos, and print its path
#
# The program stays in ${REDLOCK_CACHE:-~/.cache/redlock_pg}/porcupine.  The script first runs
# the program's tests, made-up histories.  Without Go, the script prints a message and no path.
# With CI=true, a lack of Go is a failure.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
export PEERS_BUILD_DIR=${REDLOCK_CACHE:-${HOME:-/nowhere}/.cache/redlock_pg}
mkdir -p "$PEERS_BUILD_DIR"
log=$PEERS_BUILD_DIR/porcupine.log
if "$root/test/chaos/porcupine/install" >"$log" 2>&1; then
    echo "$PEERS_BUILD_DIR/porcupine/check"
    exit
fi
if grep -q '^skipped: ' "$log" && [ "${CI-}" != true ]; then
    echo "the independent checker is left out: $(tail -n 1 "$log")" >&2
    exit
fi
cat "$log" >&2
exit 1
