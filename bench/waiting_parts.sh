# bench/waiting_parts.sh: the measurements of bench/waiting.sh, which sources it
#
# Each part_* function runs in a subshell under "set -e", prints a table and its
# targets, and writes every figure with csv.

DEADLOCK_TIMEOUT_MS=1000

# ------------------------------------------------------------------
# Figures
# ------------------------------------------------------------------

heading() { printf '\n== %s\n' "$*"; }

# csv PART CASE SESSIONS ROUND METRIC VALUE
csv()
{
    local IFS=,

    echo "$*" >&3
}

# A name for the figures of one case over the rounds, one a line.
figures() { echo "$TMP/figures.$(IFS=.; echo "$*")"; }

median() { quantile 50; }

# The $1-th percentile of the numbers in standard input; fails if there is none.
quantile()
{
    sort -g | awk -v p="$1" '
        { v[NR] = $1 }
        END {
            if (NR == 0)
                exit 1
            at = 1 + (NR - 1) * p / 100
            low = int(at)
            high = low < NR ? low + 1 : low
            print v[low] + (v[high] - v[low]) * (at - low)
        }'
}

# calc EXPRESSION [DIGITS]
calc() { awk "BEGIN { printf \"%.${2-2}f\", $1 }"; }

# target WHAT VALUE OPERATOR LIMIT
target()
{
    local word=missed

    if awk "BEGIN { exit !($2 $3 $4) }"; then
        word=met
    fi
    printf 'target %-49s %10s %s %-8s %s\n' "$1" "$2" "$3" "$4" "$word"
}

# ------------------------------------------------------------------
# Servers
# ------------------------------------------------------------------

wait_for_all_ready()
{
    wait_for_value "$1" "SELECT count(*) FROM redlock_nodes WHERE state = 'ready'" ${#NODES[@]}
}

pgbench_on()
{
    local host=$1
    shift

    pgbench -n -h "$TMP/tmp" -p "${PG_PORT[$host]}" "$@" postgres 2>&1
}

# Prints the transactions per second of pgbench on host $1 with $2 sessions for
# $3 s and script $4.
pgbench_tps()
{
    local out

    if ! out=$(pgbench_on "$1" -c "$2" -j 2 -T "$3" -M prepared -f "$4") ||
        ! grep -q '^number of failed transactions: 0 ' <<<"$out"; then
        echo "$out" >&2
        return 1
    fi
    sed -n 's/^tps = \([0-9.]*\) .*/\1/p' <<<"$out"
}

# Round trips in ms of 50 PINGs to port $1, one a line.
round_trips()
{
    perl -MIO::Socket::INET -MTime::HiRes=time -e '
        my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1",
            PeerPort => shift, Proto => "tcp") or die "connect: $!\n";
        for (1 .. 50) {
            my $began = time;
            syswrite $s, "PING\r\n";
            sysread($s, my $reply, 64) or die "no answer\n";
            printf "%.3f\n", (time - $began) * 1000;
        }' "$1"
}

# Turns hand-over on host $1 on or off.
handover()
{
    local is

    case $2 in
    off)
        value_on "$1" "ALTER SYSTEM SET redlock.handover_limit = 0"
        is="setting = '0'"
        ;;
    on)
        value_on "$1" "ALTER SYSTEM RESET redlock.handover_limit"
        is="setting = boot_val"
        ;;
    esac
    value_on "$1" "SELECT pg_reload_conf()" >/dev/null
    wait_for_value "$1" "SELECT $is FROM pg_settings WHERE name = 'redlock.handover_limit'" t
}

# ------------------------------------------------------------------
# local: many sessions of one host contend for one resource
# ------------------------------------------------------------------

LOCAL_CASES=(advisory redlock no-handover delayed delayed-no-handover)

# local_round CASE SESSIONS ROUND
local_round()
{
    local case=$1 host=a script=$TMP/local.redlock.sql tps

    case $case in
    advisory) script=$TMP/local.advisory.sql ;;
    delayed*) host=near ;;
    esac
    if [[ $case == *no-handover ]]; then
        handover $host off
    fi
    tps=$(pgbench_tps $host "$2" "$LOCAL_S" "$script")
    if [[ $case == *no-handover ]]; then
        handover $host on
    fi
    echo "$tps" >>"$(figures local "$case" "$2")"
    csv local "$case" "$2" "$3" pairs_per_s "$tps"
}

part_local()
{
    local round sessions case i
    declare -A pairs

    heading "local: sessions of one host contend for one resource, pairs of acquire and release per second"
    # A pair in one statement: with one each, most of what is measured is the
    # protocol between pgbench and the server, the same for all.
    cat >"$TMP/local.advisory.sql" <<SQL
SELECT pg_advisory_lock(1), pg_advisory_unlock(1);
SQL
    cat >"$TMP/local.redlock.sql" <<SQL
SELECT redlock_acquire('local', scope => 'session'), redlock_release('local');
SQL

    for ((round = 1; round <= LOCAL_ROUNDS; round++)); do
        for sessions in 16 64; do
            # there and back again, so that no case always follows the same one
            for ((i = 0; i < ${#LOCAL_CASES[@]}; i++)); do
                case=${LOCAL_CASES[$((round % 2 ? i : ${#LOCAL_CASES[@]} - 1 - i))]}
                local_round "$case" $sessions $round
            done
        done
    done

    printf '%-34s %12s %12s\n' "median of $LOCAL_ROUNDS rounds of $LOCAL_S s" "16 sessions" "64 sessions"
    for case in "${LOCAL_CASES[@]}"; do
        for sessions in 16 64; do
            pairs[$case.$sessions]=$(median <"$(figures local "$case" $sessions)")
        done
        printf '%-34s %12.0f %12.0f\n' "$(local_label "$case")" \
            "${pairs[$case.16]}" "${pairs[$case.64]}"
    done
    # what the last ratio would be if a hand-over cost what an advisory lock costs
    printf '%-34s %12s %12s\n' "pg_advisory_lock / the last line" \
        "$(calc "${pairs[advisory.16]} / ${pairs[delayed-no-handover.16]}")" \
        "$(calc "${pairs[advisory.64]} / ${pairs[delayed-no-handover.64]}")"
    printf '%-34s %12.2f\n' "round trip to a node 0.5 ms away" "$(round_trips "$NEAR_PORT" | median)"
    for sessions in 16 64; do
        target "redlock / advisory, $sessions sessions" \
            "$(calc "${pairs[redlock.$sessions]} / ${pairs[advisory.$sessions]}")" '>=' 0.8
        target "redlock / no hand-over, $sessions sessions" \
            "$(calc "${pairs[redlock.$sessions]} / ${pairs[no-handover.$sessions]}")" '>=' 2.5
        target "the same with 0.5 ms of delay, $sessions sessions" \
            "$(calc "${pairs[delayed.$sessions]} / ${pairs[delayed-no-handover.$sessions]}")" '>=' 10
    done
}

local_label()
{
    case $1 in
    advisory) echo "pg_advisory_lock" ;;
    redlock) echo "redlock" ;;
    no-handover) echo "redlock, no hand-over" ;;
    delayed) echo "redlock, 0.5 ms away" ;;
    delayed-no-handover) echo "redlock, 0.5 ms away, no hand-over" ;;
    esac
}

# ------------------------------------------------------------------
# hosts: two hosts contend for one resource
# ------------------------------------------------------------------

# The waits in ms of the transactions that ended in the run that began at $1, by
# pgbench's logs with prefix $2.  What one host did while the other had not
# begun yet, or was done, does not count.
waits_in()
{
    cat "$2".* | awk -v from="$1" -v length_s="$HOSTS_S" '
        { end = $5 + $6 / 1e6 }
        end > from + 0.5 && end < from + length_s { print $3 / 1000 }'
}

hosts_round()
{
    local round=$1 host began pids=()

    rm -f "$TMP"/hosts.log.*
    began=$EPOCHREALTIME
    for host in a b; do
        pgbench_on $host -c 8 -j 1 -T "$HOSTS_S" -M prepared -f "$TMP/hosts.sql" \
            --log --log-prefix="$TMP/hosts.log.$host" >"$TMP/hosts.out.$host" &
        pids+=($!)
    done
    for host in a b; do
        wait "${pids[0]}" || {
            cat "$TMP/hosts.out.$host" >&2
            return 1
        }
        pids=("${pids[@]:1}")
    done
    for host in a b; do
        waits_in "$began" "$TMP/hosts.log.$host" >"$TMP/hosts.waits.$host"
        cat "$TMP/hosts.waits.$host" >>"$(figures hosts $host)"
        csv hosts $host 8 "$round" grants "$(wc -l <"$TMP/hosts.waits.$host")"
        csv hosts $host 8 "$round" wait_p50_ms "$(quantile 50 <"$TMP/hosts.waits.$host")"
        csv hosts $host 8 "$round" wait_p99_ms "$(quantile 99 <"$TMP/hosts.waits.$host")"
        csv hosts $host 8 "$round" wait_max_ms "$(quantile 100 <"$TMP/hosts.waits.$host")"
    done
}

part_hosts()
{
    local round host all count share lowest=100

    heading "hosts: two hosts contend for one resource, 8 sessions each"
    cat >"$TMP/hosts.sql" <<SQL
SELECT redlock_acquire('hosts', scope => 'session');
SELECT redlock_release('hosts');
SQL
    for ((round = 1; round <= HOSTS_ROUNDS; round++)); do
        hosts_round $round
    done

    all=$(cat "$(figures hosts a)" "$(figures hosts b)" | wc -l)
    printf '%-34s %10s %7s %10s %10s %10s\n' "$HOSTS_ROUNDS rounds of $HOSTS_S s" \
        "grants" "share" "p50 ms" "p99 ms" "longest ms"
    for host in a b; do
        count=$(wc -l <"$(figures hosts $host)")
        share=$(calc "100 * $count / $all" 1)
        printf '%-34s %10d %6s%% %10.2f %10.2f %10.2f\n' "host $host" "$count" "$share" \
            "$(quantile 50 <"$(figures hosts $host)")" \
            "$(quantile 99 <"$(figures hosts $host)")" \
            "$(quantile 100 <"$(figures hosts $host)")"
        lowest=$(calc "$share < $lowest ? $share : $lowest" 1)
    done
    target "share of the host that got less, %" "$lowest" '>=' 40
}

# ------------------------------------------------------------------
# wake: from a release on one host to the grant on another
# ------------------------------------------------------------------

wake_round()
{
    local round=$1 host pids=()

    for host in far_a far_b; do
        psql_on $host -Atq -v ON_ERROR_STOP=1 -f "$TMP/wake.sql" >"$TMP/wake.out.$host" &
        pids+=($!)
    done
    wait "${pids[0]}"
    wait "${pids[1]}"
    round_trips "$FAR_PORT" >>"$(figures wake round_trip)"

    # asked, granted, released.  Of interest is a grant to one who had asked
    # before the other host released.
    for host in far_a far_b; do
        sed "s/^/$host /" "$TMP/wake.out.$host"
    done | sort -g -k 3,3 | awk '
        NR > 1 && $1 != host && $2 < released { printf "%.3f\n", ($3 - released) * 1000 }
        { host = $1; released = $4 }' >"$TMP/wake.ms"
    [ -s "$TMP/wake.ms" ]
    cat "$TMP/wake.ms" >>"$(figures wake grant)"
    csv wake delayed 2 "$round" release_to_grant_p50_ms "$(median <"$TMP/wake.ms")"
    csv wake delayed 2 "$round" release_to_grant_max_ms "$(quantile 100 <"$TMP/wake.ms")"
}

part_wake()
{
    local round trip_ms grant_ms

    heading "wake: from a release on one host to the grant on another, nodes 5 ms away"
    cat >"$TMP/wake.sql" <<SQL
CREATE TEMP TABLE wake (asked timestamptz, granted timestamptz, released timestamptz);
DO \$\$
DECLARE
asked timestamptz;
granted timestamptz;
released timestamptz;
BEGIN
FOR i IN 1 .. $WAKE_TURNS LOOP
asked := clock_timestamp();
PERFORM redlock_acquire('wake', scope => 'session');
granted := clock_timestamp();
PERFORM pg_sleep(0.05);
released := clock_timestamp();
PERFORM redlock_release('wake');
INSERT INTO wake VALUES (asked, granted, released);
PERFORM pg_sleep(0.02);
END LOOP;
END \$\$;
SELECT format('%s %s %s', extract(epoch FROM asked), extract(epoch FROM granted),
  extract(epoch FROM released)) FROM wake;
SQL
    round_trips "$FAR_PORT" >"$(figures wake round_trip)"
    for ((round = 1; round <= WAKE_ROUNDS; round++)); do
        wake_round $round
    done

    trip_ms=$(median <"$(figures wake round_trip)")
    grant_ms=$(median <"$(figures wake grant)")
    csv wake delayed 2 0 round_trip_p50_ms "$trip_ms"
    printf '%-34s %10s %10s %10s\n' "ms" "median" "p95" "longest"
    printf '%-34s %10.2f %10.2f %10.2f\n' "round trip to a node" "$trip_ms" \
        "$(quantile 95 <"$(figures wake round_trip)")" "$(quantile 100 <"$(figures wake round_trip)")"
    printf '%-34s %10.2f %10.2f %10.2f\n' "release to grant, $(wc -l <"$(figures wake grant)") times" \
        "$grant_ms" "$(quantile 95 <"$(figures wake grant)")" \
        "$(quantile 100 <"$(figures wake grant)")"
    target "release to grant, ms: 3 round trips + 1 ms" \
        "$(calc "$grant_ms")" '<' "$(calc "3 * $trip_ms + 1")"
}

# ------------------------------------------------------------------
# commands: what many sessions that wait send to a node
# ------------------------------------------------------------------

# Prints for each node how many commands it has counted until now, INFO
# excepted, and how many of them were sent: the others were called by scripts.
commands_counted()
{
    local node

    for node in "${NODES[@]}"; do
        redis-cli -h 127.0.0.1 -p "${REDIS_PORT[$node]}" info commandstats |
            awk -F '[:=,]' '
                /^cmdstat_/ && !/^cmdstat_info:/ { all += $3 }
                /^cmdstat_(set|get|del|pttl|pexpire|publish):/ { called += $3 }
                END { print all + 0, all - called }'
    done
}

# commands_round SESSIONS ROUND
commands_round()
{
    local sessions=$1 round=$2 pid= before after began ended i all sent all_before sent_before

    if [ "$sessions" -gt 0 ]; then
        pgbench_on a -c "$sessions" -j 2 -t 1 -f "$TMP/commands.sql" >"$TMP/commands.out" &
        pid=$!
        wait_for_value a "SELECT count(*) FROM redlock_locks WHERE state IN ('waiting', 'queued')" \
            "$sessions" || {
            cat "$TMP/commands.out" >&2
            return 1
        }
        # the first asks, and the subscription
        sleep 1
    fi

    mapfile -t before < <(commands_counted)
    began=$EPOCHREALTIME
    sleep "$COMMANDS_S"
    mapfile -t after < <(commands_counted)
    ended=$EPOCHREALTIME
    for i in "${!NODES[@]}"; do
        read -r all_before sent_before <<<"${before[$i]}"
        read -r all sent <<<"${after[$i]}"
        all=$(calc "($all - $all_before) / ($ended - $began)")
        sent=$(calc "($sent - $sent_before) / ($ended - $began)")
        echo "$all" >>"$(figures commands "$sessions" all)"
        echo "$sent" >>"$(figures commands "$sessions" sent)"
        csv commands "${NODES[$i]}" "$sessions" "$round" commands_per_s "$all"
        csv commands "${NODES[$i]}" "$sessions" "$round" sent_per_s "$sent"
    done

    if [ -n "$pid" ]; then
        value_on a "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                     WHERE application_name = 'pgbench'" >/dev/null
        wait "$pid" || true
        wait_for_value a "SELECT count(*) FROM redlock_locks" 0
    fi
}

part_commands()
{
    local round sessions holder
    declare -A rate

    heading "commands: sessions of one host wait for a lock that another host holds"
    echo "SELECT redlock_acquire('commands', scope => 'session');" >"$TMP/commands.sql"
    PGAPPNAME=holder psql_on b -Atq -c "SELECT redlock_acquire('commands', scope => 'session')" \
        -c "SELECT pg_sleep(3600)" >"$TMP/commands.holder" 2>&1 &
    holder=$!
    wait_for_value b "SELECT count(*) FROM redlock_locks WHERE state = 'held'" 1

    for ((round = 1; round <= COMMANDS_ROUNDS; round++)); do
        for sessions in 0 1 50 200; do
            commands_round $sessions $round
        done
    done
    value_on b "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                 WHERE application_name = 'holder'" >/dev/null
    wait $holder || true

    printf '%-34s %12s %16s\n' "a node and second, median" "commands" "without scripts'"
    for sessions in 0 1 50 200; do
        rate[$sessions]=$(median <"$(figures commands $sessions all)")
        printf '%-34s %12.2f %16.2f\n' "$sessions sessions wait" "${rate[$sessions]}" \
            "$(median <"$(figures commands $sessions sent)")"
    done
    target "commands, 200 sessions / 1 session" "$(calc "${rate[200]} / ${rate[1]}")" '<=' 1.5
}

# ------------------------------------------------------------------
# stopped: acquire while two of five nodes are stopped
# ------------------------------------------------------------------

# stopped_round CASE ROUND
stopped_round()
{
    local case=$1 round=$2 node out releasing ms=$TMP/stopped.ms stopped=()

    rm -f "$TMP"/stopped.log.*
    if [ "$case" = stopped ]; then
        # another two in each round
        stopped=("${NODES[$((2 * round % 5))]}" "${NODES[$(((2 * round + 1) % 5))]}")
    fi
    for node in ${stopped[@]+"${stopped[@]}"}; do
        kill -STOP "${REDIS_PID[$node]}"
    done
    out=$(pgbench_on a -c 1 -T "$STOPPED_S" -M prepared -f "$TMP/stopped.sql" \
        --log --log-prefix="$TMP/stopped.log") || {
        echo "$out" >&2
        return 1
    }
    releasing=$(value_on a "SELECT count(*) FROM redlock_locks WHERE state = 'releasing'")
    for node in ${stopped[@]+"${stopped[@]}"}; do
        kill -CONT "${REDIS_PID[$node]}"
    done
    wait_for_all_ready a
    # paid debts are no part of the next round
    wait_for_value a "SELECT count(*) FROM redlock_locks" 0

    awk '{ print $3 / 1000 }' "$TMP"/stopped.log.* >"$ms"
    median <"$ms" >>"$(figures stopped "$case" p50)"
    head -n 1 "$ms" >>"$(figures stopped "$case" first)"
    cat "$ms" >>"$(figures stopped "$case" all)"
    echo "$releasing" >>"$(figures stopped "$case" releasing)"
    csv stopped "$case" 1 "$round" releasing "$releasing"
    csv stopped "$case" 1 "$round" acquire_p50_ms "$(median <"$ms")"
    csv stopped "$case" 1 "$round" acquire_first_ms "$(head -n 1 "$ms")"
    csv stopped "$case" 1 "$round" acquire_max_ms "$(quantile 100 <"$ms")"
}

part_stopped()
{
    local round case
    declare -A p50

    heading "stopped: acquire of a free lock by one session, two of five nodes stopped"
    cat >"$TMP/stopped.sql" <<'SQL'
\set key random(1, 1000000000000)
SELECT redlock_acquire('stopped:' || :key);
SQL
    for ((round = 1; round <= STOPPED_ROUNDS; round++)); do
        for case in alive stopped; do
            stopped_round $case $round
        done
    done

    # releasing: leases given up whose slots are not free yet at the round's end
    printf '%-34s %10s %10s %10s %10s %10s\n' "$STOPPED_ROUNDS rounds of $STOPPED_S s, ms" \
        "median" "first" "p99" "longest" "releasing"
    for case in alive stopped; do
        p50[$case]=$(median <"$(figures stopped $case p50)")
        printf '%-34s %10.3f %10.3f %10.3f %10.3f %10d\n' "$case" "${p50[$case]}" \
            "$(median <"$(figures stopped $case first)")" \
            "$(quantile 99 <"$(figures stopped $case all)")" \
            "$(quantile 100 <"$(figures stopped $case all)")" \
            "$(quantile 100 <"$(figures stopped $case releasing)")"
    done
    target "median stopped / alive" "$(calc "${p50[stopped]} / ${p50[alive]}")" '<=' 1.5
}

# ------------------------------------------------------------------
# deadlock: a redlock and a row lock, taken in opposite order
# ------------------------------------------------------------------

DEADLOCK_REDLOCK="SELECT redlock_acquire('deadlock');"
DEADLOCK_ROW="UPDATE deadlock SET n = n + 1;"

# Whether session $1 waits for a lock.
session_waits()
{
    wait_for_value a "SELECT count(*) FROM pg_stat_activity
                       WHERE application_name = '$1' AND wait_event_type = 'Lock'" 1
}

# One session takes $2 and then $3, the other the other way round; the first
# waits first.
deadlock_round()
{
    local round=$1 first=$2 second=$3 name victims=0 survivors=0 victim= ms
    local -A to pid

    for name in one other; do
        rm -f "$TMP/deadlock.$name"
        mkfifo "$TMP/deadlock.$name"
        PGAPPNAME=$name psql_on a -Atq <"$TMP/deadlock.$name" >"$TMP/deadlock.out.$name" 2>&1 &
        pid[$name]=$!
        exec {fd}>"$TMP/deadlock.$name"
        to[$name]=$fd
    done
    printf '%s\n' BEGIN\; "$first" '\echo has the first' >&${to[one]}
    printf '%s\n' BEGIN\; "$second" '\echo has the first' >&${to[other]}
    wait_until grep -q 'has the first' "$TMP/deadlock.out.one"
    wait_until grep -q 'has the first' "$TMP/deadlock.out.other"
    printf '%s\n' '\timing on' "$second" '\timing off' '\echo state :SQLSTATE' 'COMMIT;' \
        '\echo commit :SQLSTATE' >&${to[one]}
    session_waits one
    printf '%s\n' '\timing on' "$first" '\timing off' '\echo state :SQLSTATE' 'COMMIT;' \
        '\echo commit :SQLSTATE' >&${to[other]}
    for name in one other; do
        fd=${to[$name]}
        exec {fd}>&-
    done
    for name in one other; do
        wait "${pid[$name]}"
        if grep -q '^state 40P01' "$TMP/deadlock.out.$name"; then
            victims=$((victims + 1))
            victim=$name
        elif grep -q '^state 00000' "$TMP/deadlock.out.$name" &&
            grep -q '^commit 00000' "$TMP/deadlock.out.$name"; then
            survivors=$((survivors + 1))
        fi
    done
    if [ -z "$victim" ]; then
        cat "$TMP"/deadlock.out.* >&2
        return 1
    fi
    ms=$(sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p' "$TMP/deadlock.out.$victim")
    echo "$ms" >>"$(figures deadlock ms)"
    echo "$victims $survivors" >>"$(figures deadlock ended)"
    case $victim$first in
    one"$DEADLOCK_REDLOCK" | other"$DEADLOCK_ROW") name="for the row" ;;
    *) name="for the redlock" ;;
    esac
    printf '%-45s %10.2f %10d %10d\n' "round $round, the victim waited $name" "$ms" $victims $survivors
    csv deadlock "victim waited $name" 2 "$round" to_40P01_ms "$ms"
}

part_deadlock()
{
    local round right

    heading "deadlock: a redlock and a row lock in opposite order; deadlock_timeout is $DEADLOCK_TIMEOUT_MS ms"
    value_on a "CREATE TABLE deadlock AS SELECT 0 AS n"
    printf '%-45s %10s %10s %10s\n' "" "ms" "40P01" "committed"
    for ((round = 1; round <= DEADLOCK_ROUNDS; round++)); do
        if [ $((round % 2)) -eq 1 ]; then
            deadlock_round $round "$DEADLOCK_REDLOCK" "$DEADLOCK_ROW"
        else
            deadlock_round $round "$DEADLOCK_ROW" "$DEADLOCK_REDLOCK"
        fi
    done
    right=$(grep -c '^1 1$' "$(figures deadlock ended)") || true
    target "rounds with one victim, one survivor" "$right" '==' "$DEADLOCK_ROUNDS"
    target "longest time to 40P01, ms" "$(quantile 100 <"$(figures deadlock ms)")" '<' \
        $((DEADLOCK_TIMEOUT_MS + 250))
}
