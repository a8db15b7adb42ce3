"""bench/scale/scale.py: what bench/scale/run measures; started by it

Each part is a function.  It writes its figures with rig.record.  Processor times are of
processes, from /proc, so other work on the machine changes them little.
"""

import argparse
import os
import re
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import crowd_of_hosts
from crowd_of_hosts import memory_used
from rig import Missing, Rig, Sessions, cpu_of_ns, quantile, script_calls, wait_until

LEASES = 10000


def own_locks(rig):
    """Sessions with their own locks, on any number of hosts."""
    name = "current_setting('cluster_name') || ':' || $1"
    return Sessions(rig, "redlock_pg", f"SELECT redlock_acquire({name}, scope => 'session')",
                    f"SELECT redlock_release({name})")


def pairs(rig):
    """One server and more take turns, under the same load of the machine."""
    for round_ in (1, 2, 3):
        for clients in (1, 4, 16, 64):
            rig.measure("cost", own_locks(rig), ("h1",), clients, "own", round_, seconds=2, warmup=0.5)
        for count in (2, 8, 16):
            places = [f"h{number}" for number in range(1, count + 1)]
            for clients in (1, 4):
                rig.measure(f"servers {count}", own_locks(rig), places, clients, "own", round_, seconds=2, warmup=1)


def flush(rig):
    """The same costs with the nodes' files on a disk."""
    took_us = []
    with open(rig.tmp + "/flushed", "wb", buffering=0) as file:
        for _ in range(200):
            file.write(bytes(100))
            began = time.monotonic()
            os.fdatasync(file.fileno())
            took_us.append((time.monotonic() - began) * 1e6)
    for round_ in (1, 2, 3):
        for clients in (1, 4, 16, 64):
            rig.record("flush", "redlock_pg", clients, round_, flush_us=quantile(took_us, .5))
            rig.measure("flush", own_locks(rig), ("h1",), clients, "own", round_, seconds=2, warmup=0.5)


class Used:
    """What nodes and brokers use from now on, while nothing else asks them."""

    def __init__(self, rig, hosts):
        self.rig = rig
        self.brokers = [host.broker_pid() for host in hosts]
        self.before = self.look()

    def look(self):
        counted = [node.counters() for node in self.rig.nodes]
        count = len(counted)
        return {"at": time.monotonic(), "node_us": sum(cpu_of_ns(node.pid) for node in self.rig.nodes) / 1e3 / count,
                "broker_us": sum(map(cpu_of_ns, self.brokers)) / 1e3,
                "commands": sum(sum(commands.values()) for commands, _, _ in counted) / count,
                "calls": sum(script_calls(commands) for commands, _, _ in counted) / count,
                "pings": sum(commands.get("ping", 0) for commands, _, _ in counted) / count,
                "bytes": sum(size for _, _, size in counted) / count}

    def per_second(self):
        after = self.look()
        took = after.pop("at") - self.before.pop("at")
        return {f"{key}_per_s": (value - self.before[key]) / took for key, value in after.items()}


def distance(rig):
    alone = [name for name in rig.hosts if "." not in name]
    crowd = [name for name in rig.hosts if name.startswith("d10000")]
    for round_ in (1, 2, 3):
        for places in [[name] for name in alone] + [crowd]:
            trip_ms = quantile(rig.hosts[places[0]].round_trips_ms(), .5)
            delay_us = int(places[0].split(".")[0][1:])
            # many sessions near the nodes would need more than this machine's processors
            for clients in (4,) if len(places) > 1 else (1, 16) if delay_us >= 2500 else (1,):
                workload = f"distance {2 * delay_us / 1000:g} ms, {len(places)}"
                rig.record(workload, "redlock_pg", clients * len(places), round_, trip_ms=trip_ms)
                rig.measure(workload, own_locks(rig), places, clients, "own", round_, seconds=2, warmup=1)


def rest(rig):
    hosts = [rig.hosts[f"h{number}"] for number in range(1, 17)]
    for count in (16, 8, 2):
        while len(hosts) > count:
            host = hosts.pop()
            subprocess.run(["pg_ctl", "-w", "-D", f"{rig.tmp}/pg.{host.directory}", "stop"], stdout=subprocess.DEVNULL,
                           check=True)
        for host in hosts:
            wait_until("hosts to leave", lambda: host.sql("SELECT count(*) FROM redlock_hosts") == str(count))
        # three beats of each host
        used = Used(rig, hosts)
        time.sleep(30)
        rig.record("rest", "redlock_pg", count, 1, **used.per_second())
        rig.record("rest", "redlock_pg", count, 1, node_bytes=sum(map(memory_used, rig.nodes)) / len(rig.nodes))
        waiting(rig, hosts)
        one_lock = Sessions(rig, "redlock_pg", "SELECT redlock_acquire('turns:' || $1, scope => 'session')",
                            "SELECT redlock_release('turns:' || $1)")
        for round_ in (1, 2, 3):
            rig.measure(f"turns {count}", one_lock, [host.name for host in hosts], 1, "one", round_, seconds=2, warmup=1)


def waiting(rig, hosts):
    """One session of each host waits for a lock of the first host."""
    acquire = "SELECT redlock_acquire('waiting', scope => 'session')"
    sessions = []
    for host in hosts:
        sessions.append(host.psql("-c", acquire, "-c", "SELECT pg_sleep(3600)"))
        wanted = "held" if host is hosts[0] else "waiting"
        wait_until("the session", lambda: host.sql(
            f"SELECT count(*) FROM redlock_locks WHERE state = '{wanted}'") == "1")
    time.sleep(2)  # first rounds and subscriptions
    used = Used(rig, hosts)
    time.sleep(10)
    rig.record("waiting", "redlock_pg", len(hosts) - 1, 1, **used.per_second())
    for host in reversed(hosts):
        host.terminate_clients()
    for session in sessions:
        session.wait()


def many(rig):
    found = crowd_of_hosts.Captured(rig)
    for round_ in (1, 2, 3):
        for connections in (10, 100, 1000):
            rig.record("many pairs", "redlock_pg", connections, round_, **crowd_of_hosts.pairs(found, connections))
    for hosts in (10, 100, 1000):
        rig.record("many beats", "redlock_pg", hosts, 1, **crowd_of_hosts.beats(found, hosts))
    told = subprocess.run(["test/sim/crowd"], text=True, capture_output=True, check=True).stdout
    hosts, commands = re.search(r"while (\d+) hosts wait each node has ([\d.]+) commands a second", told).groups()
    rig.record("many waiting", "redlock_pg", int(hosts), 1, commands_per_s=float(commands))
    memory(rig)


def memory(rig):
    """The bytes of a lease and of its counter at a node, and of a place for a lease in shared memory."""
    host = rig.hosts["h1"]
    empty = [memory_used(node) for node in rig.nodes]
    holder = host.psql("-c", f"""
        SELECT count(redlock_acquire('tenant:' || i, scope => 'session')) FROM generate_series(1, {LEASES}) i""",
                       "-c", "SELECT pg_sleep(3600)")
    wait_until("leases to be held", lambda: host.sql(
        "SELECT count(*) FROM redlock_locks WHERE state = 'held'") == str(LEASES), 120)
    held = [memory_used(node) for node in rig.nodes]
    renewed = lambda: int(host.sql("SELECT renewed FROM redlock_stats"))
    used, before = Used(rig, [host]), renewed()
    time.sleep(10)
    per_second, renewals_per_s = used.per_second(), (renewed() - before) / 10
    rig.record("renewals", "redlock_pg", LEASES, 1, renewals_per_s=renewals_per_s,
               **{f"{of}_us": per_second[f"{of}_us_per_s"] / renewals_per_s for of in ("node", "broker")})
    host.terminate_clients()
    holder.wait()
    counters = [memory_used(node) for node in rig.nodes]
    small_mb, few, large_mb, many = rig.shared_memory
    for number in range(len(rig.nodes)):
        rig.record("memory", f"node {number + 1}", LEASES, 1, lease_bytes=(held[number] - empty[number]) / LEASES,
                   counter_bytes=(counters[number] - empty[number]) / LEASES)
    rig.record("memory", "shared memory", many, 1, shared_bytes=(large_mb - small_mb) * 1048576 / (many - few))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tmp")
    parser.add_argument("part", choices=("pairs", "flush", "distance", "rest", "many"))
    given = parser.parse_args()

    # run.part is renamed to run.csv when complete
    unfinished, whole = given.tmp + "/results/run.part", given.tmp + "/results/run.csv"
    with open(unfinished, "w", newline="") as file:
        rig = Rig(given.tmp, file)
        try:
            globals()[given.part](rig)
        except (Missing, subprocess.CalledProcessError) as why:
            rig.problem(f"{given.part}: {why}")
    os.rename(unfinished, whole)
    with open(given.tmp + "/results/machine.txt", "a") as machine, open("/proc/loadavg") as load:
        machine.write("load after: " + " ".join(load.read().split()[:3]) + "\n")
    sys.exit(1 if rig.problems else 0)


main()
