"""bench/workloads.py: what bench/run measures; started by it

Each workload is a function that is called once for each round and writes its
figures with rig.record.  Contenders take turns in each round.
"""

import argparse
import glob
import json
import os
import re
import select
import subprocess
import sys
import time

import gone
import pauses
from rig import (HERE, Loop, Missing, Pgbench, Program, Rig, Sessions, cpu_of_ns, jain, quantile, wait_until)

REDLOCK_SESSION = ("SELECT redlock_acquire($1, scope => 'session')", "SELECT redlock_release($1)")
ADVISORY_SESSION = ("SELECT pg_advisory_lock($1)", "SELECT pg_advisory_unlock($1)")


class Workloads:
    def __init__(self, rig, peers, quick, load, deadlock_timeout_ms):
        self.rig = rig
        self.quick = quick
        self.load = load  # busy processes beside
        self.deadlock_timeout_ms = deadlock_timeout_ms
        self.peers = [Program(name, f"{HERE}/peers/{name}/run", own=False) for name in peers]
        self.floor = Program("floor", rig.tmp + "/bin/floor", own=True)
        self.transaction = Sessions(rig, "redlock_pg transaction", "SELECT bench_redlock($1)")
        self.session = Sessions(rig, "redlock_pg session", *REDLOCK_SESSION)
        self.no_handover = Sessions(rig, "redlock_pg no hand-over", "SELECT bench_redlock($1)",
                                    settings={"redlock.handover_limit": 0})
        self.loop = Loop("redlock_pg loop", "redlock_acquire('loop', scope => 'session')", "redlock_release('loop')")
        # the name is a parameter, as the advisory lock's number is
        self.pgbench = Pgbench(rig, "redlock_pg pgbench", "SELECT bench_redlock(:client_id);")
        self.kept = Pgbench(rig, "redlock_pg keep_idle", "SELECT bench_kept(:client_id);",
                            afterwards="SELECT redlock_release_idle()")
        self.kept_loop = Loop("redlock_pg keep_idle loop",
                              "redlock_acquire('loop', scope => 'session', keep_idle => '10 min')", "redlock_release('loop')",
                              afterwards="SELECT redlock_release_idle()")
        # as users write it; in a block, since a bare statement with a lock at transaction scope warns
        self.kept_plain = Pgbench(
            rig, "redlock_pg keep_idle block", "\\startpipeline", "BEGIN;",
            "SELECT redlock_acquire('k' || :client_id, keep_idle => '10 min');", "COMMIT;", "\\endpipeline",
            afterwards="SELECT redlock_release_idle()")
        self.advisory_plain = Pgbench(
            rig, "advisory block", "\\startpipeline", "BEGIN;",
            "SELECT pg_advisory_xact_lock(:client_id);", "COMMIT;", "\\endpipeline")
        self.pgbench_block = Pgbench(
            rig, "redlock_pg pgbench block", "\\startpipeline", "BEGIN;",
            "SELECT redlock_acquire(:client_id);", "COMMIT;", "\\endpipeline")
        self.pgbench_session = Pgbench(
            rig, "redlock_pg pgbench session",
            "SELECT redlock_acquire(:client_id, scope => 'session');",
            "SELECT redlock_release(:client_id);")
        self.shared_kept = Pgbench(rig, "redlock_pg shared", "SELECT bench_shared('shared');",
                                   afterwards="SELECT redlock_release_idle()")
        self.advisory_shared = Pgbench(rig, "advisory shared", "SELECT bench_advisory_shared(1);")
        self.advisory = Sessions(rig, "advisory transaction", "SELECT bench_advisory($1)")
        self.advisory_session = Sessions(rig, "advisory session", *ADVISORY_SESSION)
        self.advisory_loop = Loop("advisory loop", "pg_advisory_lock(1)", "pg_advisory_unlock(1)")
        self.advisory_pgbench = Pgbench(rig, "advisory pgbench", "SELECT bench_advisory(:client_id);")
        self.advisory_pgbench_session = Pgbench(
            rig, "advisory pgbench session",
            "SELECT pg_advisory_lock(:client_id);", "SELECT pg_advisory_unlock(:client_id);")

    def rounds(self, workload):
        many = {"keep": 20, "unused": 30} if self.load else {"keep": 40, "unused": 60}
        many["tpcb"] = 15
        once = dict.fromkeys(("leases", "waiting", "deadlock_hosts", "gone", "several", "permits", "pauses"), 1)
        return 1 if self.quick else {**many, **once}.get(workload, 3)

    def turns(self, contenders, round_):
        """Forwards, then backwards, so that no contender always follows the same."""
        return contenders if round_ % 2 else contenders[::-1]

    def peers_until(self, last_round, round_):
        """Peers are many and slow, so some rounds have no time for them."""
        return self.peers if round_ <= last_round else []

    def in_turn(self, workload, contenders, places, clients, keys, round_, **how):
        how = {"seconds": 1 if self.quick else 2, "warmup": 0.3 if self.quick else 0.5, **how}
        for contender in self.turns(contenders, round_):
            self.rig.measure(workload, contender, places, clients, keys, round_, **how)

    # ---- contenders against each other ----

    def own(self, round_):
        both = [self.transaction, self.session, self.pgbench, self.pgbench_block, self.pgbench_session]
        advisory = [self.advisory, self.advisory_session, self.advisory_pgbench, self.advisory_pgbench_session]
        if self.quick:
            both, advisory = [self.transaction, self.pgbench], [self.advisory_pgbench]
        for clients in (1, 16, 64, 200):
            contenders = [c for c in both if clients <= 64 or c != self.session]
            if clients == 200:
                contenders += [self.advisory_pgbench]
            if clients == 1:
                contenders += [self.loop, self.advisory_loop]
            if clients <= 64:
                contenders += [self.floor]
                if not self.quick or clients == 16:
                    contenders += advisory
                if not self.quick or clients < 64:
                    contenders += self.peers
            self.in_turn("own", contenders, ("a",), clients, "own", round_)

    def keep(self, round_):
        for workload, place in (("keep", "a"),) if self.load else (("keep", "a"), ("keep 5 ms", "far")):
            # the two differ little, and the machine's speed varies: many short rounds
            for clients in (1, 16, 64):
                pairs = [self.kept, self.advisory_pgbench]
                if place == "a":
                    pairs += [self.kept_plain, self.advisory_plain]
                self.in_turn(workload, pairs, (place,), clients, "own", round_, seconds=1, warmup=0.3)
                if round_ <= self.rounds("own"):
                    # as a peer does: no client statement for each pair
                    loops = [self.kept_loop, self.advisory_loop] if clients == 1 else []
                    self.in_turn(workload, ([] if self.quick else [self.pgbench]) + loops, (place,), clients, "own", round_)

    def shared(self, round_):
        for clients in (1, 16, 64):
            self.in_turn("shared", [self.shared_kept, self.advisory_shared], ("a",), clients, "one", round_)

    def one(self, round_):
        for clients in (16,) if self.quick else (16, 64):
            contenders = [self.floor, self.transaction, self.advisory, self.no_handover]
            if not self.quick:
                contenders += [self.session, self.advisory_session]
                contenders += self.peers_until(2, round_)
            self.in_turn("one", contenders, ("a",), clients, "one", round_)

    def hosts(self, round_):
        self.in_turn("hosts", [self.transaction] + ([] if self.quick else self.peers_until(2, round_)), ("a", "b"),
                     8, "one", round_, seconds=2 if self.quick else 3, warmup=1)

    def stopped(self, round_):
        how = {"seconds": 1 if self.quick else 1.5, "warmup": 1.2}
        for clients in (1,) if self.quick else (1, 16):
            for count in (0, 2) if self.quick else (0, 1, 2):
                contenders = [self.floor, self.transaction]
                if count and not self.quick:
                    contenders += self.peers_until(1, round_)
                # other peers in each round
                which = [(round_ + i) % 5 for i in range(count)]
                self.in_turn(f"stopped {count}", contenders, ("a",), clients, "own", round_, stopped=which, **how)

    def delay(self, round_):
        for place, ms in (("near", "0.5"),) if self.quick else (("near", "0.5"), ("far", "5")):
            peers = self.peers_until(2 if place == "near" else 1, round_)
            how = {} if self.quick else {"seconds": 1.5}
            for clients in (1,) if self.quick else (1, 16, 64):
                contenders = [self.floor, self.transaction, self.session] + ([self.loop] if clients == 1 else [])
                self.in_turn(f"delay {ms} own", contenders + ([] if self.quick else peers), (place,), clients, "own",
                             round_, **how)
            contenders = [self.floor, self.transaction] + ([] if self.quick else [self.no_handover])
            self.in_turn(f"delay {ms} one", contenders + peers, (place,), 16, "one", round_, **how)

    def tls(self, round_):
        for clients in (1, 16):
            for name, place in self.turns([("by TCP", "a"), ("by TLS", "tls")], round_):
                contender = Sessions(self.rig, name, "SELECT bench_redlock($1)")
                contender.uses_host = True
                self.in_turn("tls", [contender], (place,), clients, "own", round_)

    # ---- what else a lock costs ----

    def sessions(self, round_):
        """New sessions with pgbench -C, a transaction each; then the first and
        the tenth lock of a session, by psql."""
        host = self.rig.hosts["a"]
        for name, call in self.turns((("no lock", "1"), ("redlock_pg", "redlock_acquire('own-:client_id')"),
                                      ("advisory", "pg_advisory_xact_lock(:client_id)")), round_):
            script = f"{self.rig.tmp}/sessions.sql"
            with open(script, "w") as f:
                f.write(f"BEGIN\\; SELECT {call}\\; COMMIT;\n")
            out = subprocess.run(["pgbench", "-n", "-C", *host.connection, "-c", "2", "-j", "2", "-T",
                                  "1" if self.quick else "3", "-f", script, "postgres"], text=True,
                                 capture_output=True, check=True).stdout
            tps = re.search(r"^tps = ([\d.]+)", out, re.M).group(1)
            self.rig.record("sessions", name, 2, round_, sessions_per_s=float(tps))

        for name, acquire, release in (
                ("redlock_pg", "redlock_acquire('first', scope => 'session')", "redlock_release('first')"),
                ("advisory", "pg_advisory_lock(1)", "pg_advisory_unlock(1)")):
            count = 30 if self.quick else 100
            lock = f"\\timing on\nSELECT {acquire} \\g /dev/null\n\\timing off\nSELECT {release} \\g /dev/null\n"
            psql = host.psql("-f", "-", stdin=subprocess.PIPE)
            out = psql.communicate(("\\connect -\nSELECT version() \\g /dev/null\n" + 10 * lock) * count)[0]
            us = [float(ms) * 1000 for ms in re.findall(r"Time: ([\d.]+) ms", out)]
            if len(us) != 10 * count:
                raise Missing("sessions: " + out[-300:])
            self.rig.record("sessions", name, 1, round_, first_us=quantile(us[0::10], .5),
                            tenth_us=quantile(us[9::10], .5))

    def commit(self, round_):
        """The time of a COMMIT in a procedure that writes a row: with a lock that
        the COMMIT releases; with a lock at session scope, released afterwards; and
        without a lock.  A session that acquired has waited for the nodes, and
        continues more slowly, so only the first two can be compared.  Blocks of
        each alternate, so that all meet the same load of the machine."""
        host = self.rig.hosts["a"]
        host.sql("CREATE TABLE IF NOT EXISTS bench_commit (n int)",
                 "INSERT INTO bench_commit SELECT 0 WHERE NOT EXISTS (SELECT FROM bench_commit)")
        for name, acquire, hold, release in (
                ("redlock_pg", "redlock_acquire('commit')", "redlock_acquire('commit', scope => 'session')",
                 "redlock_release('commit')"),
                ("advisory", "pg_advisory_xact_lock(1)", "pg_advisory_lock(1)", "pg_advisory_unlock(1)")):
            host.sql(f"""
                CREATE OR REPLACE PROCEDURE bench_commit(times int, INOUT figures json) LANGUAGE plpgsql AS $$
                DECLARE
                    began timestamptz;
                    us float8;
                    kind int;
                    releasing_us float8[];
                    holding_us float8[];
                    plain_us float8[];
                BEGIN
                    FOR i IN 0 .. times - 1 LOOP
                        kind := i / 100 % 3;
                        UPDATE bench_commit SET n = n + 1;
                        IF kind = 0 THEN
                            PERFORM {acquire};
                        ELSIF kind = 1 THEN
                            PERFORM {hold};
                        END IF;
                        began := clock_timestamp();
                        COMMIT;
                        us := extract(epoch FROM clock_timestamp() - began) * 1e6;
                        IF kind = 0 THEN
                            releasing_us := releasing_us || us;
                        ELSIF kind = 1 THEN
                            PERFORM {release};
                            holding_us := holding_us || us;
                        ELSE
                            plain_us := plain_us || us;
                        END IF;
                    END LOOP;
                    figures := json_build_array(bench_percentiles(releasing_us), bench_percentiles(holding_us),
                                                bench_percentiles(plain_us));
                END $$""")
            found = json.loads(host.sql(f"CALL bench_commit({3000 if self.quick else 12000}, NULL)"))
            releasing, holding, plain = [figures["p50"] for figures in found]
            self.rig.record("commit", name, 1, round_, releasing_us=releasing, holding_us=holding, plain_us=plain,
                            added_us=releasing - holding)

    TPCB = """\\set aid random(1, 100000 * :scale)
\\set bid random(1, 1 * :scale)
\\set tid random(1, 10 * :scale)
\\set delta random(-5000, 5000)
BEGIN;
{lock}
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
"""

    def tpcb(self, round_):
        host = self.rig.hosts["a"]
        scale = "5" if self.quick else "20"
        if round_ == 1:
            subprocess.run(["pgbench", "-i", "-q", "-s", scale, *host.connection, "postgres"], check=True,
                           capture_output=True)
        for clients in (16,) if self.quick else (1, 16):
            for name, lock in self.turns(
                    (("no lock", ""), ("redlock_pg", "SELECT redlock_acquire('tpcb:' || :client_id);"),
                     ("redlock_pg keep_idle", "SELECT redlock_acquire('tpcb:' || :client_id, keep_idle => '10 min');"),
                     ("advisory", "SELECT pg_advisory_xact_lock(:client_id);")), round_):
                script = f"{self.rig.tmp}/tpcb.sql"
                with open(script, "w") as f:
                    f.write(self.TPCB.format(lock=lock))
                out = subprocess.run(["pgbench", "-n", *host.connection, "-c", str(clients), "-j", str(min(clients, 2)),
                                      "-T", "1" if self.quick else "2", "-M", "prepared", "-s", scale, "-f", script,
                                      "postgres"], text=True, capture_output=True, check=True).stdout
                self.rig.record("tpcb", name, clients, round_,
                                transactions_per_s=float(re.search(r"^tps = ([\d.]+)", out, re.M).group(1)))
                host.sql("SELECT redlock_release_idle()")

    # ---- waiting ----

    def wake(self, round_):
        """From a release on one host to the grant on another, nodes 5 ms away.
        Only grants to a session that asked before the release count."""
        script = f"""
            CREATE TEMP TABLE wake (asked timestamptz, granted timestamptz, released timestamptz);
            DO $$
            DECLARE
                asked timestamptz;
                granted timestamptz;
                released timestamptz;
            BEGIN
                FOR i IN 1 .. {15 if self.quick else 40} LOOP
                    asked := clock_timestamp();
                    PERFORM redlock_acquire('wake', scope => 'session');
                    granted := clock_timestamp();
                    PERFORM pg_sleep(0.05);
                    released := clock_timestamp();
                    PERFORM redlock_release('wake');
                    INSERT INTO wake VALUES (asked, granted, released);
                    PERFORM pg_sleep(0.02);
                END LOOP;
            END $$;
            SELECT format('%s %s %s', extract(epoch FROM asked), extract(epoch FROM granted),
                extract(epoch FROM released)) FROM wake;"""
        running = {name: self.rig.hosts[name].psql("-c", script) for name in ("far", "far_b")}
        turns = []
        for name, psql in running.items():
            out = psql.communicate()[0]
            if psql.returncode:
                raise Missing("wake: " + out)
            turns += [[float(t) for t in line.split()] + [name] for line in out.splitlines()]
        turns.sort(key=lambda turn: turn[1])
        ms = [(now[1] - last[2]) * 1000 for last, now in zip(turns, turns[1:])
              if now[3] != last[3] and now[0] < last[2]]
        if not ms:
            raise Missing("wake: no lock went from host to host")
        trips = self.rig.hosts["far"].round_trips_ms()
        self.rig.record("wake", "redlock_pg", 2, round_, release_to_grant_p50_ms=quantile(ms, .5),
                        release_to_grant_p95_ms=quantile(ms, .95), release_to_grant_max_ms=max(ms),
                        round_trip_p50_ms=quantile(trips, .5))

    def recall(self, round_):
        """The first acquisition of another host's idle lease, beside that of a free lock,
        nodes 5 ms away."""
        keeper, asker = self.rig.hosts["far"], self.rig.hosts["far_b"]
        trip_ms = quantile(asker.round_trips_ms(), .5)
        psql = asker.psql("-f", "-", stdin=subprocess.PIPE)
        for call in ("acquire", "try"):
            took, granted = {True: [], False: []}, 0
            for turn in range(10 if self.quick else 80):
                kept = turn % 2 == 0
                if kept:
                    keeper.sql("SELECT bench_kept('recall')")
                wait_until("the last release", lambda: asker.sql("SELECT count(*) FROM redlock_locks") == "0")
                psql.stdin.write(f"\\timing on\nSELECT redlock_{call}('recall', scope => 'session') \\g /dev/null\n"
                                 "\\timing off\nSELECT redlock_release_all();\n\\echo done\n")
                psql.stdin.flush()
                out = ""
                while not out.endswith("done\n"):
                    line = psql.stdout.readline()
                    if not line:
                        raise Missing("recall: psql ended: " + out)
                    out += line
                took[kept].append(float(re.search(r"Time: ([\d.]+) ms", out).group(1)))
                granted += "\n1\n" in out
            self.rig.record("recall", f"redlock_{call}", 1, round_, times=turn + 1, granted=granted,
                            free_p50_ms=quantile(took[False], .5), idle_p50_ms=quantile(took[True], .5),
                            idle_max_ms=max(took[True]), round_trip_p50_ms=trip_ms)
        psql.stdin.close()
        psql.wait()

    def waiting(self, round_):
        """Commands that waiting sessions of one host send to a node while another
        host holds the lock.  Commands called by a script do not count."""
        a, b = self.rig.hosts["a"], self.rig.hosts["b"]
        seconds = 2 if self.quick else 5
        acquire = "SELECT redlock_acquire('waiting', scope => 'session')"
        script = f"{self.rig.tmp}/waiting.sql"
        with open(script, "w") as f:
            f.write(acquire + ";\n")
        holder = b.psql("-c", acquire, "-c", "SELECT pg_sleep(3600)")
        wait_until("the holder", lambda: b.sql("SELECT count(*) FROM redlock_locks WHERE state = 'held'") == "1")
        for sessions in (0, 1, 200) if self.quick else (0, 1, 50, 200):
            waiters = sessions and subprocess.Popen(
                ["pgbench", "-n", *a.connection, "-c", str(sessions), "-j", "2", "-t", "1", "-f", script, "postgres"],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wait_until("sessions to wait", lambda: a.sql(
                "SELECT count(*) FROM redlock_locks WHERE state IN ('waiting', 'queued')") == str(sessions))
            if sessions:
                time.sleep(1)  # the first asks, and the subscription
            before = [node.counters()[0] for node in self.rig.nodes]
            began = time.monotonic()
            time.sleep(seconds)
            after = [node.counters()[0] for node in self.rig.nodes]
            took = time.monotonic() - began
            sent = [(sum(calls.values()) - sum(calls.get(name, 0) for name in
                    ("set", "get", "del", "pttl", "pexpire", "publish", "pubsub"))) for calls in before + after]
            half = len(before)
            self.rig.record("waiting", "redlock_pg", sessions, round_,
                            sent_per_node_s=sum(sent[half:]) / half / took - sum(sent[:half]) / half / took)
            if sessions:
                a.terminate_clients()
                waiters.wait()
        b.terminate_clients()
        holder.wait()

    def fair(self, round_):
        """Hosts with four sessions each take one lock again and again: the share of each
        host, and the longest wait.  Only the time in which all take part counts, without
        its first second: hosts come and go one by one.  For comparison, sixteen sessions
        of one host take an advisory lock: PostgreSQL's queue is in order, so the machine
        causes their longest wait."""
        seconds = 5 if self.quick else 10
        hosts = [self.rig.hosts[f"fair{i}"] for i in range(1, 9)]
        near = self.rig.hosts["fair_near"].node_ports
        for place, ports in (("", hosts[0].node_ports),) if self.quick else (("", hosts[0].node_ports), ("0.5 ms away", near)):
            for host in hosts:
                self.use_nodes(host, ports)
            for count in (4,) if self.quick else (4, 8):
                for hold_ms in (0, 5):
                    script = ("SELECT bench_redlock('fair');\n" if hold_ms == 0 else
                              f"BEGIN;\nSELECT redlock_acquire('fair');\nSELECT pg_sleep({hold_ms / 1000});\nCOMMIT;\n")
                    self.longest_wait(f"hold {hold_ms} ms" + (place and ", nodes " + place), hosts[:count], 4, seconds,
                                      script, hold_ms, round_)
        self.longest_wait("one host, advisory lock", hosts[:1], 16, seconds, "SELECT pg_advisory_xact_lock(1);\n", 0, round_)

    def longest_wait(self, name, hosts, clients, seconds, text, hold_ms, round_):
        script = f"{self.rig.tmp}/fair.sql"
        with open(script, "w") as f:
            f.write(text)
        grants = self.pgbench_grants(hosts, clients, seconds, script, hold_ms)
        begin = max(min(grant)[0] for grant in grants) + 1
        end = min(max(grant)[0] for grant in grants)
        grants = [[wait for at, wait in grant if begin <= at <= end] for grant in grants]
        waits = sorted(wait for grant in grants for wait in grant)
        mean = sum(waits) / len(waits)
        self.rig.record("fair", name, clients * len(hosts), round_, grants_per_s=len(waits) / (end - begin),
                        fairness=jain([len(grant) for grant in grants]), mean_wait_ms=mean,
                        p99_wait_ms=waits[len(waits) * 99 // 100], longest_wait_ms=waits[-1], longest_to_mean=waits[-1] / mean)

    def several(self, round_):
        """A lock and ten at once, by turns, nodes 0.5 ms away; then sessions of several hosts take
        any three of ten again and again, in any order."""
        near = self.rig.hosts["near"]
        near.sql("""
            CREATE OR REPLACE FUNCTION bench_several(times int) RETURNS json LANGUAGE plpgsql AS $$
            DECLARE
                names text[] := ARRAY(SELECT 'several:' || i FROM generate_series(1, 10) i);
                began timestamptz;
                one_us float8[];
                ten_us float8[];
            BEGIN
                FOR i IN 1 .. 2 * times LOOP
                    began := clock_timestamp();
                    IF i % 2 = 0 THEN
                        PERFORM redlock_acquire('several:1', scope => 'session');
                        one_us := one_us || extract(epoch FROM clock_timestamp() - began)::float8 * 1e6;
                    ELSE
                        PERFORM redlock_acquire_all(names, scope => 'session');
                        ten_us := ten_us || extract(epoch FROM clock_timestamp() - began)::float8 * 1e6;
                    END IF;
                    PERFORM redlock_release_all();
                    PERFORM pg_sleep(0.005); -- until the nodes have been told
                END LOOP;
                RETURN json_build_array(bench_percentiles(one_us), bench_percentiles(ten_us));
            END $$""")
        one, ten = json.loads(near.sql(f"SELECT bench_several({100 if self.quick else 500})"))
        self.rig.record("several", "free locks, nodes 0.5 ms away", 1, round_, one_p50_us=one["p50"],
                        ten_p50_us=ten["p50"], ten_to_one=ten["p50"] / one["p50"])

        hosts = [self.rig.hosts[f"fair{i}"] for i in range(1, 5)]
        hold_ms = 5
        for host in hosts:
            host.sql("""
                CREATE OR REPLACE FUNCTION bench_any() RETURNS void LANGUAGE plpgsql AS $$
                BEGIN
                    PERFORM redlock_acquire_all(ARRAY(SELECT 'any:' || i FROM generate_series(1, 10) i
                                                   ORDER BY random() LIMIT 3));
                END $$""")
        script = f"{self.rig.tmp}/several.sql"
        with open(script, "w") as f:
            f.write(f"BEGIN;\nSELECT bench_any();\nSELECT pg_sleep({hold_ms / 1000});\nCOMMIT;\n")
        grants = self.pgbench_grants(hosts, 4, 5 if self.quick else 120, script, hold_ms)
        waits = [wait for grant in grants for _, wait in grant]
        mean = sum(waits) / len(waits)
        wait_until("the last releases", lambda: all(
            host.sql("SELECT count(*) FROM redlock_locks") == "0" for host in hosts))
        count = "local n = 0 for i = 1, 10 do n = n + redis.call('EXISTS', 'redlock:any:' .. i) end return n"
        left = sum(int(node.ask(f'EVAL "{count}" 0')[1:]) for node in self.rig.nodes)
        deadlocks = sum(int(host.sql("SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'"))
                        for host in hosts)
        self.rig.record("several", "any 3 of 10", 16, round_, grants=len(waits), fairness=jain([len(g) for g in grants]),
                        mean_wait_ms=mean, longest_wait_ms=max(waits), longest_to_mean=max(waits) / mean,
                        deadlocks=deadlocks, left_behind=left)

    def permits(self, round_):
        """Twenty sessions on each of three hosts acquire one of five permits again and again, while
        sessions are terminated and nodes stopped.  The reported time of a hold lies within the real
        time of the hold.  The use of the permits is measured before any node is stopped."""
        hosts, permits, hold_ms = [self.rig.hosts[f"fair{i}"] for i in range(1, 4)], 5, 50
        calm_s, rough_s = (5, 5) if self.quick else (60, 120)
        for host in hosts:
            host.sql("CREATE TABLE IF NOT EXISTS held (permit int, since float8, until float8)", "TRUNCATE held", f"""
                CREATE OR REPLACE PROCEDURE bench_permits(seconds float8) LANGUAGE plpgsql AS $$
                DECLARE
                    stop timestamptz := clock_timestamp() + seconds * interval '1 s';
                    since float8;
                    until float8;
                    own int;
                BEGIN
                    WHILE clock_timestamp() < stop LOOP
                        PERFORM redlock_acquire('permits', scope => 'session', permits => {permits});
                        since := extract(epoch FROM clock_timestamp());
                        SELECT permit INTO own FROM redlock_locks
                         WHERE resource = 'permits' AND state = 'held' AND pid = pg_backend_pid();
                        PERFORM pg_sleep({hold_ms / 1000});
                        until := extract(epoch FROM clock_timestamp());
                        PERFORM redlock_check('permits'); -- an error unless the lease is valid
                        PERFORM redlock_release_all();
                        INSERT INTO held VALUES (own, since, until);
                        COMMIT;
                    END LOOP;
                END $$""")
        ends = time.monotonic() + calm_s + rough_s
        call = lambda host: host.psql("-c", f"CALL bench_permits({ends - time.monotonic()})")
        sessions = [(host, call(host)) for host in hosts for _ in range(20)]
        time.sleep(calm_s)
        calm_until = time.time()
        killed = stopped = 0
        while time.monotonic() < ends - 1:
            time.sleep(1)
            host = hosts[killed % len(hosts)]
            host.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'CALL bench_permits%'"
                     " ORDER BY random() LIMIT 1")
            killed += 1
            sessions = [(host, psql if psql.poll() is None else call(host)) for host, psql in sessions]
            if killed % 10 == 3:
                self.rig.nodes[stopped % len(self.rig.nodes)].stop()
            if killed % 10 == 8:
                self.rig.nodes[stopped % len(self.rig.nodes)].go_on()
                stopped += 1
        for node in self.rig.nodes:
            node.go_on()
        for host, psql in sessions:
            psql.communicate()
        held = [tuple(map(float, row.split("|"))) for host in hosts
                for row in host.sql("SELECT permit, since, until FROM held").splitlines()]
        now, most = 0, 0
        for at, step in sorted([(since, 1) for _, since, _ in held] + [(until, -1) for _, _, until in held]):
            now += step
            most = max(most, now)
        begin, end = min(since for _, since, _ in held) + 1, calm_until - 1
        used = sum(max(0, min(until, end) - max(since, begin)) for _, since, until in held) / (permits * (end - begin))
        self.rig.record("permits", f"{permits} permits", 60, round_, grants=len(held), most_at_once=most, used=used,
                        terminated=killed, nodes_stopped=stopped)

    def pgbench_grants(self, hosts, clients, seconds, script, hold_ms):
        """Runs `clients` of each host.  Returns for each host a list of times and waits in ms."""
        logs = [f"{self.rig.tmp}/{os.path.basename(script)}.{host.name}" for host in hosts]
        running = [subprocess.Popen(
            ["pgbench", "-n", *host.connection, "-c", str(clients), "-T", str(seconds), "-M", "prepared", "-l",
             "--log-prefix", log, "-f", script, "postgres"], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL) for host, log in zip(hosts, logs)]
        failed = [pgbench.args for pgbench in running if pgbench.wait()]
        grants = []
        for log in logs:
            files = glob.glob(log + ".*")
            rows = [line.split() for name in files for line in open(name)]
            grants.append([(int(row[4]) + int(row[5]) / 1e6, int(row[2]) / 1000 - hold_ms) for row in rows])
            for name in files:
                os.unlink(name)
        if failed or not all(grants):
            raise Missing(os.path.basename(script) + ": a host has nothing")
        return grants

    def gone(self, round_):
        for kind in gone.KINDS:
            gone.measure(self.rig, kind, 1 if self.quick else 10, round_)

    def use_nodes(self, host, ports):
        urls = ",".join(f"redis://127.0.0.1:{port}" for port in ports)
        host.sql(f"ALTER SYSTEM SET redlock.nodes = '{urls}'", "SELECT pg_reload_conf()")
        addresses = ", ".join(f"'127.0.0.1:{port}'" for port in ports)
        wait_until(f"other nodes of host {host.name}", lambda: host.sql(
            f"SELECT count(*) FROM redlock_nodes WHERE state = 'ready' AND node IN ({addresses})") == str(len(ports)))

    def deadlock(self, round_):
        """A redlock and a row lock, taken in opposite order by two sessions; the
        first waits first.  One must be the victim, the other commit."""
        host = self.rig.hosts["a"]
        host.sql("CREATE TABLE IF NOT EXISTS deadlock AS SELECT 0 AS n")
        locks = ["SELECT redlock_acquire('deadlock')", "UPDATE deadlock SET n = n + 1"]
        if round_ % 2 == 0:
            locks.reverse()
        sessions = []
        for first in locks:
            psql = host.psql("-v", "ON_ERROR_STOP=0", "-v", "VERBOSITY=sqlstate", stdin=subprocess.PIPE)
            psql.stdin.write(f"BEGIN;\n{first} \\g /dev/null\n\\echo has the first\n")
            psql.stdin.flush()
            while (line := psql.stdout.readline().strip()) != "has the first":
                if not line and psql.poll() is not None:
                    raise Missing("deadlock: psql ended")
            sessions.append(psql)
        for count, (psql, second) in enumerate(zip(sessions, reversed(locks)), 1):
            psql.stdin.write(f"\\timing on\n{second} \\g /dev/null\n\\timing off\n\\echo state :SQLSTATE\n"
                             "COMMIT;\n\\echo commit :SQLSTATE\n")
            psql.stdin.flush()
            if count == 1:
                wait_until("the first to wait", lambda: host.sql(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'") == "1")
        outs = [psql.communicate()[0] for psql in sessions]
        victims = [out for out in outs if "state 40P01" in out]
        survivors = [out for out in outs if "state 00000" in out and "commit 00000" in out]
        if not victims:
            raise Missing("deadlock: nobody was told of it: " + " ".join(outs))
        self.rig.record("deadlock", "redlock_pg", 2, round_, victims=len(victims), survivors=len(survivors),
                        to_40P01_ms=float(re.search(r"Time: ([\d.]+) ms", victims[0]).group(1)),
                        deadlock_timeout_ms=self.deadlock_timeout_ms)

    def deadlock_hosts(self, round_):
        """Cycles of two and of three hosts, of redlocks alone and with a row lock in the middle:
        from the last wait to 40P01."""
        hosts = [self.rig.hosts[f"fair{i}"] for i in range(1, 4)]
        for host in hosts:
            host.set("deadlock_timeout", 200)
            host.sql("DROP TABLE IF EXISTS deadlock", "CREATE TABLE deadlock AS SELECT 0 AS n")
        row = "UPDATE deadlock SET n = n + 1"
        trip_ms = quantile(hosts[0].round_trips_ms(), .5)
        for count in (2, 3):
            locks = [f"SELECT redlock_acquire('cycle:{i}')" for i in range(count)]
            for rows in (False, True):
                # the lock of each session, and the lock it wants
                steps = [(hosts[i], locks[i], locks[(i + 1) % count]) for i in range(count)]
                if rows:
                    steps[0:1] = [(hosts[0], locks[0], row), (hosts[0], row, locks[1])]
                cycles = [self.cycle(steps, at) for at in range(5 if self.quick else 100)]
                found = sorted(ms for ms, victims in cycles)
                limit_ms = 200 + 10 * trip_ms + 500
                self.rig.record("deadlock_hosts", f"{count} hosts" + (", a row lock" if rows else ""), len(steps), round_,
                                cycles=len(cycles), in_time=sum(ms <= limit_ms for ms in found),
                                one_victim=sum(victims == 1 for ms, victims in cycles), p50_ms=quantile(found, .5),
                                longest_ms=found[-1], limit_ms=limit_ms)
        for host in hosts:
            host.set("deadlock_timeout", None)

    def cycle(self, steps, at):
        """Each session holds a lock and wants the next; the last session differs each time.
        Returns how long the last session waited for the first error, in ms, and the number of errors."""
        steps = steps[at % len(steps):] + steps[:at % len(steps)]
        sessions = []
        for host, has, _ in steps:
            psql = host.psql("-v", "ON_ERROR_STOP=0", "-v", "VERBOSITY=sqlstate", stdin=subprocess.PIPE)
            sessions.append(psql)
            psql.stdin.write(f"BEGIN;\n{has} \\g /dev/null\n\\echo has the first\n")
            psql.stdin.flush()
            while (line := psql.stdout.readline().strip()) != "has the first":
                if not line and psql.poll() is not None:
                    raise Missing("deadlock_hosts: psql ended")
        for number, (psql, (_, _, wants)) in enumerate(zip(sessions, steps), 1):
            began = time.monotonic()
            psql.stdin.write(f"{wants} \\g /dev/null\n\\echo state :SQLSTATE\nROLLBACK;\n")
            psql.stdin.close()
            if number < len(steps):
                wait_until("others to wait", lambda: number == sum(int(host.sql("""
                    SELECT count(*) FROM pg_stat_activity a
                     WHERE wait_event_type = 'Lock' OR pid IN (SELECT pid FROM redlock_locks WHERE state = 'waiting')"""))
                    for host in {step[0] for step in steps}))
        told, victims = None, 0
        waiting = {psql.stdout: psql for psql in sessions}
        while waiting:
            for out in select.select(list(waiting), [], [], 60)[0] or [None]:
                if out is None:
                    raise Missing("deadlock_hosts: nobody was told")
                line = out.readline()
                if "state 40P01" in line:
                    told = told or time.monotonic()
                    victims += 1
                if line == "":
                    waiting.pop(out).wait()
        return ((told or float("inf")) - began) * 1000, victims

    # ---- held leases ----

    def leases(self, round_):
        """The cost of renewing: the broker's processor time over a whole ttl, in
        which each lease is renewed three times.  Several sessions take the leases,
        because a session asks for a single lease at a time."""
        host = self.rig.hosts["leases"]
        host.wait_ready()
        ttl_s, takers = (6 if self.quick else 30), 10
        for leases in (1000, 10000) if self.quick else (1000, 10000, 100000):
            holders = [host.psql("-c", f"""
                SELECT count(redlock_acquire('lease:' || i, scope => 'session', ttl => '{ttl_s} s'))
                  FROM generate_series({taker}, {leases} - 1, {takers}) i""", "-c", "SELECT pg_sleep(3600)")
                for taker in range(takers)]
            try:
                wait_until("leases to be held", lambda: any(h.poll() is not None for h in holders) or host.sql(
                    "SELECT count(*) FROM redlock_locks WHERE state = 'held'") == str(leases), 300)
                if any(h.poll() is not None for h in holders):
                    raise Missing("leases: " + next(h for h in holders if h.poll() is not None).communicate()[0])
                # from here on each lease is renewed
                time.sleep(ttl_s / 3)
                pid, look = host.broker_pid(), "SELECT renewed, unrenewed, lost FROM redlock_stats"
                before, cpu, began = host.sql(look), cpu_of_ns(pid), time.monotonic()
                time.sleep(ttl_s)
                cpu, took, after = cpu_of_ns(pid) - cpu, time.monotonic() - began, host.sql(look)
                renewed, unrenewed, lost = [int(x) - int(y) for x, y in zip(after.split("|"), before.split("|"))]
            finally:
                host.terminate_clients()
                for holder in holders:
                    holder.wait()
            if not renewed:
                raise Missing("leases: nothing was renewed")
            self.rig.record("leases", "redlock_pg", leases, round_, broker_share=cpu / 1e9 / took,
                            renewal_us=cpu / 1e3 / renewed, round_ms=cpu / 1e6 / renewed * leases,
                            renewed_per_s=renewed / took, unrenewed=unrenewed, lost=lost)
        small_mb, few, large_mb, many = self.rig.shared_memory
        self.rig.record("leases", "redlock_pg", many, round_,
                        shared_bytes=(large_mb - small_mb) * 1048576 / (many - few))

    # ---- no lock at all ----

    def unused(self, round_):
        """pgbench's own scripts, on a server with redlock_pg preloaded and on a bare
        server: a pair of runs in each round, first and second by turns.  Halfway the
        servers change roles, because a server may be faster by itself."""
        if round_ == self.rounds("unused") // 2 + 1:
            self.rig.change_roles()
        for script, option in (("select-only", "-S"), ("simple-update", "-N")):
            for clients in (1, 16):
                tps = {}
                for host in self.turns(list(self.rig.unused.values()), round_):
                    out = subprocess.run(["pgbench", "-n", option, *host.connection, "-c", str(clients), "-j",
                                          str(min(clients, 2)), "-T", "1", "-M", "prepared",
                                          "postgres"], text=True, capture_output=True, check=True).stdout
                    tps[host.name] = float(re.search(r"^tps = ([\d.]+)", out, re.M).group(1))
                self.rig.record("unused", script, clients, round_, bare_per_s=tps["bare"],
                                preloaded_per_s=tps["preloaded"],
                                slower_percent=100 - 100 * tps["preloaded"] / tps["bare"])

    def pauses(self, round_):
        for kind in pauses.KINDS:
            pauses.measure(self.rig, kind, 1 if self.quick else 60, round_)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--load", type=int)
    parser.add_argument("--tmp")
    parser.add_argument("--peers", type=str.split, default=[])
    parser.add_argument("--deadlock-timeout-ms", type=int)
    parser.add_argument("workloads", nargs="+")
    given = parser.parse_args()

    # run.part is renamed to run.csv when complete
    part, whole = given.tmp + "/results/run.part", given.tmp + "/results/run.csv"
    with open(part, "w", newline="") as file:
        rig = Rig(given.tmp, file)
        all_of_them = Workloads(rig, given.peers, given.quick, given.load, given.deadlock_timeout_ms)
        for name in given.workloads:
            began = time.monotonic()
            for round_ in range(1, all_of_them.rounds(name) + 1):
                try:
                    getattr(all_of_them, name)(round_)
                except (Missing, subprocess.CalledProcessError) as why:
                    rig.problem(f"{name}: {why}")
                    for host in rig.hosts.values():
                        host.terminate_clients()
            print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
        with open(given.tmp + "/results/machine.txt", "a") as f:
            for name, version in sorted(rig.versions.items()):
                f.write(f"{name}: {version}\n")
        for host in rig.hosts.values():
            trouble = host.sql("""SELECT format('lost %s, unrenewed %s, unreachable %s', lost, unrenewed, unreachable)
                                    FROM redlock_stats WHERE lost + unrenewed + unreachable > 0""")
            if trouble:
                print(f"note: host {host.name} counted: {trouble}")
    os.rename(part, whole)
    sys.exit(1 if rig.problems else 0)


main()
