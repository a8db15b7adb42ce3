#!/bin/bash
# bench/pauses.sh: what a paused holder of a lock does to the data
#
#   bench/pauses.sh [ROUNDS]     20 by default
#
# Two hosts, five Redis nodes.  In each round a session takes the lock and reads an
# amount, is stopped (SIGSTOP) until its lease has ended and the other host has
# taken the lock and added one to the amount, goes on (SIGCONT), adds one to what
# it had read, and commits.  Counted are the commits that were refused, and the
# updates of the other host that were lost:
#
#   commit guard                  the session that writes holds the lock
#   fence only                    the lock is held elsewhere; the transaction that
#                                 writes passes the fence with the lock's token
#   lease only, checked before    the lock is held elsewhere and was valid when it
#                                 was looked at, as with any lock service
#
# The rounds are those of t/010_pauses.t.  Fails if one of them went otherwise than
# it must: with the guard or the fence nothing is lost.
set -eu

. "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

[[ $# -le 1 && ${1-20} =~ ^[1-9][0-9]*$ ]] || {
    echo "usage: $0 [ROUNDS]" >&2
    exit 2
}

if [ -z "${REDLOCK_INNER-}" ]; then
    "$ROOT/scripts/deps.sh"
    run_in_private_copy bench/pauses.sh "$@"
fi

begin_inner
build_and_install
pgxs=$(dirname "$("$PG_CONFIG" --pgxs)")
mkdir -p tmp_check/log
ROUNDS=${1-20} TESTDIR=$PWD TESTDATADIR=$PWD/tmp_check TESTLOGDIR=$PWD/tmp_check/log \
    PG_REGRESS=$pgxs/../../src/test/regress/pg_regress \
    prove --verbose -I t -I "$pgxs/../../src/test/perl" t/010_pauses.t \
    >"$TMP/pauses.log" 2>&1 && status=0 || status=$?
sed -n '/^# paused holder/,/^# lease only/s/^# //p' "$TMP/pauses.log"
if [ $status -ne 0 ]; then
    grep -A 8 '^not ok' "$TMP/pauses.log" || tail -n 30 "$TMP/pauses.log"
fi
exit $status
