"""test/chaos/faults.py: executes the plan of faults, and records the times"""

import contextlib
import signal
import threading
import time

from cluster import Broken, send_signal
from history import now_us


class Executor:
    def __init__(self, cluster, history, durable):
        self.cluster = cluster
        self.history = history
        self.durable = durable
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
        node.start(self.durable)

    def node_empty(self, fault, record, number):
        node = self.cluster.nodes[int(number)]
        node.kill()
        node.empty()
        self.last(fault)
        node.start(self.durable)

    def node_flush(self, fault, record, number):
        self.cluster.nodes[int(number)].ask("FLUSHALL")

    def node_clock(self, fault, record, number):
        return self.step(self.cluster.nodes[int(number)].clock, fault, record)

    def host_clock(self, fault, record, name):
        return self.step(self.cluster.hosts[name].clock, fault, record)

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
