#!/bin/bash
# scripts/campaign.sh: the long runs of the simulator; each writes its row of test/results.md
#
#   scripts/campaign.sh schedules [COUNT [FIRST SEED]]    3,000,000 from seed 10,000,001
#   scripts/campaign.sh mutants                           each must be killed
#   scripts/campaign.sh mutants generated [COUNT [SEED]]  200 of the generated mutants, seed 1
#
# Ends with an error when an invariant was violated or a mutant survived.
set -eu

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
what=${1-}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

case $what in
schedules)
    count=${2-3000000}
    first=${3-10000001}
    make -s test/sim/sim
    test/sim/sim --from "$first" --schedules "$count" --jobs "$(nproc)" | tee "$log" && failed=0 || failed=1
    scripts/record.pl "simulator: $count schedules from seed $first" \
        "$(grep -E '^# seed [0-9]+ violates' "$log" | head -n 1 | sed 's/^# //' || true)$(tail -n 1 "$log" | grep passed || true)"
    ;;
mutants)
    if [ "${2-}" = generated ]; then
        count=${3-200}
        seed=${4-1}
        perl test/sim/generated_mutants.pl --sample "$count" --seed "$seed" | tee "$log" && failed=0 || failed=1
        scripts/record.pl "generated mutants: $count with seed $seed" "$(tail -n 1 "$log" | sed 's/^# //')"
        exit $failed
    fi
    perl test/sim/mutants.pl | tee "$log" && failed=0 || failed=1
    scripts/record.pl "mutants of what the simulator runs" "$(tail -n 1 "$log" | sed 's/^# //')"
    ;;
*)
    echo "usage: $0 schedules [COUNT [FIRST SEED]] | mutants [generated [COUNT [SEED]]]" >&2
    exit 2
    ;;
esac
exit $failed
