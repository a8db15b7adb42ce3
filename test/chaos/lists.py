"""test/chaos/lists.py: changes the list of nodes again and again, in two steps, as
docs/how-to/replace-nodes.md says, while faults disturb the cluster"""

import random
import threading
import time

import psycopg2

from cluster import MAX_HOLD_AT_LEAST_S, Broken, wait_until
from history import now_us
from plan import NODES


class Operator(threading.Thread):
    def __init__(self, cluster, history, seed):
        super().__init__()
        self.cluster = cluster
        self.history = history
        self.draw = random.Random(seed)
        self.over = threading.Event()
        self.now = NODES
        self.problems = []
        self.changes = 0

    def run(self):
        try:
            while not self.over.wait(self.draw.random() * 3):
                self.change(sorted(self.draw.sample(NODES, self.draw.choice([3, 4, 5]))))
            if self.now != NODES:
                self.change(NODES)
        except Broken as error:
            self.problems.append(f"operator: {error}")

    def change(self, nodes):
        record = {"kind": "nodes_change", "target": "lists/all", "from": self.now, "to": nodes, "t0": now_us()}
        self.set_lists(self.now, nodes)
        while True:
            begins = self.begins()
            self.wait("two lists", lambda host: self.is_settled(host, len(nodes)))
            # a restarted host knows no kept keys of released locks
            time.sleep(MAX_HOLD_AT_LEAST_S)
            if begins == self.begins():
                break
        self.set_lists(nodes, [])
        self.wait("the new list", lambda host: self.has_left(host, len(nodes)))
        self.now = nodes
        self.changes += 1
        record["t1"] = now_us()
        self.history.write(record)

    def set_lists(self, now, then):
        for host in self.cluster.hosts.values():
            host.set_nodes(now, then)

    def wait(self, what, condition):
        for host in self.cluster.hosts.values():
            wait_until(f"{what} of host {host.name}", lambda: self.is_so(condition, host), 180)

    def is_so(self, condition, host):
        try:
            return condition(host)
        except psycopg2.Error:
            return False

    def begins(self):
        found = []
        for host in self.cluster.hosts.values():
            wait_until(f"host {host.name}", lambda: self.is_so(lambda host: host.sql("SELECT 1"), host), 180)
            found += [self.begin_of(host)]
        return found

    def begin_of(self, host):
        try:
            return host.sql("SELECT backend_start FROM pg_stat_activity WHERE backend_type = 'checkpointer'")
        except psycopg2.Error:
            return None

    def is_settled(self, host, nodes):
        return host.sql(f"""
            SELECT unsettled = 0 AND kept_until IS NULL
                   AND (SELECT count(*) FROM redlock_nodes WHERE list IN ('next', 'both') AND state = 'ready') = {nodes}
              FROM redlock_stats""") == [(True,)]

    def has_left(self, host, nodes):
        return host.sql(f"""
            SELECT unsettled = 0 AND (SELECT count(*) = {nodes} AND bool_and(list = 'now') FROM redlock_nodes)
              FROM redlock_stats""") == [(True,)]
