"""test/chaos/chaos.py: rounds of faults and work, and the checks after each round

    python3 chaos.py --tmp DIR --nodes-tmp DIR --minutes N --seed S [--porcupine PROGRAM]
        [--certificate PATH] [--mode MODE --find MODEL]

Called by test/chaos/run, in its temporary directory.  Histories are in DIR/chaos.
Ends with the line "N passed, N failed".

With --certificate, two of the nodes speak TLS, by PATH.crt and PATH.key.

With --find, for a planted violation: runs rounds of MODE until the independent checker finds
a history that the model MODEL refuses, and then ends without an error.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter

import psycopg2

import check
import operations
import plan
import selftest
from cluster import HERE, MAX_TTL_MS, Broken, Cluster, wait_until
from faults import Executor
from history import Writer, now_us, read
from lists import Operator

ROUND_S = 40
# Limit of an acquire after all is mended: connecting again (1 s), then quarantine or a dead
# holder's keys (max_ttl), and a margin.
AGAIN_S = 1 + MAX_TTL_MS / 1000 + 1
BUSY_MACHINE_S = 5
# How long the nodes list a dead server, and the time until hosts notice the end.
ENTRY_S = 45 + 10
STOP_S = 30
# A fault of the extension may violate a rule in each record.
STORIES = 50


class Round:
    def __init__(self, cluster, options, number, mode, seconds, directory):
        self.cluster = cluster
        self.porcupine = options.porcupine
        self.planted = options.find is not None
        self.seed = options.seed
        self.number = number
        self.mode = mode
        self.seconds = seconds
        self.prefix = f"r{number}"
        self.resources = [f"{self.prefix}_{n}" for n in range(plan.RESOURCES)]
        self.directory = f"{directory}/{number}.{mode}"
        os.makedirs(self.directory)
        self.persistence = plan.persistence(self.seed, number, mode)
        self.problems = []  # texts, without a moment
        self.checks = 0
        self.verdicts = Counter()
        self.refused = []  # names of models

    def run(self):
        for server in self.cluster.servers():
            values = ", ".join(f"('{r}', 0, 0)" for r in self.resources)
            server.sql(f"INSERT INTO chaos_data (resource, value, token) VALUES {values}")
        self.cluster.fresh_nodes(self.persistence)
        self.cluster.wait_ready()
        self.cluster.watch_stalls(f"{self.directory}/stalls")
        workloads = [self.start_workload(host) for host in self.cluster.hosts.values()]
        faults = plan.faults_of_round(self.seed, self.number, self.mode, self.seconds)
        history = Writer(f"{self.directory}/faults")
        executor = Executor(self.cluster, history, self.persistence)
        operator = Operator(self.cluster, history, f"{self.seed}/{self.number}/operator") if self.mode == "durable" else None
        if operator:
            operator.start()
        begin = time.monotonic()
        threads = executor.run(faults)
        time.sleep(max(0, begin + self.seconds - time.monotonic()))
        executor.over.set()
        for thread in threads:
            thread.join()
        self.problems += executor.problems
        if operator:
            operator.over.set()
            operator.join()
            self.problems += operator.problems
            self.expect(operator.changes > 0, "the list of nodes did not change")
        back = -min([0] + [node.clock.offset_s for node in self.cluster.nodes])
        if self.mode == "beyond":
            back = 0
            for number, node in enumerate(self.cluster.nodes):
                executor.set_clock(number)
                # some keys, set by a clock ahead, would live for hours
                for key, ms in node.keys_of_locks().items():
                    if ms > MAX_TTL_MS:
                        node.ask("DEL", key)
        # more work while all is well
        time.sleep(2)
        for workload in workloads:
            workload.stdin.close()
        for workload in workloads:
            try:
                if workload.wait(60) != 0:
                    self.problems.append("a workload failed")
            except subprocess.TimeoutExpired:
                workload.kill()
                self.problems.append("a workload did not end within 60 s: some call does not return")
        # not earlier: PostgreSQL's timers follow the wall clock
        for host in self.cluster.hosts.values():
            host.clock.set(0)
        mended = now_us()
        if not self.planted:
            self.settle(back)
        self.settled_ms = (now_us() - mended) // 1000
        self.judge()

    def start_workload(self, host):
        return subprocess.Popen(
            [sys.executable, HERE + "/workload.py", host.name, host.tmp + "/tmp", str(host.port),
             str(self.cluster.data.port), str(self.seed), self.prefix, self.directory], stdin=subprocess.PIPE)

    # ---- after all is mended: invariants 7, 12, 14 ----

    def expect(self, ok, problem):
        self.checks += 1
        if not ok:
            self.problems.append(problem)

    def let_entries_end(self):
        """Waits until the entries of dead servers end.  Other hosts refuse or wait for these servers, see
        hides_the_dead, came_back_alone and waits_for_the_dead in check.py.  Meanwhile nodes that have lost
        the mark of their list get the mark again."""
        end = time.monotonic() + ENTRY_S
        while any(self.refuses(host) for host in self.cluster.hosts.values()) and time.monotonic() < end:
            time.sleep(0.2)

    def refuses(self, host):
        try:
            host.sql(f"SELECT redlock_try('{self.resources[0]}')")
        except psycopg2.Error as error:
            return any(text in str(error) for text in ("has other settings", "have left the nodes", *check.WAITS))
        return False

    def settle(self, clocks_back_s):
        """clocks_back_s: keys live longer at a node whose clock was set back."""
        limit_s = AGAIN_S + clocks_back_s + BUSY_MACHINE_S
        if self.mode != "calm":
            self.let_entries_end()
        for host in self.cluster.hosts.values():
            for resource in self.resources:
                begin = time.monotonic()
                try:
                    host.sql(f"SELECT redlock_acquire('{resource}', wait => '{int(limit_s * 1000)} ms')")
                    problem = None
                except psycopg2.Error as error:
                    problem = str(error).strip()
                self.expect(problem is None, f"{resource} can't be had on host {host.name} within "
                                             f"{time.monotonic() - begin:.1f} s: {problem}")
        for host in self.cluster.hosts.values():
            for what, query in (
                    ("leases without a session", "SELECT * FROM redlock_locks"),
                    ("gates that nobody should hold", "SELECT * FROM pg_locks WHERE locktype = 'userlock'"),
                    ("nodes that are not ready", "SELECT * FROM redlock_nodes WHERE state <> 'ready'"),
                    ("no broker", "SELECT * FROM redlock_stats WHERE broker_pid IS NULL")):
                try:
                    wait_until(what, lambda: host.sql(query) == [], limit_s)
                    found = []
                except Broken:
                    found = host.sql(query)
                self.expect(found == [], f"host {host.name}: {what}: {found}")
            broker = host.sql("SELECT broker_pid FROM redlock_stats")[0][0]
            self.expect(broker == host.broker(), f"host {host.name}: its broker is {host.broker()}, not {broker}")
        for node in self.cluster.nodes:
            keys = node.keys_of_locks()
            self.expect(all(0 <= ms <= MAX_TTL_MS + clocks_back_s * 1000 for ms in keys.values()),
                        f"node {node.number}: keys that live for too long: {keys}")
            try:
                wait_until("keys", lambda: not node.keys_of_locks(), limit_s)
                left = {}
            except Broken:
                left = node.keys_of_locks()
            self.expect(not left, f"node {node.number}: keys of nobody: {left}")

    # ---- histories ----

    def judge(self):
        records = read(self.directory + "/worker.*")
        faults = read(self.directory + "/faults") + read(self.directory + "/stalls.*")
        exclusive = [r for r in records if not r["resource"].endswith(("_shared", "_permits"))]
        violations = check.check_history(exclusive, faults, self.mode)
        self.checks += len(records)
        logs, reads = [], []
        for server in self.cluster.servers():
            where = f"host {server.name}" if server is not self.cluster.data else "data server"
            names = f"resource LIKE '{self.prefix}\\_%'"
            begin = now_us()
            rows = server.sql(f"SELECT resource, value, token FROM chaos_log WHERE {names}")
            data = dict(server.sql(f"SELECT resource, value FROM chaos_data WHERE {names}"))
            logs += [(server.name, *row) for row in rows]
            reads += [(server.name, resource, value, begin, now_us()) for resource, value in data.items()]
            acked = [(r["resource"], value) for r in records for store, value, _, _, end in r["writes"]
                     if store == server.name and end is not None]
            violations += check.fenced_rows(where, rows, data, acked)
            self.checks += len(rows)
        outside = self.cluster.data.sql(f"SELECT sum(value), sum(unfenced_writes - unfenced) FROM chaos_data "
                                        f"WHERE {names}")[0]
        writes = sum(write[0] == self.cluster.data.name for r in records for write in r["writes"])
        self.expect(writes == outside[0], f"data server: {writes} fenced writes, and the values are {outside[0]}")
        self.count(records, faults, outside[1])
        self.ask_porcupine(operations.of_round(records, logs, reads))
        self.violations = violations
        with open(self.directory + "/stories", "w") as f:
            for problem in self.problems:
                f.write(f"VIOLATION: {problem}\n")
            for violation in violations[:STORIES]:
                f.write("\n".join(check.story(violation, records, faults)) + "\n")

    def ask_porcupine(self, history):
        """Writes the history, and lets the independent checker judge it."""
        path = self.directory + "/operations"
        writer = Writer(path)
        for operation in history:
            writer.write(operation)
        if not self.porcupine:
            return
        options = ["-beyond"] if self.mode == "beyond" else []
        done = subprocess.run([self.porcupine, *options, path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True)
        with open(path + ".verdicts", "w") as f:
            f.write(done.stdout)
        self.expect(done.returncode == 0, f"the independent checker failed: {done.stdout[-500:]}")
        for line in done.stdout.splitlines():
            verdict, _, about = line.partition(" ")
            if verdict in ("ok", "illegal", "unknown"):
                self.verdicts[verdict] += 1
            if verdict == "ok":
                self.checks += 1
            elif verdict == "illegal":
                self.refused.append(about.split()[0])
                self.problems.append(f"porcupine: {about}")
            elif not verdict and self.refused:
                self.problems[-1] += "\n" + line

    def count(self, records, faults, lost_unfenced):
        self.counts = Counter(
            acquisitions=sum(bool(r["held"]) for r in records),
            refusals=sum(r["result"] == "busy" for r in records),
            lost=sum(check.is_loss(r) for r in records),
            lost_updates_without_fence=int(lost_unfenced))
        # within a grant, each hand-over adds one to the token
        tokens = {(r["resource"], r["token"]) for r in records if r["held"]}
        self.counts["handed_over"] = sum((resource, token - 1) in tokens for resource, token in tokens)
        self.errors = Counter(r["error"]["state"] for r in records if "error" in r)
        self.faults = Counter(f["kind"] for f in faults)


def show(what, counts):
    print(f"{what}: " + (", ".join(f"{name} {n}" for name, n in sorted(counts.items())) or "none"), flush=True)


def check_servers(cluster, killed):
    """Stops the running servers, and reads their logs.  Returns problems."""
    problems = []
    for server in cluster.servers():
        if server.process is None:
            continue
        begin = time.monotonic()
        try:
            server.stop(signal.SIGINT)
            if time.monotonic() - begin > STOP_S:
                problems.append(f"server {server.name} took {time.monotonic() - begin:.0f} s to stop")
        except Broken as error:
            problems.append(str(error))
        problems += [f"log of {server.name}: {line}" for line in check.bad_lines(server.log_text(), killed)]
    return problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tmp", required=True)
    parser.add_argument("--nodes-tmp", required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--porcupine")
    parser.add_argument("--certificate")
    parser.add_argument("--mode", choices=plan.MODES)
    parser.add_argument("--find")
    options = parser.parse_args()

    passed, failed = selftest.main()
    print(f"checker: {passed} of {passed + failed} made-up histories judged as they should", flush=True)
    rounds = max(1 if options.mode else len(plan.MODES), int(options.minutes * 60 / (ROUND_S + 15)))
    seconds = min(ROUND_S, options.minutes * 60 / rounds - 10)
    directory = options.tmp + "/chaos"
    os.mkdir(directory)

    cluster = Cluster(options.tmp, options.nodes_tmp, options.certificate)
    totals, errors, faults, verdicts, problems = Counter(), Counter(), Counter(), Counter(), []
    number, mode, found = 0, "start", None
    print("nodes: " + ", ".join(node.program + (" with TLS" if node.certificate else "") for node in cluster.nodes),
          flush=True)
    try:
        cluster.start()
        for number, mode in enumerate(plan.modes_of_run(options.seed, rounds)):
            mode = options.mode or mode
            round_ = Round(cluster, options, number, mode, seconds, directory)
            round_.run()
            bad = len(round_.problems) + len(round_.violations)
            passed += round_.checks
            failed += bad
            totals += round_.counts
            errors += round_.errors
            faults += round_.faults
            verdicts += round_.verdicts
            print(f"round {number}, {mode}, nodes {round_.persistence}: "
                  f"{sum(round_.faults.values())} faults, {round_.counts['acquisitions']} acquisitions, "
                  f"{sum(round_.errors.values())} errors, settled in {round_.settled_ms} ms, {bad} violations",
                  flush=True)
            if bad:
                with open(round_.directory + "/stories") as f:
                    print("".join(f.readlines()[:200]), flush=True)
            if options.find in round_.refused:
                found = number
                break
    except (Broken, psycopg2.Error) as error:
        problems.append(f"round {number}, {mode}: {error}")
    finally:
        killed = {f["pid"] for f in read(directory + "/*/faults") if f["kind"] in ("broker_kill", "backend_kill")}
        problems += check_servers(cluster, killed)
        cluster.stop()
    for problem in problems:
        print(f"VIOLATION: {problem}")
    failed += len(problems)
    passed += 2 * 4
    show("counts", totals)
    show("errors", errors)
    show("faults", faults)
    show("porcupine", verdicts)
    print(f"{passed} passed, {failed} failed", flush=True)
    if options.find:
        print(f"planted: {options.find} " + ("not found" if found is None else f"found in round {found}"), flush=True)
        sys.exit(found is None)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
