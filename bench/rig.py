"""bench/rig.py: the nodes and servers of bench/run and bench/scale/run, the
contenders, and the measurement of a contender

A contender is a program that prints a line of JSON with its figures, like
client.h.  A thread reads the use of the nodes and of the broker five times a
second.
"""

import csv
import json
import math
import os
import re
import signal
import socket
import subprocess
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
WAIT_S = 60
SAMPLE_S = 0.2


class Missing(Exception):
    """A figure could not be measured."""


def wait_until(what, condition, timeout_s=WAIT_S):
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise Missing("waited in vain for " + what)
        time.sleep(0.02)


def cpu_of_ns(pid):
    """Processor time of a process with one thread."""
    with open(f"/proc/{pid}/schedstat") as f:
        return int(f.read().split()[0])


def sleeps_of(pid):
    """How often a process with one thread had to wait: for a broker or a node, passes of its loop."""
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", f.read(), re.M).group(1))


def machine_cpu_us():
    """Processor time of all processes of the machine."""
    with open("/proc/stat") as f:
        user, nice, system, _, _, irq, softirq = map(int, f.readline().split()[1:8])
    return (user + nice + system + irq + softirq) * 1e6 / os.sysconf("SC_CLK_TCK")


def quantile(values, part):
    values = sorted(values)
    return values[int(part * (len(values) - 1))]


def jain(counts):
    """Jain's index.  1: all got the same; 1/n: one of n got everything."""
    squares = sum(c * c for c in counts)
    return sum(counts) ** 2 / (len(counts) * squares) if squares else 0


# ---- nodes ----

class Node:
    def __init__(self, port, pid):
        self.port = int(port)
        self.pid = int(pid)
        self.stopped = False
        self.connection = None

    def ask(self, command):
        """The answer to a command with a line or a text as its reply."""
        if self.connection is None:
            self.connection = socket.create_connection(("127.0.0.1", self.port), WAIT_S)
            self.replies = self.connection.makefile("rb")
        self.connection.sendall(command.encode() + b"\r\n")
        line = self.replies.readline().decode()
        if line.startswith("$"):
            return self.replies.read(int(line[1:]) + 2).decode()
        return line

    def counters(self):
        """Executed commands by name, without our own; reads of sockets; bytes from and to the network."""
        info = self.ask("INFO commandstats stats")
        calls = {name.split("|")[0]: 0 for name in re.findall(r"cmdstat_([\w|]+):", info)}
        for name, count in re.findall(r"cmdstat_([\w|]+):calls=(\d+)", info):
            calls[name.split("|")[0]] += int(count)
        reads, received, sent = (int(re.search(name + r":(\d+)", info).group(1)) for name in (
            "total_reads_processed", "total_net_input_bytes", "total_net_output_bytes"))
        return calls, reads - calls.pop("info", 0), received + sent

    def stop(self):
        os.kill(self.pid, signal.SIGSTOP)
        self.stopped = True

    def go_on(self):
        if self.stopped:
            os.kill(self.pid, signal.SIGCONT)
            self.stopped = False
            self.ask("PING")


# ---- PostgreSQL ----

class Host:
    def __init__(self, rig, name, port, node_ports):
        self.name = self.directory = name
        self.port = port
        self.socket_dir = rig.tmp + "/tmp"
        self.node_ports = node_ports
        self.connection = ["-h", self.socket_dir, "-p", port]

    def psql(self, *arguments, **options):
        """A running psql, for a dialogue."""
        return subprocess.Popen(
            ["psql", "-X", "-Atq", "-v", "ON_ERROR_STOP=1", *self.connection, "-d", "postgres", *arguments],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)

    def sql(self, *statements):
        """Output of statements in one session, each in its own transaction."""
        arguments = [word for s in statements for word in ("-c", s)]
        psql = self.psql(*arguments)
        out = psql.communicate()[0].strip()
        if psql.returncode:
            raise Missing(f"host {self.name}: {out}")
        return out

    def set(self, name, value):
        change = f"SET {name} = {value}" if value is not None else f"RESET {name}"
        self.sql(f"ALTER SYSTEM {change}", "SELECT pg_reload_conf()")
        wanted = f"setting = '{value}'" if value is not None else "setting = boot_val"
        wait_until(change, lambda: self.sql(f"SELECT {wanted} FROM pg_settings WHERE name = '{name}'") == "t")

    def wait_ready(self):
        """Waits until all nodes vote.  A new node may have to wait for
        redlock.max_ttl first."""
        wait_until(f"the nodes of host {self.name}", lambda: self.sql(
            "SELECT count(*) FROM redlock_nodes WHERE state = 'ready'") == str(len(self.node_ports)))

    def round_trips_ms(self):
        node = Node(self.node_ports[0], 0)
        trips = []
        for _ in range(30):
            began = time.monotonic()
            node.ask("PING")
            trips.append((time.monotonic() - began) * 1000)
        return trips

    def wait_idle(self):
        wait_until(f"locks of host {self.name} to be released",
                   lambda: self.sql("SELECT count(*) FROM redlock_locks") == "0")

    def broker_pid(self):
        return int(self.sql("SELECT broker_pid FROM redlock_stats"))

    def terminate_clients(self):
        self.sql("""SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                     WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()""")
        self.wait_idle()


# ---- what the nodes and the broker use ----

def script_calls(commands):
    return commands.get("evalsha", 0) + commands.get("eval", 0)


class Sampler(threading.Thread):
    # sums over the nodes; used() returns the mean of a node
    OF_EACH_NODE = ("commands", "calls", "reads", "bytes", "wakes")

    def __init__(self, nodes, broker_pids):
        super().__init__(daemon=True)
        self.nodes = nodes
        self.broker_pids = broker_pids
        self.samples = []
        self.lock = threading.Lock()  # held while nodes are asked or stopped
        self.ended = threading.Event()

    def sample(self):
        nodes = [node for node in self.nodes if not node.stopped]
        counted = [node.counters() for node in nodes]
        self.samples.append({
            "at": time.monotonic(),
            "nodes": len(nodes),
            "redis_us": sum(cpu_of_ns(node.pid) for node in self.nodes) / 1e3,
            "broker_us": sum(map(cpu_of_ns, self.broker_pids)) / 1e3,
            "machine_us": machine_cpu_us(),
            "commands": sum(sum(commands.values()) for commands, _, _ in counted),
            "calls": sum(script_calls(commands) for commands, _, _ in counted),
            "reads": sum(reads for _, reads, _ in counted),
            "bytes": sum(size for _, _, size in counted),
            "wakes": sum(sleeps_of(node.pid) for node in self.nodes),
        })

    def run(self):
        while not self.ended.is_set():
            with self.lock:
                self.sample()
            self.ended.wait(SAMPLE_S)

    def used(self, seconds):
        """The use in the busiest `seconds`.  Contenders do not report when they
        began to count, and some continue for a while afterwards."""
        # a sum over a changing set of nodes would jump
        samples = [s for s in self.samples if s["nodes"] == self.samples[-1]["nodes"]]
        windows = []
        for i, first in enumerate(samples):
            last = [s for s in samples[i:] if s["at"] <= first["at"] + seconds][-1]
            took = last["at"] - first["at"]
            if took > seconds / 2:
                windows.append({key: (last[key] - first[key]) / took * seconds
                                for key in first if key not in ("at", "nodes")})
        if not windows:
            raise Missing("too few samples")
        used = max(windows, key=lambda window: window["redis_us"])
        for key in self.OF_EACH_NODE:
            used[key] /= samples[-1]["nodes"]
        return used


# ---- contenders ----

class Contender:
    """A program that acquires and releases.  `near` is the distance of the nodes:
    "a" (here), "near" (0.5 ms) or "far" (5 ms), which are names of hosts, too."""

    def __init__(self, name, own=True, afterwards=None):
        self.name = name
        self.is_peer = not own
        self.uses_host = False
        self.afterwards = afterwards

    def figures(self, out):
        """Figures in a line of output; None if it has none."""
        return json.loads(out) if out.startswith("{") else None

    def prepare(self, host):
        pass

    def clean_up(self, host):
        if self.afterwards:
            host.sql(self.afterwards)


class Program(Contender):
    """The floor, or a peer."""

    def __init__(self, name, path, own):
        super().__init__(name, own)
        self.path = path

    def command(self, host, clients, keys, seconds, warmup, host_id):
        nodes = ",".join("127.0.0.1:" + port for port in host.node_ports)
        return [self.path, "--nodes", nodes, "--clients", str(clients), "--keys", keys, "--seconds", str(seconds),
                "--warmup", str(warmup), "--ttl-ms", "10000", "--host-id", host_id]


class Sessions(Contender):
    """SQL sessions of sql_client.c.  Its processor time includes the time of
    their backends."""

    def __init__(self, rig, name, acquire, release=None, settings=None):
        super().__init__(name)
        self.rig = rig
        self.statements = ["--acquire", acquire] + (["--release", release] if release else [])
        self.settings = settings or {}
        self.uses_host = name.startswith("redlock_pg")

    def command(self, host, clients, keys, seconds, warmup, host_id):
        return [self.rig.tmp + "/bin/sql_client", "--host", host.socket_dir, "--port", host.port, *self.statements,
                "--clients", str(clients), "--keys", keys, "--seconds", str(seconds), "--warmup", str(warmup)]

    def prepare(self, host):
        for name, value in self.settings.items():
            host.set(name, value)

    def clean_up(self, host):
        for name in self.settings:
            host.set(name, None)


class Pgbench(Contender):
    """The same statements by pgbench: only throughput."""

    def __init__(self, rig, name, *lines, afterwards=None):
        super().__init__(name, afterwards=afterwards)
        self.script = f"{rig.tmp}/{name.replace(' ', '_')}.sql"
        with open(self.script, "w") as f:
            f.write("\n".join(lines) + "\n")
        self.uses_host = name.startswith("redlock_pg")

    def command(self, host, clients, keys, seconds, warmup, host_id):
        # connecting takes some of the time that -T gives
        duration = math.ceil(seconds + clients / 100)
        return ["pgbench", "-n", *host.connection, "-c", str(clients), "-j", str(min(clients, 2)), "-T", str(duration),
                "-M", "prepared", "-f", self.script, "postgres"]

    def figures(self, out):
        self.seen = getattr(self, "seen", "") + out
        if not out.startswith("tps = "):
            return None
        seen, self.seen = self.seen, ""
        pairs = int(re.search(r"transactions actually processed: (\d+)", seen).group(1))
        failed = int(re.search(r"failed transactions: (\d+)", seen).group(1))
        return {"pairs": pairs, "errors": failed, "first_error": "", "seconds": pairs / float(out.split()[2])}


class Loop(Contender):
    """A loop in PL/pgSQL, in one session, measured inside."""

    def __init__(self, name, acquire, release, afterwards=None):
        super().__init__(name, afterwards=afterwards)
        self.acquire = acquire
        self.release = release
        self.uses_host = name.startswith("redlock_pg")

    TEXT = """
        CREATE OR REPLACE FUNCTION bench_loop(seconds float8, warmup float8) RETURNS json LANGUAGE plpgsql AS $$
        DECLARE
            asked timestamptz;
            granted timestamptz;
            released timestamptz := clock_timestamp();
            counts_from timestamptz := released + make_interval(secs => warmup);
            ends timestamptz := counts_from + make_interval(secs => seconds);
            acquire_us float8[];
            pair_us float8[];
            n int := 0;
            cpu bigint;
        BEGIN
            WHILE released < ends LOOP
                asked := released;
                PERFORM {acquire};
                granted := clock_timestamp();
                PERFORM {release};
                released := clock_timestamp();
                CONTINUE WHEN released < counts_from;
                IF n = 0 THEN
                    cpu := split_part(pg_read_file('/proc/self/schedstat'), ' ', 1);
                END IF;
                n := n + 1;
                acquire_us[n] := extract(epoch FROM granted - asked) * 1e6;
                pair_us[n] := extract(epoch FROM released - asked) * 1e6;
            END LOOP;
            cpu := split_part(pg_read_file('/proc/self/schedstat'), ' ', 1)::bigint - cpu;
            RETURN json_build_object('pairs', n, 'errors', 0, 'first_error', '', 'seconds', seconds,
                'cpu_s', cpu / 1e9, 'per_client', ARRAY[n],
                'acquire_us', bench_percentiles(acquire_us), 'pair_us', bench_percentiles(pair_us));
        END $$"""

    def prepare(self, host):
        host.sql(self.TEXT.format(acquire=self.acquire, release=self.release))

    def command(self, host, clients, keys, seconds, warmup, host_id):
        return ["psql", "-X", "-Atq", *host.connection, "-d", "postgres", "-c",
                f"SELECT bench_loop({seconds}, {warmup})"]


SQL_SETUP = ("""
    CREATE OR REPLACE FUNCTION bench_percentiles(us float8[]) RETURNS json LANGUAGE sql AS $$
        SELECT json_build_object('p50', p[1], 'p95', p[2], 'p99', p[3], 'max', p[4])
          FROM (SELECT percentile_disc(ARRAY[.5, .95, .99, 1]) WITHIN GROUP (ORDER BY v) FROM unnest(us) v) q (p)
    $$""",
    # A function, because a bare redlock_acquire at transaction scope warns: the
    # lock would end before any work.
    """CREATE OR REPLACE FUNCTION bench_redlock(key text) RETURNS void LANGUAGE plpgsql AS
        $$ BEGIN PERFORM redlock_acquire(key); END $$""",
    """CREATE OR REPLACE FUNCTION bench_kept(key text) RETURNS void LANGUAGE plpgsql AS
        $$ BEGIN PERFORM redlock_acquire(key, keep_idle => '10 min'); END $$""",
    """CREATE OR REPLACE FUNCTION bench_shared(key text) RETURNS void LANGUAGE plpgsql AS
        $$ BEGIN PERFORM redlock_acquire(key, keep_idle => '10 min', mode => 'shared'); END $$""",
    """CREATE OR REPLACE FUNCTION bench_advisory_shared(key bigint) RETURNS void LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock_shared(key); END $$""",
    """CREATE OR REPLACE FUNCTION bench_advisory(key bigint) RETURNS void LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock(key); END $$""")


def together(found):
    """Figures of one contender on several hosts; percentiles are of the worst
    host."""
    if len(found) == 1:
        return found[0]
    pairs = [f["pairs"] for f in found]
    all_of_them = {"seconds": found[0]["seconds"], "pairs": sum(pairs), "errors": sum(f["errors"] for f in found),
                   "first_error": " ".join(f["first_error"] or "" for f in found),
                   "per_client": sum((f["per_client"] for f in found), []), "cpu_s": sum(f["cpu_s"] for f in found),
                   "backends_cpu_s": sum(f.get("backends_cpu_s", 0) for f in found),
                   "smaller_share": min(pairs) / max(sum(pairs), 1)}
    for what in ("acquire_us", "pair_us"):
        all_of_them[what] = {p: max(f[what].get(p) or 0 for f in found) for p in ("p50", "p95", "p99")}
    return all_of_them


class Rig:
    def __init__(self, tmp, file):
        self.tmp = tmp
        self.file = file
        self.csv = csv.writer(file, lineterminator="\n")
        self.csv.writerow(["workload", "contender", "clients", "round", "metric", "value"])
        self.nodes = []
        self.hosts = {}
        self.unused = {}  # servers without locks
        self.problems = []
        self.versions = {}
        with open(tmp + "/rig") as f:
            for word, *rest in map(str.split, f):
                if word == "node":
                    self.nodes.append(Node(*rest[1:]))
                elif word == "host":
                    self.hosts[rest[0]] = Host(self, rest[0], rest[1], rest[2:])
                elif word == "unused":
                    self.unused[rest[0]] = Host(self, rest[0], rest[1], [])
                elif word == "shared_memory":
                    self.shared_memory = list(map(int, rest))
        print("waiting until all nodes vote", flush=True)
        for host in self.hosts.values():
            host.sql(*SQL_SETUP)
            if host.name != "leases":  # has a longer max_ttl, and is used last
                host.wait_ready()
        self.require_agreement()

    def require_agreement(self):
        """Fails if servers have a configuration conflict: they refuse locks, once they know each other."""
        for host in self.hosts.values():
            wait_until(f"host {host.name} to hear of all others", lambda: int(host.sql(
                "SELECT count(*) FROM redlock_hosts")) >= len(self.hosts))
        in_dispute = [host.name for host in self.hosts.values()
                      if host.sql("SELECT count(*) FROM redlock_hosts WHERE NOT agrees") != "0"]
        if in_dispute:
            raise Missing("servers that don't agree: " + ", ".join(in_dispute))

    def change_roles(self):
        """Swaps the roles of the two servers without locks."""
        directories = {name: f"{self.tmp}/pg.{host.directory}" for name, host in self.unused.items()}
        for name, host in self.unused.items():
            library = "" if name == "preloaded" else "redlock_pg"
            with open(directories[name] + "/postgresql.conf", "a") as conf:
                conf.write(f"shared_preload_libraries = '{library}'\n")
            subprocess.run(["pg_ctl", "-w", "-D", directories[name], "-l", directories[name] + ".log", "restart"],
                           stdout=subprocess.DEVNULL, check=True)
        self.unused = {"preloaded": self.unused["bare"], "bare": self.unused["preloaded"]}
        for name, host in self.unused.items():
            host.name = name
            if (host.sql("SHOW shared_preload_libraries") != "") != (name == "preloaded"):
                raise Missing("the servers have not changed roles")

    def record(self, workload, contender, clients, round_, **metrics):
        for metric, value in metrics.items():
            self.csv.writerow([workload, contender, clients, round_, metric, f"{value:.6g}"])
        self.file.flush()

    def problem(self, text, counts=True):
        print("could not measure: " + text, flush=True)
        if counts:
            self.problems.append(text)

    def start(self, contender, host, clients, keys, seconds, warmup, host_id="a"):
        """Starts a contender; returns a function that waits for its figures."""
        errors = open(f"{self.tmp}/contender.{host_id}.log", "w+")
        process = subprocess.Popen(contender.command(host, clients, keys, seconds, warmup, host_id),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
                                   start_new_session=True)

        def kill():
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

        def figures():
            timer = threading.Timer(seconds + warmup + WAIT_S, kill)
            timer.start()
            found = None
            try:
                for line in process.stdout:
                    found = contender.figures(line)
                    if found:
                        break
                process.stdout.read()
                process.wait()
            finally:
                timer.cancel()
                kill()
            if found is None:
                errors.seek(0)
                raise Missing(f"{contender.name}: " + " ".join(errors.read().split())[-300:])
            if contender.is_peer:
                self.versions[contender.name] = found.get("version")
            return found

        return figures

    def stop_when_busy(self, sampler, numbers):
        """Stops nodes once the contender uses them: most contenders cannot begin without."""
        node = self.nodes[0]

        def commands():
            with sampler.lock:
                executed = node.counters()[0]
            return sum(executed.get(name, 0) for name in ("set", "eval", "evalsha"))

        before = commands()
        wait_until("the contender to begin", lambda: commands() > before + 20, 10)
        with sampler.lock:
            for number in numbers:
                self.nodes[number].stop()

    def measure(self, workload, contender, places, clients, keys, round_, seconds, warmup, stopped=()):
        """One round of one contender on one host or several, `clients` on each;
        its figures go to the CSV."""
        hosts = [self.hosts[place] for place in places]
        clients_of_all = clients * len(hosts)
        try:
            for host in hosts:
                contender.prepare(host)
            sampler = Sampler(self.nodes, [host.broker_pid() for host in hosts] if contender.uses_host else [])
            sampler.start()
            try:
                running = [self.start(contender, host, clients, keys, seconds, warmup) for host in hosts]
                if stopped:
                    self.stop_when_busy(sampler, stopped)
                found = together([figures() for figures in running])
            finally:
                sampler.ended.set()
                sampler.join()
                for node in self.nodes:
                    node.go_on()
                for host in hosts:
                    contender.clean_up(host)
                    if stopped:
                        host.wait_ready()
                        host.wait_idle()
            self.record_figures(workload, contender.name, clients_of_all, round_, found)
            if found["pairs"]:
                used = sampler.used(found["seconds"])
                if not contender.uses_host:
                    del used["broker_us"]
                self.record(workload, contender.name, clients_of_all, round_,
                            **{name: value / found["pairs"] for name, value in used.items()})
        except Missing as why:
            self.problem(f"{workload}, {clients_of_all} clients, {why}", counts=not contender.is_peer)

    def record_figures(self, workload, name, clients, round_, found):
        self.record(workload, name, clients, round_, pairs_per_s=found["pairs"] / found["seconds"],
                    errors=found["errors"])
        if found["errors"]:
            print(f"note: {workload}, {clients} clients, {name}: {found['errors']} errors, "
                  f"{found['first_error']}", flush=True)
        if not found["pairs"]:
            return
        for what in ("acquire", "pair"):
            self.record(workload, name, clients, round_,
                        **{f"{what}_{p}_us": us for p, us in found.get(what + "_us", {}).items() if us is not None})
        if "cpu_s" in found:
            self.record(workload, name, clients, round_, client_us=found["cpu_s"] * 1e6 / found["pairs"])
        if found.get("backends_cpu_s"):
            self.record(workload, name, clients, round_, backends_us=found["backends_cpu_s"] * 1e6 / found["pairs"])
        if clients > 1 and "per_client" in found:
            self.record(workload, name, clients, round_, jain=jain(found["per_client"]))
        if "smaller_share" in found:
            self.record(workload, name, clients, round_, smaller_share=found["smaller_share"])
