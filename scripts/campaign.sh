#!/bin/bash
# scripts/campaign.sh: the long runs of the simulator, the chaos test and fuzzing; each writes its
# row of test/results.md, which adds up the rows
#
#   scripts/campaign.sh schedules [COUNT [FIRST SEED]]    3,000,000 from seed 10,000,001
#   scripts/campaign.sh mutants                           each must be killed
#   scripts/campaign.sh mutants generated [COUNT [SEED]]  200 of the generated mutants, seed 1
#   scripts/campaign.sh chaos [MINUTES [SEED]]            60 from seed 10,001
#   scripts/campaign.sh planted [NAME ...]                violations that porcupine must find
#   scripts/campaign.sh fuzz [COUNT [SEED]]               3,000,000 executions of each program, seed 1
#   scripts/campaign.sh soak [MINUTES]                    60; also writes bench/soak/results
#
# Ends with an error when an invariant was violated, fuzzing found a fault, memory grew, or a
# mutant or a planted violation was not found.
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
what=${1-}
[ $# -eq 0 ] || shift
log=$(mktemp)
trap 'rm -f "$log"' EXIT

case $what in
schedules)
    count=${1-3000000}
    first=${2-10000001}
    make -s -B test/sim/sim SIM_OPTIMIZE="-O3 -flto=auto"
    test/sim/sim --from "$first" --schedules "$count" --jobs "$(nproc)" | tee "$log" && failed=0 || failed=1
    scripts/record.pl "simulator: $count schedules from seed $first" \
        "$(grep -E '^# seed [0-9]+(:| violates)' "$log" | head -n 1 | sed 's/^# //' || true)$(tail -n 1 "$log" | grep passed || true)"
    ;;
mutants)
    if [ "${1-}" = generated ]; then
        count=${2-200}
        seed=${3-1}
        perl test/sim/generated_mutants.pl --sample "$count" --seed "$seed" | tee "$log" && failed=0 || failed=1
        scripts/record.pl "generated mutants: $count with seed $seed" "$(tail -n 1 "$log" | sed 's/^# //')"
        exit $failed
    fi
    perl test/sim/mutants.pl | tee "$log" && failed=0 || failed=1
    scripts/record.pl "mutants of what the simulator runs" "$(tail -n 1 "$log" | sed 's/^# //')"
    ;;
chaos)
    minutes=${1-60}
    seed=${2-10001}
    test/chaos/run --minutes "$minutes" --seed "$seed" 2>&1 | tee "$log" && failed=0 || failed=1
    scripts/record.pl "chaos: $minutes minutes from seed $seed" \
        "$(sed -n 's/^\(porcupine: .*\)/\1; /p' "$log" | tail -n 1)$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$log" | tail -n 1)"
    ;;
planted)
    failed=0
    [ $# -gt 0 ] || set -- $(sed -n 's/^\[\(.*\)\]$/\1/p' test/chaos/planted.txt)
    for name in "$@"; do
        # not each seed shows the violation
        for seed in 1 2 3; do
            test/chaos/run --minutes 4 --seed "$seed" --planted "$name" 2>&1 | tee "$log" || true
            ! grep -q '^planted: .* found in round' "$log" || break
        done
        grep -q '^planted: .* found in round' "$log" || failed=1
        result=$(sed -n 's/^planted: //p' "$log")
        scripts/record.pl "planted violation: $name" "${result:-no verdict}, seed $seed"
    done
    ;;
fuzz)
    count=${1-3000000}
    seed=${2-1}
    # The trace of comparisons leads to new branches, in CI; a campaign makes up to four times as many
    # executions without the trace.
    make -s -B fuzz_programs FUZZ_OPTIMIZE="-O2 -fno-sanitize-coverage=trace-cmp"
    test/fuzz/fuzz.pl --runs "$count" --seed "$seed" | tee "$log" && failed=0 || failed=1
    rm -f test/fuzz/*_fuzz # make fuzz builds them with the trace
    scripts/record.pl "fuzzing: $count executions of each program with seed $seed" \
        "$(grep -E '^not ok' "$log" | tr '\n' ' ')$(tail -n 1 "$log" | sed 's/^# //')"
    ;;
soak)
    minutes=${1-60}
    bench/soak/run --minutes "$minutes" --out bench/soak/results 2>&1 | tee "$log" && failed=0 || failed=1
    scripts/record.pl "soak: $minutes minutes" "$(sed -n 's/^soak: //p' "$log" | tail -n 1)"
    ;;
*)
    echo "usage: $0 schedules [COUNT [FIRST SEED]] | mutants [generated [COUNT [SEED]]] | chaos [MINUTES [SEED]] | planted [NAME ...] | fuzz [COUNT [SEED]] | soak [MINUTES]" >&2
    exit 2
    ;;
esac
exit $failed
