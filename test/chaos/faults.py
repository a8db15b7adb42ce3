"""test/chaos/faults.py: executes the plan of faults, and records the times"""

import contextlib
import resource
import signal
import threading
import time

import psycopg2

from cluster import Broken, send_signal, wait_until
from history import now_us

FAR_AWAY = 1 << 30  # a maxmemory that no node reaches
EVICTION_STEP = 500  # bytes, a key or two
EVICTION_STEPS = 50
NOTICE_LIMIT_S = 30  # hosts look every 5 s; faults of links may hide the answer


class Executor:
    def __init__(self, cluster, history, persistence):
        self.cluster = cluster
        self.history = history
        self.persistence = persistence
        self.over = threading.Event()  # ends lasting faults
        self.problems = []

    def run(self, plan):
        """Executes a plan, and returns when all is mended."""
        begin = time.monotonic()
        threads = []
        for fault in plan:
            time.sleep(max(0, begin + fault["at"] - time.monotonic()))
            threads.append(threading.Thread(target=self.one, args=[fault]))
            threads[-1].start()
        return threads

    def one(self, fault):
        where, *names = fault["target"].split("/")
        # no further fault hits a node that takes long to start
        lock = self.cluster.nodes[int(names[0])].lock if where == "node" else contextlib.nullcontext()
        record = {"kind": fault["kind"], "target": fault["target"]}
        try:
            with lock:
                record["t0"] = now_us()
                done = getattr(self, fault["kind"])(fault, record, *names)
        except (Broken, OSError) as error:
            self.problems.append(f"{fault['kind']} {fault['target']}: {error}")
            done = True
        record["t1"] = now_us()
        if done is not False:
            self.history.write(record)

    def last(self, fault):
        self.over.wait(fault["for"])

    # ---- nodes ----

    def node_pause(self, fault, record, number):
        node = self.cluster.nodes[int(number)]
        node.process.send_signal(signal.SIGSTOP)
        self.last(fault)
        node.process.send_signal(signal.SIGCONT)

    def node_restart(self, fault, record, number):
        node = self.cluster.nodes[int(number)]
        node.kill()
        self.last(fault)
        record["silent_until"] = now_us()
        node.start(self.persistence)

    def node_empty(self, fault, record, number):
        node = self.cluster.nodes[int(number)]
        node.kill()
        node.empty()
        self.last(fault)
        record["silent_until"] = now_us()
        node.start(self.persistence)

    def node_flush(self, fault, record, number):
        self.cluster.nodes[int(number)].ask("FLUSHALL")

    def node_full(self, fault, record, number):
        """The node's memory is full."""
        node = self.cluster.nodes[int(number)]
        node.configure("maxmemory", node.info("memory", "used_memory"))
        self.last(fault)
        node.configure("maxmemory", 0)

    def node_evicts(self, fault, record, number):
        """The node evicts keys, from when all hosts have noticed the policy: no host can notice an eviction at once
        (docs/reference/nodes.md).  The keys of locks go first, and the node's marker never: its loss would tell."""
        node = self.cluster.nodes[int(number)]
        node.configure("maxmemory-policy", "volatile-ttl")
        node.configure("maxmemory", FAR_AWAY)
        if self.wait_for_hosts(node, "quarantine LIKE '%maxmemory-policy%'"):
            end = time.monotonic() + fault["for"]
            self.evict(node)
            while not self.over.wait(0.1) and time.monotonic() < end:
                self.evict(node)
            record["evicted"] = node.info("stats", "evicted_keys")
        node.configure("maxmemory", 0)
        node.configure("maxmemory-policy", "noeviction")
        self.wait_for_hosts(node, "quarantine IS NULL")

    def evict(self, node):
        """Lowers maxmemory until the node evicts some keys, if it has any.  Then there is room again: a full node
        would grant nothing."""
        evicted = node.info("stats", "evicted_keys")
        used = node.info("memory", "used_memory")
        for step in range(EVICTION_STEPS):
            node.configure("maxmemory", used - step * EVICTION_STEP)
            if node.info("stats", "evicted_keys") > evicted:
                break
        node.configure("maxmemory", FAR_AWAY)

    def wait_for_hosts(self, node, condition):
        """Waits until the condition on the node holds in redlock_nodes of each host.  False: the round is over."""
        for host in self.cluster.hosts.values():
            wait_until(f"host {host.name}: {condition}, node {node.number}",
                       lambda: self.over.wait(0.2) or self.host_sees(host, node, condition), NOTICE_LIMIT_S)
        return not self.over.is_set()

    def host_sees(self, host, node, condition):
        address = host.node_urls[node.number].partition("//")[2]
        try:
            return host.sql(f"SELECT {condition} FROM redlock_nodes WHERE node = '{address}'") == [(True,)]
        except psycopg2.Error:  # a fault of a session hit ours
            return False

    def node_disk_full(self, fault, record, number):
        """At its next write, a durable node ends itself; another refuses all writes."""
        node = self.cluster.nodes[int(number)]
        node.limit_files(node.largest_file() + int(fault["pick"] * 100))
        self.last(fault)
        if self.persistence == "durable":
            record["ended"] = node.process.poll() is not None
            node.kill()
            node.start(self.persistence)
        else:
            node.limit_files(resource.RLIM_INFINITY)

    def node_clock(self, fault, record, number):
        return self.step(self.cluster.nodes[int(number)].clock, fault, record)

    def host_clock(self, fault, record, name):
        return self.step(self.cluster.hosts[name].clock, fault, record)

    def set_clock(self, number):
        """Sets the clock of a node right: a step for the checker, too."""
        clock = self.cluster.nodes[number].clock
        if clock.offset_s != 0:
            now = now_us()
            self.history.write({"kind": "node_clock", "target": f"node/{number}", "step": -clock.offset_s, "offset": 0,
                                "t0": now, "t1": now})
        clock.set(0)

    def step(self, clock, fault, record):
        clock.set(clock.offset_s + fault["step"])
        record.update(step=fault["step"], offset=clock.offset_s)

    # ---- links ----

    def on_link(self, fault, host, number, *state):
        self.cluster.links.set(host, int(number), *state)
        self.last(fault)
        self.cluster.links.set(host, int(number), "ok")

    def link_delay(self, fault, record, host, number):
        record["ms"] = [5, 50, 150, 400][int(fault["pick"] * 4)]
        self.on_link(fault, host, number, "delay", record["ms"])

    def link_cut(self, fault, record, host, number):
        self.on_link(fault, host, number, "cut")

    def link_hold(self, fault, record, host, number):
        self.on_link(fault, host, number, "hold")

    def link_half_in(self, fault, record, host, number):
        self.on_link(fault, host, number, "half_in")

    def link_half_out(self, fault, record, host, number):
        self.on_link(fault, host, number, "half_out")

    # ---- processes of a server ----

    def at_process(self, find, host, record, number):
        """False if there is no such process."""
        with self.cluster.hosts[host].lock:
            pid = find()
            if pid is None:
                return False
            record["pid"] = pid
            return send_signal(pid, number)

    def pause_process(self, find, host, fault, record):
        if not self.at_process(find, host, record, signal.SIGSTOP):
            return False
        self.last(fault)
        send_signal(record["pid"], signal.SIGCONT)

    def backend(self, host, fault):
        return lambda: self.cluster.hosts[host].backend(fault["pick"])

    def backend_pause(self, fault, record, host):
        return self.pause_process(self.backend(host, fault), host, fault, record)

    def backend_cancel(self, fault, record, host):
        return self.at_process(self.backend(host, fault), host, record, signal.SIGINT)

    def backend_term(self, fault, record, host):
        return self.at_process(self.backend(host, fault), host, record, signal.SIGTERM)

    def backend_kill(self, fault, record, host):
        return self.at_process(self.backend(host, fault), host, record, signal.SIGKILL)

    def broker_pause(self, fault, record, host):
        return self.pause_process(self.cluster.hosts[host].broker, host, fault, record)

    def broker_term(self, fault, record, host):
        return self.at_process(self.cluster.hosts[host].broker, host, record, signal.SIGTERM)

    def broker_kill(self, fault, record, host):
        return self.at_process(self.cluster.hosts[host].broker, host, record, signal.SIGKILL)

    # ---- servers ----

    def server_pause(self, fault, record, host):
        server = self.cluster.hosts[host]
        with server.lock:
            server.pause()
            self.last(fault)
            server.go_on()

    def restart_server(self, fault, host, stop, *arguments):
        server = self.cluster.hosts[host]
        with server.lock:
            stop(*arguments)
            self.last(fault)
            server.start()

    def server_kill(self, fault, record, host):
        self.restart_server(fault, host, self.cluster.hosts[host].kill)

    def server_immediate(self, fault, record, host):
        self.restart_server(fault, host, self.cluster.hosts[host].stop, signal.SIGQUIT)

    def server_fast(self, fault, record, host):
        self.restart_server(fault, host, self.cluster.hosts[host].stop, signal.SIGINT)
