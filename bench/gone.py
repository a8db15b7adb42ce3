"""bench/gone.py: the cost for all hosts when the host whose turn is next does not come

Hosts with four sessions each take one lock again and again, for HOLD_MS each time.  The
messages of releases name the next hosts.  When a message gives the turn to a host, this
program stops (SIGSTOP) or kills (SIGKILL) all processes of the host behind.  The figure is
the longest time between two commits of all hosts in the next second, beside the longest in
the second before.  If the stopped host has the lock all the same, its request was already
sent, and the time is not counted.
"""

import glob
import os
import signal
import socket
import subprocess
import time

from rig import Missing, WAIT_S, wait_until

KEY = "gone"
HOLD_MS = 5
SETTLE_S = 2  # the hosts begin, and find an order
CALM_S = 1  # measured before and after
KINDS = {"stopped": signal.SIGSTOP, "killed": signal.SIGKILL}


class Releases:
    """The messages of releases: the waiting hosts, in order."""

    def __init__(self, port):
        self.connection = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self.replies = self.connection.makefile("rb")
        self.connection.sendall(f"SUBSCRIBE redlock:{KEY}\r\n".encode())
        self.next_message()

    def next_message(self):
        words = []
        for _ in range(int(self.replies.readline()[1:])):
            line = self.replies.readline()
            if line.startswith(b"$"):
                words.append(self.replies.read(int(line[1:]) + 2)[:-2])
        return words[-1]

    def hosts(self):
        """The hosts that the next release names."""
        return [word.decode() for word in self.next_message().split(b"\0")[2:-1:2]]

    def close(self):
        self.connection.close()


def children(first):
    others = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as f:
                pid, rest = f.read().split(" (", 1)
        except OSError:
            continue
        if int(rest.rsplit(") ", 1)[1].split()[1]) == first:
            others.append(int(pid))
    return others


def load(rig, hosts, seconds):
    script = f"{rig.tmp}/gone.sql"
    with open(script, "w") as f:
        f.write(f"BEGIN;\nSELECT redlock_acquire('{KEY}');\nSELECT pg_sleep({HOLD_MS / 1000});\nCOMMIT;\n")
    return [subprocess.Popen(
        ["pgbench", "-n", *host.connection, "-c", "4", "-T", str(seconds), "-M", "prepared", "-l", "--log-prefix",
         f"{rig.tmp}/gone.{host.name}", "-f", script, "postgres"], stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL) for host in hosts]


def commits(rig):
    """Times of the commits of all hosts."""
    at = []
    for name in glob.glob(f"{rig.tmp}/gone.*.[0-9]*"):
        with open(name) as f:
            at += [int(row[4]) + int(row[5]) / 1e6 for row in map(str.split, f) if len(row) >= 6]
        os.unlink(name)
    return sorted(at)


def longest_gap_ms(at, begin, end):
    gaps = [(after - before) * 1000 for before, after in zip(at, at[1:]) if after >= begin and before <= end]
    if not gaps:
        raise Missing("gone: no lock was granted")
    return max(gaps)


def once(rig, hosts, kind):
    """The longest gaps before and after, in ms; None if the stopped host had the lock."""
    by_id = {host.sql("""SELECT host_id FROM redlock_hosts WHERE name = current_setting('cluster_name')
                          ORDER BY since DESC LIMIT 1"""): host for host in hosts}
    node = rig.nodes[0]
    running = load(rig, hosts, SETTLE_S + 2 * CALM_S + 2)
    time.sleep(SETTLE_S + CALM_S)
    releases = Releases(node.port)
    named = []
    end = time.monotonic() + WAIT_S
    while len(named) != len(hosts):
        named = releases.hosts()
        if time.monotonic() > end:
            raise Missing("gone: no release names all hosts")
    releases.close()
    gone = by_id[named[1]]
    directory = f"{rig.tmp}/pg.{gone.directory}"
    with open(directory + "/postmaster.pid") as f:
        pids = [int(f.readline())]
    stopped_at = time.time()
    try:
        os.kill(pids[0], signal.SIGSTOP)  # starts no children from now on
        pids += children(pids[0])
        for pid in pids:
            os.kill(pid, KINDS[kind])
        had_it = False
        watch_until = time.monotonic() + CALM_S
        while time.monotonic() < watch_until:
            had_it = had_it or node.ask(f"GETRANGE redlock:{KEY} 43 58").strip() == named[1]
            time.sleep(0.01)
    finally:
        if kind == "stopped":
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
    if kind == "killed":
        wait_until("its processes to be gone", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
        subprocess.run(["pg_ctl", "-w", "-D", directory, "-l", directory + ".log", "-o",
                        f"--cluster-name={gone.name}", "start"],
                       stdout=subprocess.DEVNULL, check=True)
    for pgbench in running:
        pgbench.wait()
    at = commits(rig)
    for host in hosts:
        wait_until("the hosts", lambda: host.sql("SELECT 1") == "1")
        host.wait_ready()
        host.wait_idle()
    if had_it:
        return None
    return (longest_gap_ms(at, stopped_at - CALM_S, stopped_at), longest_gap_ms(at, stopped_at, stopped_at + CALM_S))


def measure(rig, kind, times, round_):
    hosts = [rig.hosts[f"fair{i}"] for i in range(1, 5)]
    found = [gaps for _ in range(times) if (gaps := once(rig, hosts, kind))]
    if not found:
        raise Missing(f"gone: each host that was {kind} had the lock")
    rig.record("gone", kind, 4 * len(hosts), round_, times=len(found), before_ms=max(before for before, _ in found),
               after_ms=max(after for _, after in found), added_ms=max(after - before for before, after in found))
