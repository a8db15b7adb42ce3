#!/bin/bash
# scripts/campaign.sh: the long runs of simulator and fuzzing; each writes its row of test/results.md
#
#   scripts/campaign.sh schedules [COUNT [FIRST SEED]]    3,000,000 from seed 10,000,001
#   scripts/campaign.sh mutants                           each must be killed
#   scripts/campaign.sh fuzz [COUNT]                      3,000,000 executions of each program
#
# Ends with an error when an invariant was violated, a mutant survived, or fuzzing found a fault.
set -eu

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
what=${1-}
count=${2-3000000}
first=${3-10000001}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

case $what in
schedules)
    make -s test/sim/sim
    test/sim/sim --from "$first" --schedules "$count" --jobs "$(nproc)" | tee "$log" && failed=0 || failed=1
    scripts/record.pl "simulator: $count schedules from seed $first" \
        "$(grep -E '^# seed [0-9]+ violates' "$log" | head -n 1 | sed 's/^# //' || true)$(tail -n 1 "$log" | grep passed || true)"
    ;;
mutants)
    perl test/sim/mutants.pl | tee "$log" && failed=0 || failed=1
    scripts/record.pl "mutants of what the simulator runs" "$(tail -n 1 "$log" | sed 's/^# //')"
    ;;
fuzz)
    make -s fuzz_programs
    test/fuzz/fuzz.pl --runs "$count" | tee "$log" && failed=0 || failed=1
    scripts/record.pl "fuzzing: executions of each program" \
        "$(grep -E '^not ok' "$log" | tr '\n' ' ')$(tail -n 1 "$log" | sed 's/^# //')"
    ;;
*)
    echo "usage: $0 schedules [COUNT [FIRST SEED]] | mutants | fuzz [COUNT]" >&2
    exit 2
    ;;
esac
exit $failed
