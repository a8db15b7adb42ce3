"""bench/pauses.py: the effect of paused holders on a counter

A try takes the lock, reads the counter, thinks, writes the counter plus one, and releases
the lock.  Two clients on two hosts share a counter.  In each round the client of host a
gets the lock.  Then its sessions and its broker are stopped (SIGSTOP), the sessions at a
random moment of the try, for longer than the lease is valid, and continued (SIGCONT).  The
client of host b makes its try during the stop.  An update without an error that is missing
in the counter is lost.  Many pairs of clients run at the same time.

Each host locks through its own server; the counters are in a database of host a.
`guarded`: on host a, the writing transaction holds the lock.  Else another session holds
it, as with a client of any lock service, or with data elsewhere.
"""

import os
import random
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from rig import Missing

PAIRS = 16
TTL_S = 0.5
THINK_S = 0.02
SETUP = ("DROP TABLE IF EXISTS counter", "DELETE FROM redlock_fences",
         f"""CREATE TABLE counter AS SELECT id, 0 AS n, 0::bigint AS token FROM generate_series(1, {PAIRS}) id""")
# for the host whose lock is on another server than the counter
FENCE_OF_B = """INSERT INTO redlock_fences AS f VALUES ('{id}', {token}, clock_timestamp())
    ON CONFLICT (resource) DO UPDATE SET token = EXCLUDED.token, passed_at = EXCLUDED.passed_at
    WHERE f.token <= EXCLUDED.token RETURNING token"""


@dataclass
class Kind:
    name: str
    acquire: str = "SELECT redlock_acquire('{id}', scope => 'session')"
    release: str = "SELECT redlock_release_all()"
    settings: tuple = ("redlock.on_loss = error",)
    guarded: bool = False
    fence: bool = False
    check: bool = False
    read: str = "SELECT n FROM counter WHERE id = {id}"
    write: str = "UPDATE counter SET n = {n} + 1 WHERE id = {id} RETURNING n"
    pause_s: tuple = (0.75, 1)


SHORT = (0.95 * TTL_S, 1.3 * TTL_S)
KINDS = [
    Kind("no lock", acquire="SELECT 1", release="SELECT 1"),
    Kind("advisory locks of each host", acquire="SELECT pg_advisory_lock({id})",
         release="SELECT pg_advisory_unlock_all()"),
    Kind("lease never looked at again"),
    Kind("lease and redlock_check before the write", check=True),
    Kind("lease with on_loss error and commit_margin 0", guarded=True,
         settings=("redlock.on_loss = error", "redlock.commit_margin = 0")),
    Kind("lease with defaults", guarded=True, settings=()),
    Kind("lease and fence", guarded=True, settings=(), fence=True),
    Kind("elsewhere: token with the write", pause_s=SHORT,
         write="UPDATE counter SET n = {n} + 1, token = {token} WHERE id = {id} AND token <= {token} RETURNING n"),
    Kind("elsewhere: token first", pause_s=SHORT,
         read="UPDATE counter SET token = {token} WHERE id = {id} AND token <= {token} RETURNING n",
         write="UPDATE counter SET n = {n} + 1 WHERE id = {id} AND token = {token} RETURNING n"),
]


class Refused(Missing):
    """This try writes nothing."""


class Session:
    def __init__(self, host, *settings):
        self.psql = host.psql("-v", "ON_ERROR_STOP=0", stdin=subprocess.PIPE)
        for setting in ("client_min_messages = error", *settings):
            self.ask("SET " + setting)
        self.pid = int(self.ask("SELECT pg_backend_pid()"))

    def ask(self, sql):
        self.psql.stdin.write(sql + ";\n\\echo :ERROR\n")
        self.psql.stdin.flush()
        out = []
        while (line := self.psql.stdout.readline()) not in ("true\n", "false\n"):
            if line == "":
                raise Missing("a session ended: " + "".join(out))
            out.append(line)
        if line == "true\n":
            raise Refused("".join(out))
        return "".join(out).strip()

    def row(self, sql):
        """Runs a statement.  A statement without a row is refused, too."""
        found = self.ask(sql)
        if found == "":
            raise Refused(sql)
        return found

    def quit(self):
        self.psql.stdin.close()
        self.psql.wait()


class Client:
    """A client of a host: a session there, and a session at the counter's server."""

    def __init__(self, kind, number, host, counter_host):
        self.kind = kind
        self.id = number
        self.guarded = kind.guarded and host == counter_host
        self.lock = Session(host, f"redlock.ttl = {TTL_S * 1000:.0f}", *kind.settings)
        self.data = self.lock if self.guarded else Session(counter_host)
        self.acquire = kind.acquire.replace(", scope => 'session'", "") if self.guarded else kind.acquire
        self.fence = "SELECT redlock_fence('{id}')" if self.guarded else FENCE_OF_B
        self.tries = self.written = 0

    def try_once(self, asked=lambda: None):
        """`asked` is called when the lock has been granted or refused."""
        block = self.guarded or self.kind.fence
        self.tries += 1
        try:
            try:
                if block:
                    self.data.ask("BEGIN")
                token = self.lock.ask(self.acquire.format(id=self.id))
            finally:
                asked()
            known = {"id": self.id, "token": token}
            if self.kind.fence:
                self.data.row(self.fence.format(**known))
            known["n"] = self.data.row(self.kind.read.format(**known))
            self.data.ask(f"SELECT pg_sleep({THINK_S})")
            if self.kind.check:
                self.lock.ask(f"SELECT redlock_check('{self.id}')")
            self.data.row(self.kind.write.format(**known))
            if block:
                block = False  # over, whatever comes
                self.data.ask("COMMIT")
            self.written += 1
        except Refused:
            if block:
                self.data.ask("ROLLBACK")
        if not self.guarded:
            self.lock.ask(self.kind.release)

    def pause(self):
        pids = {self.lock.pid, self.data.pid}
        time.sleep(random.uniform(0, 1.5 * THINK_S))
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(random.uniform(*self.kind.pause_s))
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def quit(self):
        for session in {self.lock, self.data}:
            session.quit()


def one_round(threads, on_a, on_b, broker):
    all_asked = threading.Barrier(len(on_a) + 1)
    tries = [threads.submit(client.try_once, all_asked.wait) for client in on_a]
    all_asked.wait()
    os.kill(broker, signal.SIGSTOP)
    try:
        pauses = [threads.submit(client.pause) for client in on_a]
        tries += [threads.submit(client.try_once) for client in on_b]
        for one in pauses:
            one.result()
    finally:
        os.kill(broker, signal.SIGCONT)
    for one in tries:
        one.result()


def measure(rig, kind, seconds, round_):
    a, b = rig.hosts["a"], rig.hosts["b"]
    a.sql(*SETUP)
    on_a, on_b = [[Client(kind, number, host, a) for number in range(1, PAIRS + 1)] for host in (a, b)]
    broker = a.broker_pid()
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(3 * PAIRS) as threads:
        while time.monotonic() < end:
            one_round(threads, on_a, on_b, broker)
    clients = on_a + on_b
    tries, written = sum(c.tries for c in clients), sum(c.written for c in clients)
    lost = written - int(a.sql("SELECT sum(n) FROM counter"))
    rig.record("pauses", kind.name, len(clients), round_, tries=tries, refused=tries - written, lost=lost,
               lost_per_1000=1000 * lost / tries)
    for client in clients:
        client.quit()
    a.wait_idle()
    b.wait_idle()
