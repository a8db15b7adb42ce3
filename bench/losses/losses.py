"""bench/losses/losses.py: the updates that are lost without each protection

A try takes the lock, reads a counter, thinks, writes the counter plus one, and releases
the lock.  Two clients, one on each of two hosts, share a counter; the client of host a
has the lock first.  Then a fault begins, and the client of host b makes its try.  An
update without an error that is missing in the counter is lost.  32 pairs of clients run
at the same time; the counters are in a database of host a.

A way is a kind of lock with its protection; a fault is what happens to host a, or to the
nodes.  The ways take turns in each round.
"""

import argparse
import collections
import csv
import math
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg2

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE + "/../../test/chaos")
from cluster import Links, Node, Server, free_ports, send_signal, wait_until  # noqa: E402
from plan import NODES  # noqa: E402

PAIRS = 32
TTL_S = 1.0
THINK_S = 0.05
PAUSE_S = (4 * TTL_S, 5 * TTL_S)  # so long that each library finds the lock free
LONG_THINK_S = 5 * TTL_S  # under a fault of links or nodes, so that each library can find the lock free
MAJORITY = NODES[:3]
PEERS = {"redlock-node": ("redlock-node", {}), "redsync": ("redsync", {}),
         "redisson-redlock": ("redisson-redlock", {}), "redisson-fenced": ("redisson-redlock", {"HOLD_FENCED": "1"})}
# name: label
WAYS = {
    "none": "no lock",
    "advisory": "advisory locks of each server",
    "redsync": "redsync, as in its README",
    "redlock-node": "node-redlock, `using` and its signal",
    "redisson-redlock": "Redisson's RedLock",
    "redisson-fenced": "Redisson's RFencedLock, token with each access",
    "lease": "redlock_pg: the lease alone",
    "check": "redlock_pg: `redlock_check` before the write",
    "guard": "redlock_pg: in the transaction, as by default",
    "fence": "redlock_pg: in the transaction, with `redlock_fence`",
}
FAULTS = {
    "pause": "holder paused before the write",
    "commit": "holder paused in the commit",
    "partition": "holder without nodes",
    "clock": "clocks of 3 nodes set forward",
    "empty": "3 nodes restarted empty",
    "failover": "3 nodes replaced by replicas that lag",
}
# for the host whose lock is on another server than the counter
FENCE_OF_B = """INSERT INTO redlock_fences AS f VALUES (%(key)s, %(token)s, clock_timestamp())
    ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token, passed_at = EXCLUDED.passed_at
    WHERE f.token <= EXCLUDED.token RETURNING token"""
READ = "SELECT n FROM counter WHERE id = %(id)s"
WRITE = "UPDATE counter SET n = %(n)s + 1 WHERE id = %(id)s RETURNING n"
READ_WITH_TOKEN = "UPDATE counter SET token = %(token)s WHERE id = %(id)s AND token <= %(token)s RETURNING n"
WRITE_WITH_TOKEN = "UPDATE counter SET n = %(n)s + 1 WHERE id = %(id)s AND token = %(token)s RETURNING n"


class Refused(Exception):
    """This try writes nothing."""


class Session:
    """A session of a server.  A statement that fails, or has no row, is refused."""

    def __init__(self, server, *settings):
        self.connection = server.connect()
        self.connection.autocommit = True
        self.pid = self.connection.get_backend_pid()
        for setting in settings:
            self.run("SET " + setting)

    def run(self, statement, **known):
        try:
            with self.connection.cursor() as cursor:
                cursor.execute(statement, known)
                if not cursor.description:
                    return None
                row = cursor.fetchone()
        except psycopg2.Error as error:
            raise Refused(str(error))
        if row is None:
            raise Refused(statement)
        return row[0]

    def close(self):
        self.connection.close()


class Peer:
    """A process with another library, for all clients of a host."""

    def __init__(self, name, ports):
        program, environment = PEERS[name]
        nodes = ",".join(f"127.0.0.1:{port}" for port in ports)
        self.process = subprocess.Popen(
            [f"{HERE}/../peers/{program}/hold", "--nodes", nodes, "--ttl-ms", f"{TTL_S * 1000:.0f}"], text=True,
            bufsize=1, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL)
        self.answers = collections.defaultdict(queue.Queue)
        self.writing = threading.Lock()
        if self.process.stdout.readline() != "ready\n":
            raise Refused(name + " does not start")
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            key, *answer = line.split()
            self.answers[key].put(answer)

    def ask(self, command, key):
        with self.writing:
            print(command, key, file=self.process.stdin, flush=True)
        return self.answers[key].get(timeout=60)

    def close(self):
        self.process.stdin.close()
        self.process.kill()
        self.process.wait()


class Client:
    """The client number `number` of a host, with a session at the counters' server."""

    def __init__(self, way, number, server, data_server, peer):
        self.way = way
        self.number = number
        self.key = f"counter{number}"
        self.peer = peer
        self.inside = way in ("guard", "fence") and server is data_server
        self.ours = way in ("lease", "check", "guard", "fence")
        settings = [f"redlock.ttl = '{TTL_S * 1000:.0f} ms'"] if self.ours else []
        self.data = Session(data_server, *(settings if self.inside else []))
        self.lock = self.data if self.inside else Session(server, *settings) if self.ours or way == "advisory" else None

    def acquire(self):
        """The token, or None where there is none."""
        if self.way == "none":
            return None
        if self.way == "advisory":
            return self.lock.run("SELECT pg_advisory_lock(%(id)s)", id=self.number)
        if self.ours:
            scope = "transaction" if self.inside else "session"
            return self.lock.run("SELECT redlock_acquire(%(key)s, wait => '10 s', scope => %(scope)s)", key=self.key,
                                 scope=scope)
        answer = self.peer.ask("lock", self.key)
        if answer[0] != "granted":
            raise Refused(str(answer))
        return int(answer[1]) if len(answer) > 1 else None

    def check(self):
        if self.way == "check":
            self.lock.run("SELECT redlock_check(%(key)s)", key=self.key)
        elif self.peer and self.peer.ask("check", self.key) != ["valid"]:
            raise Refused("lost")

    def release(self):
        if self.way == "advisory":
            self.lock.run("SELECT pg_advisory_unlock_all()")
        elif self.ours and not self.inside:
            self.lock.run("SELECT redlock_release_all()")
        elif self.peer:
            self.peer.ask("unlock", self.key)

    def try_once(self, think_s, has_lock=lambda: None):
        """Returns whether the try wrote without an error.  `has_lock` is called once, with
        the lock or without."""
        block = self.inside or self.way == "fence"
        known = {"id": self.number, "key": self.key}
        fenced = self.way == "redisson-fenced"
        written = False
        try:
            try:
                if block:
                    self.data.run("BEGIN")
                known["token"] = self.acquire()
            finally:
                has_lock()
            if self.way == "fence":
                self.data.run("SELECT redlock_fence(%(key)s)" if self.inside else FENCE_OF_B, **known)
            known["n"] = self.data.run(READ_WITH_TOKEN if fenced else READ, **known)
            self.data.run("SELECT pg_sleep(%(s)s)", s=think_s)
            self.check()
            self.data.run(WRITE_WITH_TOKEN if fenced else WRITE, **known)
            if block:
                block = False
                self.data.run("COMMIT")
            written = True
        except Refused:
            if block:
                try:
                    self.data.run("ROLLBACK")
                except Refused:
                    pass
        try:
            self.release()
        except (Refused, queue.Empty):
            pass
        return written

    def close(self):
        for session in {self.data, self.lock} - {None}:
            session.close()


class Bench:
    def __init__(self, options):
        ports = free_ports(len(NODES) + 2)
        tmp = options.tmp
        self.tmp = tmp
        self.nodes = [Node(tmp, options.nodes_tmp, n, ports.pop()) for n in NODES]
        self.links = Links([node.port for node in self.nodes])
        self.flush = tmp + "/slow_flush.flag"
        self.stall_flushes(False)
        for node in self.nodes:
            node.start(durable=False)
        self.a, self.b = [Server(tmp, name, ports.pop(), self.links.ports[name]) for name in "ab"]
        for server in (self.a, self.b):
            with open(server.dir + "/postgresql.conf", "a") as f:
                f.write(f"""
                    fsync = on
                    max_connections = 200
                    redlock.ttl = '{TTL_S} s'
                    redlock.max_ttl = '{TTL_S} s'
                    """)
            server.clock.environment |= {"SLOW_FLUSH_FILE": self.flush if server is self.a else "",
                                         "LD_PRELOAD": f"{tmp}/slow_flush.so"}
            server.start()
            server.sql("CREATE EXTENSION redlock_pg")
        self.a.sql("CREATE TABLE counter (id int PRIMARY KEY, n int, token bigint)")
        self.wait_ready()

    def stall_flushes(self, stalled):
        fd = os.open(self.flush, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(fd, int(stalled).to_bytes(8, "little"), 0)
        os.close(fd)

    def wait_ready(self):
        for server in (self.a, self.b):
            wait_until("all nodes to vote", lambda: server.sql(
                "SELECT count(*) FROM redlock_nodes WHERE state = 'ready'") == [(len(NODES),)])
            wait_until("the locks to be released", lambda: server.sql("SELECT count(*) FROM redlock_locks") == [(0,)])

    # ---- faults: each calls `begun` when it has begun, and ends after the tries of host b where it must ----

    def paused(self, pids, begun, before=lambda: None, after=lambda: None):
        before()
        for pid in pids:
            send_signal(pid, signal.SIGSTOP)
        begun()
        time.sleep(random.uniform(*PAUSE_S))
        after()
        for pid in pids:
            send_signal(pid, signal.SIGCONT)

    def fault_pause(self, clients, peer, begun):
        time.sleep(THINK_S)
        pids = {session.pid for client in clients for session in (client.data, client.lock) if session}
        self.paused(pids | self.others(peer), begun)

    def fault_commit(self, clients, peer, begun):
        def all_wait():
            self.stall_flushes(True)
            time.sleep(4 * THINK_S)

        pids = {client.lock.pid for client in clients if client.lock and client.lock is not client.data}
        self.paused(pids | self.others(peer), begun, all_wait, lambda: self.stall_flushes(False))

    def others(self, peer):
        """The processes that keep the locks of host a."""
        return {self.a.broker()} | ({peer.process.pid} if peer else set())

    def fault_partition(self, clients, peer, begun):
        for node in NODES:
            self.links.set("a", node, "hold")
        begun()
        time.sleep(1.2 * LONG_THINK_S)
        for node in NODES:
            self.links.set("a", node, "ok")

    def fault_clock(self, clients, peer, begun):
        for node in MAJORITY:
            self.nodes[node].clock.set(math.ceil(2 * TTL_S))
        begun()
        time.sleep(LONG_THINK_S)
        for node in MAJORITY:
            self.nodes[node].clock.set(0)

    def restart(self, begun):
        for node in MAJORITY:
            self.nodes[node].kill()
        for node in MAJORITY:
            path = self.nodes[node].dir
            if os.path.exists(path + "/replica.rdb"):
                shutil.move(path + "/replica.rdb", path + "/dump.rdb")
            self.nodes[node].start(durable=False)
        begun()

    def fault_empty(self, clients, peer, begun):
        self.restart(begun)

    def fault_failover(self, clients, peer, begun):
        self.restart(begun)

    def before(self, fault):
        """A replica that lags has the data from before the tries."""
        for node in self.nodes:
            for name in ("dump.rdb", "replica.rdb"):
                if os.path.exists(f"{node.dir}/{name}"):
                    os.unlink(f"{node.dir}/{name}")
        if fault == "failover":
            for node in MAJORITY:
                self.nodes[node].ask("SAVE")
                os.rename(self.nodes[node].dir + "/dump.rdb", self.nodes[node].dir + "/replica.rdb")

    # ---- one round of one way under one fault ----

    def one(self, way, fault, threads):
        self.wait_ready()
        self.a.sql("TRUNCATE counter")
        self.a.sql(f"INSERT INTO counter SELECT id, 0, 0 FROM generate_series(1, {PAIRS}) id")
        self.a.sql("TRUNCATE redlock_fences")
        peers = [Peer(way, self.links.ports[host]) if way in PEERS else None for host in "ab"]
        try:
            on_a, on_b = [[Client(way, number, server, self.a, peer) for number in range(1, PAIRS + 1)]
                          for server, peer in zip((self.a, self.b), peers)]
            self.before(fault)
            think_s = THINK_S if fault in ("pause", "commit") else LONG_THINK_S
            all_have = threading.Barrier(PAIRS + 1)
            begun = threading.Event()
            # a pause meets each try at another moment
            times = [think_s * (random.uniform(0, 2) if fault == "pause" else 1) for _ in on_a]
            tries = [threads.submit(client.try_once, time_s, all_have.wait) for client, time_s in zip(on_a, times)]
            all_have.wait(60)
            faulty = threads.submit(getattr(self, "fault_" + fault), on_a, peers[0], begun.set)
            if not begun.wait(60):
                raise Refused("the fault does not begin")
            tries_of_b = [threads.submit(client.try_once, THINK_S) for client in on_b]
            faulty.result()
            written = [sum(one.result() for one in some) for some in (tries, tries_of_b)]
            there = self.a.sql("SELECT sum(n) FROM counter")[0][0]
            for client in on_a + on_b:
                client.close()
            return {"tries": PAIRS, "written_a": written[0], "written_b": written[1], "lost": sum(written) - there}
        finally:
            for peer in peers:
                if peer:
                    peer.close()
            if way in PEERS:
                time.sleep(TTL_S)  # keys of locks that were not released

    def stop(self):
        for server in (self.a, self.b):
            if server.process and server.process.poll() is None:
                server.stop(signal.SIGINT)
        self.links.stop()
        for node in self.nodes:
            node.kill()


def interval(lost, tries):
    """Wilson's interval of 95 %, in 1,000 tries."""
    z, p = 1.96, lost / tries
    middle = (p + z * z / (2 * tries)) / (1 + z * z / tries)
    half = z * math.sqrt(p * (1 - p) / tries + z * z / (4 * tries * tries)) / (1 + z * z / tries)
    return max(0, 1000 * (middle - half)), min(1000, 1000 * (middle + half))


def cell(found, way, fault):
    """(tries, lost, refused updates of both hosts)"""
    rows = [row for row in found if row["way"] == way and row["fault"] == fault]
    tries, lost = sum(r["tries"] for r in rows), sum(r["lost"] for r in rows)
    return tries, lost, 2 * tries - sum(r["written_a"] + r["written_b"] for r in rows)


def draw(path, found):
    """A map of the cells: the more red, the more updates are lost."""
    width, height, left, top = 120, 26, 330, 60
    out = [f"""<svg xmlns="http://www.w3.org/2000/svg" width="{left + width * len(FAULTS)}"
        height="{top + height * len(WAYS)}" font-family="sans-serif" font-size="12">
        <rect width="100%" height="100%" fill="white"/>"""]
    for column, label in enumerate(FAULTS.values()):
        words = label.split()
        half = (len(words) + 1) // 2
        for line, text in enumerate((" ".join(words[:half]), " ".join(words[half:]))):
            out.append(f'<text x="{left + width * (column + 0.5)}" y="{22 + 16 * line}" text-anchor="middle">{text}</text>')
    for row, (way, label) in enumerate(WAYS.items()):
        y = top + height * row
        out.append(f'<text x="{left - 10}" y="{y + 17}" text-anchor="end">{label.replace("`", "")}</text>')
        for column, fault in enumerate(FAULTS):
            tries, lost, _ = cell(found, way, fault)
            if not tries:
                continue
            part = lost / tries
            x = left + width * column
            out.append(f'<rect x="{x + 1}" y="{y + 1}" width="{width - 2}" height="{height - 2}" '
                       f'fill="hsl({120 - 120 * part ** 0.3:.0f}, 60%, 75%)"/>')
            out.append(f'<text x="{x + width / 2}" y="{y + 17}" text-anchor="middle">{1000 * part:.0f}</text>')
    with open(path, "w") as f:
        f.write("\n".join(out) + "\n</svg>\n")


def write_report(path, machine, found):
    """A table: lost updates of 1,000 faults, and the interval of 95 %."""
    with open(machine) as f:
        head = f.read()
    with open(path, "w") as out:
        rounds = max(row["round"] for row in found)
        out.write("# Lost updates\n\nWritten by `bench/losses/run`. Lost updates for 1,000 tries. Each cell has "
                  f"{rounds * PAIRS} tries: {rounds} rounds of {PAIRS} at a time. In brackets Wilson's interval of 95 %, as "
                  "if all tries were independent; the tries of a round share one fault, so the true interval is wider. "
                  "Then the refused updates, for 1,000 updates of both hosts.\n\n![lost updates](losses.svg)\n\n")
        out.write(head + "\n")
        out.write("| | " + " | ".join(FAULTS.values()) + " |\n|---|" + "---|" * len(FAULTS) + "\n")
        for way, label in WAYS.items():
            cells = []
            for fault in FAULTS:
                tries, lost, refused = cell(found, way, fault)
                if not tries:
                    cells.append("–")
                    continue
                low, high = interval(lost, tries)
                cells.append(f"**{1000 * lost / tries:.0f}** ({low:.0f} to {high:.0f}); {500 * refused / tries:.0f} refused")
            out.write(f"| {label} | " + " | ".join(cells) + " |\n")
        with open(HERE + "/about.md") as f:
            out.write("\n" + f.read())


def main():
    parser = argparse.ArgumentParser()
    for name in ("--tmp", "--nodes-tmp", "--peers"):
        parser.add_argument(name, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    options = parser.parse_args()
    there = options.peers.split()
    ways = [way for way in WAYS if way not in PEERS or PEERS[way][0] in there]
    bench = Bench(options)
    found = []
    try:
        with open(options.tmp + "/losses.csv", "w") as f, ThreadPoolExecutor(2 * PAIRS + 2) as threads:
            out = csv.DictWriter(f, ["fault", "way", "round", "tries", "written_a", "written_b", "lost"],
                                 lineterminator="\n")
            out.writeheader()
            for round_ in range(1, options.rounds + 1):
                for fault in FAULTS:
                    for way in ways:
                        row = {"fault": fault, "way": way, "round": round_, **bench.one(way, fault, threads)}
                        print(*row.values(), flush=True)
                        found.append(row)
                        out.writerow(row)
                        f.flush()
    finally:
        bench.stop()
    draw(options.tmp + "/losses.svg", found)
    write_report(options.tmp + "/README.md", options.tmp + "/machine.txt", found)


main()
