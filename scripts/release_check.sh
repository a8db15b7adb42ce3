#!/bin/bash
# scripts/release_check.sh: the checks before a release, besides scripts/test.sh
#
# Runs all tests on servers, PostgreSQL's own too, on a PostgreSQL with assertions and
# on one with sanitizers (scripts/build_postgres.sh).  An hour or more on two cores.
# Ends with a line for each part, and with an error if a part failed.
#
#   scripts/release_check.sh [cassert | sanitize]...    these only
set -eu

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
[ $# -gt 0 ] || set -- cassert sanitize

summary=
failed=0
for flavour in "$@"; do
    PG_CONFIG=$(scripts/build_postgres.sh "$flavour")
    export PG_CONFIG
    [ "$flavour" != sanitize ] || export PG_TEST_TIMEOUT_DEFAULT=300
    for part in regress tap guest; do
        echo
        echo "==== $flavour: $part"
        log=$(mktemp)
        CI=true scripts/test.sh $part 2>&1 | tee "$log" || true
        result=$(tail -n 1 "$log")
        rm -f "$log"
        summary+="$("$PG_CONFIG" --version), $flavour, $part: $result"$'\n'
        scripts/record.pl "$("$PG_CONFIG" --version) with $flavour: $part" "$result"
        [[ $result =~ ^[1-9][0-9]*\ passed,\ 0\ failed$ ]] || failed=1
    done
done

echo
echo "==== $(git describe --always --dirty 2>/dev/null || true)"
echo -n "$summary"
exit $failed
