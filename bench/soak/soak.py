"""bench/soak/soak.py: the work of bench/soak/run, its samples and the verdict; started by it

Sessions on both servers call the functions in random order.  Some sessions live for the whole run;
others end after some steps, often with locks.  Every FAULT_S seconds a fault follows.  Names come
from fixed sets, so the nodes' memory stops growing once each name was used.

A sample is taken every SAMPLE_S seconds, of the first server: no fault restarts this server.
"""

import argparse
import csv
import itertools
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter

import psycopg2

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from rig import Missing, Rig, quantile

SAMPLE_S = 2
FAULT_S = 10
SESSIONS = 6  # on each server
STEPS = 40    # of a session that ends
PAUSE_S = 0.004  # between two steps of a session, on average

# The growth that counts as none, between the medians of the second and of the last quarter.
MOST_GROWTH = {"broker_kb": 256, "backend_kb": 256, "broker_maps": 4, "backend_maps": 4, "broker_files": 0,
               "backend_files": 8, "places": 50, "node_kb": 512}
UNITS = {"broker_kb": "private memory of the broker, kB", "backend_kb": "private memory of a session's process, kB",
         "broker_maps": "mapped areas of the broker", "backend_maps": "mapped areas of a session's process",
         "broker_files": "open files of the broker", "backend_files": "open files of a session's process",
         "places": "used places of the lease table", "node_kb": "memory of the largest node, kB"}

SETUP = """
    CREATE TABLE IF NOT EXISTS soak (id int PRIMARY KEY, n bigint NOT NULL);
    INSERT INTO soak SELECT i, 0 FROM generate_series(0, 9) i ON CONFLICT DO NOTHING"""


# ---- the steps of a session ----

def in_transaction(*statements):
    """The statements share a transaction, which one in three rolls back."""
    def step(cursor, names):
        cursor.execute("BEGIN")
        for statement in statements:
            cursor.execute(statement, names)
        cursor.execute("ROLLBACK" if random.random() < 0.33 else "COMMIT")
    return step


def one_by_one(*statements):
    def step(cursor, names):
        for statement in statements:
            cursor.execute(statement, names)
    return step


def detached(cursor, names):
    cursor.execute("SELECT redlock_try_detached(%(detached)s, '2 s')", names)
    token = cursor.fetchone()[0]
    if token is None or random.random() < 0.3:
        return  # taken, or the lock ends by hold_at_most
    names = {**names, "token": token}
    if random.random() < 0.5:
        cursor.execute("BEGIN")
        cursor.execute("SELECT redlock_attach(%(detached)s, %(token)s)", names)
        cursor.execute("UPDATE soak SET n = n + 1 WHERE id = %(row)s", names)
        cursor.execute("COMMIT")
    cursor.execute("SELECT redlock_extend(%(detached)s, %(token)s, '3 s')", names)
    cursor.execute("SELECT redlock_release(%(detached)s, %(token)s)", names)


def cancelled(cursor, names):
    cursor.execute("SET statement_timeout = 20")
    try:
        cursor.execute("SELECT redlock_acquire(%(hot)s, scope => 'session')", names)
        cursor.execute("SELECT redlock_release(%(hot)s)", names)
    finally:
        cursor.execute("RESET statement_timeout")


STEPS_OF = {
    "fresh": in_transaction("SELECT redlock_acquire(%(fresh)s)", "UPDATE soak SET n = n + 1 WHERE id = %(row)s"),
    "fence": in_transaction("SELECT redlock_acquire(%(fresh)s)", "SELECT redlock_fence(%(fresh)s)"),
    "savepoint": in_transaction("SAVEPOINT s", "SELECT redlock_try(%(fresh)s)", "ROLLBACK TO s",
                                "SELECT redlock_try(%(fresh)s)"),
    "idle": one_by_one("SELECT redlock_acquire(%(idle)s, scope => 'session', keep_idle => '1 s', wait => '1 s')",
                       "SELECT redlock_release(%(idle)s)"),
    "shared": one_by_one("SELECT redlock_acquire(%(shared)s, mode => 'shared', scope => 'session', wait => '1 s')",
                         "SELECT redlock_check(%(shared)s)", "SELECT redlock_release(%(shared)s)"),
    "writer": one_by_one("SELECT redlock_try(%(shared)s, scope => 'session')", "SELECT redlock_release_all()"),
    "permits": in_transaction("SELECT redlock_acquire(%(permits)s, permits => 3, wait => '100 ms')"),
    "several": in_transaction("SELECT redlock_acquire_all(ARRAY[%(fresh)s, %(idle)s, %(hot)s], wait => '200 ms')"),
    "refused": one_by_one("SELECT redlock_acquire(%(hot)s, scope => 'session', wait => '5 ms')",
                          "SELECT redlock_release(%(hot)s)"),
    "kept": one_by_one("SELECT redlock_try(%(kept)s, scope => 'session', hold_at_least => '200 ms')",
                       "SELECT redlock_release_all()"),
    "left": one_by_one("SELECT redlock_try(%(fresh)s, scope => 'session')"),
    "cancelled": cancelled,
    "detached": detached,
    "run": one_by_one("CALL redlock_run(%(job)s, 'UPDATE soak SET n = n + 1 WHERE id = 0')",
                      "SELECT * FROM redlock_last_run(%(job)s)"),
    "wrong": one_by_one("SELECT redlock_acquire(%(fresh)s, ttl => '0')"),
    "questions": one_by_one("SELECT * FROM redlock_holder(%(hot)s)", "SELECT count(*) FROM redlock_holders('hot')",
                            "SELECT count(*) FROM redlock_inspect(%(hot)s)", "SELECT count(*) FROM redlock_locks",
                            "SELECT count(*) FROM redlock_nodes", "SELECT count(*) FROM redlock_hosts",
                            "SELECT count(*) FROM redlock_stat_resources", "SELECT redlock_ask_release(%(idle)s)"),
    "waiters": one_by_one("SELECT count(*) FROM redlock_waiters(%(hot)s)"),
    "force": one_by_one("SELECT redlock_force_release(%(forced)s)",
                        "SELECT redlock_acquire(%(forced)s, scope => 'session', wait => '50 ms')",
                        "SELECT redlock_release(%(forced)s)"),
    "diagnose": one_by_one("SELECT count(*) FROM redlock_diagnose()"),
}
# the others have weight 8
WEIGHTS = {"fresh": 40, "idle": 20, "questions": 2, "waiters": 1, "diagnose": 1, "force": 1, "run": 4}


def names_of_step():
    return {"fresh": f"fresh:{random.randrange(3000)}", "idle": f"idle:{random.randrange(100)}",
            "shared": f"shared:{random.randrange(20)}", "permits": f"permits:{random.randrange(10)}",
            "hot": f"hot:{random.randrange(3)}", "kept": f"kept:{random.randrange(50)}",
            "detached": f"detached:{random.randrange(50)}", "job": f"job:{random.randrange(20)}",
            "forced": f"forced:{random.randrange(5)}", "row": random.randrange(1, 10)}


class Session(threading.Thread):
    """stays: the session lives for the whole run; else it ends after some steps, and the next begins."""

    def __init__(self, work, host, stays):
        super().__init__(daemon=True)
        self.work, self.host, self.stays = work, host, stays
        self.pid = None
        self.steps, self.errors = Counter(), Counter()
        self.broken = None

    def run(self):
        try:
            while not self.work.ended.is_set():
                self.live()
        except Exception as why:  # a fault of this program
            self.broken = why

    def live(self):
        try:
            connection = psycopg2.connect(host=self.host.socket_dir, port=self.host.port, dbname="postgres",
                                          application_name="soak")
        except psycopg2.OperationalError:
            time.sleep(0.1)  # the server restarts
            return
        try:
            connection.autocommit = True
            self.pid = connection.info.backend_pid
            cursor = connection.cursor()
            cursor.execute("SET client_min_messages = error; SET redlock.on_loss = 'error'")
            kinds, weights = zip(*((kind, WEIGHTS.get(kind, 8)) for kind in STEPS_OF))
            for _ in itertools.count() if self.stays else range(STEPS):
                if self.work.ended.is_set():
                    return
                self.step(cursor, random.choices(kinds, weights)[0])
                time.sleep(random.expovariate(1 / PAUSE_S))
        except psycopg2.Error as why:
            if not connection.closed:
                raise
            self.errors[why.pgcode or "connection"] += 1
        finally:
            connection.close()

    def step(self, cursor, kind):
        self.steps[kind] += 1
        try:
            STEPS_OF[kind](cursor, names_of_step())
        except psycopg2.Error as why:
            if cursor.connection.closed:
                raise
            self.errors[why.pgcode or "client"] += 1
            cursor.execute("ROLLBACK")
            cursor.execute("SELECT redlock_release_all()")


# ---- faults ----

class Faults(threading.Thread):
    def __init__(self, work):
        super().__init__(daemon=True)
        self.work = work
        self.done = Counter()
        self.broken = None

    def run(self):
        kinds = itertools.cycle((self.flush_scripts, self.cut, self.pause, self.reload, self.restart, self.terminate))
        try:
            while not self.work.ended.wait(FAULT_S):
                fault = next(kinds)
                fault(random.choice(self.work.rig.nodes))
                self.done[fault.__name__] += 1
        except Exception as why:
            self.broken = why

    def flush_scripts(self, node):
        node.ask("SCRIPT FLUSH")

    def cut(self, node):
        node.ask("CLIENT KILL TYPE normal SKIPME yes")

    def pause(self, node):
        """Without samples: a sample asks all nodes."""
        with self.work.sampling:
            node.stop()
            time.sleep(1)
            node.go_on()

    def reload(self, _):
        host = self.work.host
        host.set("redlock.node_timeout", 400 if host.sql("SHOW redlock.node_timeout") == "500ms" else 500)

    def restart(self, _):
        """The second server."""
        directory = f"{self.work.rig.tmp}/pg.h2"
        subprocess.run(["pg_ctl", "-w", "-m", "fast", "-D", directory, "-l", directory + ".log", "restart"],
                       stdout=subprocess.DEVNULL, check=True)

    def terminate(self, _):
        """Some session of the first server that does not stay."""
        stay = [str(session.pid) for session in self.work.sessions if session.stays and session.pid]
        self.work.host.sql(f"""SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                                WHERE application_name = 'soak' AND pid NOT IN ({",".join(stay)}) LIMIT 1""")


# ---- samples ----

def private_kb(pid):
    """Without shared memory; Private_Dirty would have the pages of it that only one process uses."""
    with open(f"/proc/{pid}/smaps_rollup") as f:
        return int(re.search(r"^Anonymous:\s*(\d+)", f.read(), re.M).group(1))


def mapped_areas(pid):
    """With those of shared memory."""
    with open(f"/proc/{pid}/maps") as f:
        return sum(1 for _ in f)


def open_files(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class Work:
    def __init__(self, rig):
        self.rig = rig
        self.host = rig.hosts["h1"]
        self.ended = threading.Event()
        self.sampling = threading.Lock()
        self.sessions = [Session(self, host, number < 2) for host in rig.hosts.values() for number in range(SESSIONS)]
        self.faults = Faults(self)
        self.samples = []

    def sample(self, began):
        stays = next(s for s in self.sessions if s.stays and s.host is self.host)
        places, broker = map(int, self.host.sql("SELECT locks + releasing, broker_pid FROM redlock_stats").split("|"))
        nodes = [int(re.search(r"used_memory:(\d+)", node.ask("INFO memory")).group(1)) / 1024
                 for node in self.rig.nodes]
        self.samples.append({
            "second": round(time.monotonic() - began), "broker_kb": private_kb(broker),
            "backend_kb": private_kb(stays.pid), "broker_maps": mapped_areas(broker),
            "backend_maps": mapped_areas(stays.pid), "broker_files": open_files(broker),
            "backend_files": open_files(stays.pid), "places": places, "node_kb": round(max(nodes)),
            "steps": sum(sum(s.steps.values()) for s in self.sessions), "broker": broker, "backend": stays.pid})

    def run(self, minutes, out):
        began = time.monotonic()
        threads = (*self.sessions, self.faults)
        for thread in threads:
            thread.start()
        while not all(session.pid or session.broken for session in self.sessions):
            time.sleep(0.1)
        writer = None
        while time.monotonic() < began + 60 * minutes and not any(thread.broken for thread in threads):
            with self.sampling:
                self.sample(began)
            if writer is None:
                writer = csv.DictWriter(out, self.samples[0], lineterminator="\n")
                writer.writeheader()
            writer.writerow(self.samples[-1])
            out.flush()
            time.sleep(SAMPLE_S)
        self.ended.set()
        for thread in threads:
            thread.join(60)
            if thread.broken is not None:
                raise thread.broken
            if thread.is_alive():
                raise Missing("a session does not end")


# ---- verdict ----

def growth(samples, figure):
    """The medians of the second and of the last quarter, and whether the figure grew."""
    quarter = len(samples) // 4
    early, late = (quantile([s[figure] for s in part], .5) for part in (samples[quarter:2 * quarter], samples[-quarter:]))
    return early, late, late - early > MOST_GROWTH[figure]


def problems(samples, errors):
    found = [f"{UNITS[figure]}: from {early} to {late}" for figure in MOST_GROWTH
             for early, late, grew in [growth(samples, figure)] if grew]
    found += [f"errors {state}" for state in errors if state.startswith(("XX", "53"))]
    quarters = [samples[len(samples) * i // 4 - (i == 4)]["steps"] for i in range(5)]
    if any(4 * (end - begin) < (quarters[4] - quarters[0]) / 4 for begin, end in zip(quarters, quarters[1:])):
        found.append(f"the work nearly stood still for a quarter: {quarters} steps")
    for who in ("broker", "backend"):
        if len({s[who] for s in samples}) > 1:
            found.append(f"the {who} was replaced by another process")
    return found


def draw(path, samples):
    block = "$d << EOD\n" + "".join(
        f"{s['second'] / 60} {s['broker_kb'] / 1024} {s['backend_kb'] / 1024} {s['node_kb'] / 1024} "
        f"{s['broker_files']} {s['backend_files']} {s['places']}\n" for s in samples) + "EOD\n"
    lines = ((2, "private memory of the broker, MB"), (3, "private memory of a session, MB"), (4, "memory of a node, MB"),
             (5, "open files of the broker"), (6, "open files of a session"), (7, "used places of the lease table"))
    plots = ", ".join(f"$d using 1:{column} with lines linewidth 1.5 title '{title}'" for column, title in lines)
    subprocess.run(["gnuplot"], text=True, check=True, input=
                   "set terminal svg size 860,480 font 'sans-serif,12' background '#ffffff'\n"
                   f"set output '{path}'\nset grid y linecolor '#dddddd'\nset key outside bottom center\nset border 3\n"
                   f"set tics nomirror\nset yrange [0:*]\nset xlabel 'minutes'\n{block}plot {plots}\n")


def listed(counts):
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items()))


def write_report(tmp, work, errors, found):
    steps = sum((s.steps for s in work.sessions), Counter())
    minutes = work.samples[-1]["second"] / 60
    with open(tmp + "/machine.txt") as f:
        machine = f.read()
    verdict = "; ".join(found) if found else "nothing grew"
    summary = f"{sum(steps.values()):,} steps in {minutes:.0f} minutes: {verdict}"
    with open(tmp + "/README.md", "w") as f:
        f.write("# Memory in hours of work\n\nWritten by `bench/soak/run`. Twelve sessions on two servers call all kinds "
                "of locks, under faults; the figures are of the first server. The medians of the second and of the last "
                f"quarter of the run are compared.\n\n**{summary}.**\n\n![memory and open files](soak.svg)\n\n")
        f.write("".join(f"- {line}\n" for line in machine.splitlines()) + "\n")
        f.write("| | second quarter | last quarter | may grow by |\n|---|---:|---:|---:|\n")
        for figure, most in MOST_GROWTH.items():
            early, late, _ = growth(work.samples, figure)
            f.write(f"| {UNITS[figure]} | {early:,} | {late:,} | {most:,} |\n")
        f.write(f"\nSteps: {listed(steps)}.\n\nErrors by SQLSTATE: {listed(errors)}.\n\n"
                f"Faults: {listed(work.faults.done)}.\n")
    return summary


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tmp", required=True)
    parser.add_argument("--minutes", type=int, required=True)
    options = parser.parse_args()
    with open(os.devnull, "w") as unused:
        rig = Rig(options.tmp, unused)
    for host in rig.hosts.values():
        host.sql(SETUP)
    work = Work(rig)
    with open(options.tmp + "/soak.csv", "w", newline="") as out:
        work.run(options.minutes, out)
    errors = sum((s.errors for s in work.sessions), Counter())
    found = problems(work.samples, errors)
    draw(options.tmp + "/soak.svg", work.samples)
    summary = write_report(options.tmp, work, errors, found)
    with open(options.tmp + "/README.md") as f:
        print(*(line for line in f.read().splitlines() if not line.startswith("!")), sep="\n")
    print("soak: " + summary)
    sys.exit(1 if found else 0)


main()
