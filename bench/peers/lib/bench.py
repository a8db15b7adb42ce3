"""The half that the Python peers share: options, clients, measuring, the line of JSON.

One interpreter runs Python code on one core however many threads it has, so the
clients are spread over one worker process for each core. A worker's clients are
threads, or coroutines where the peer opens asynchronous ones.
"""

import argparse
import asyncio
import inspect
import json
import logging
import math
import multiprocessing
import os
import resource
import sys
import threading
import time

NODE_TIMEOUT_S = 0.5
OPEN_S = 0.5
DRAIN_S = 5
ERROR_PAUSE_S = 0.01

# Buckets grow by 1%, so a percentile is off by 0.5% at most.
BUCKETS = 2200
LOG_GROWTH = math.log(1.01)

# Latencies span the workers' clocks, which are one clock of the machine.
now = time.monotonic


class Tally:
    def __init__(self, clients):
        self.pair = [0] * BUCKETS
        self.acquire = [0] * BUCKETS
        self.per_client = [0] * clients
        self.errors = 0
        self.first_error = None
        self.cpu_s = 0

    def add(self, client, begun, held, done):
        self.acquire[bucket(held - begun)] += 1
        self.pair[bucket(done - begun)] += 1
        self.per_client[client] += 1

    def fail(self, error):
        self.errors += 1
        self.first_error = self.first_error or f"{type(error).__name__}: {error}"

    def merge(self, other):
        for name in ("pair", "acquire", "per_client"):
            setattr(self, name, [a + b for a, b in zip(getattr(self, name), getattr(other, name))])
        self.errors += other.errors
        self.first_error = self.first_error or other.first_error
        self.cpu_s += other.cpu_s


def bucket(seconds):
    return min(BUCKETS - 1, round(math.log(max(seconds * 1e6, 1)) / LOG_GROWTH))


def percentiles(counts):
    def percentile(p):
        left = sum(counts) * p
        for i, n in enumerate(counts):
            left -= n
            if left <= 0 < n:
                return round(1.01**i)
        return None

    return {"p50": percentile(0.5), "p95": percentile(0.95), "p99": percentile(0.99)}


def options():
    parser = argparse.ArgumentParser(prog="run", allow_abbrev=False)
    parser.add_argument("--nodes", required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--keys", choices=("own", "one"), required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warmup", type=float, default=1)
    parser.add_argument("--ttl-ms", type=int, default=10000)
    parser.add_argument("--host-id", default="host")
    opts = parser.parse_args()
    opts.nodes = [(host, int(port)) for host, port in (node.rsplit(":", 1) for node in opts.nodes.split(","))]
    return opts


def run_thread(client, i, tally, start, end):
    acquire, release = client
    while (begun := now()) < end:
        try:
            lock = acquire()
            held = now()
            release(lock)
            done = now()
            if start <= done < end:
                tally.add(i, begun, held, done)
        except Exception as error:
            if start <= now() < end:
                tally.fail(error)
            time.sleep(ERROR_PAUSE_S)


async def run_coroutine(client, i, tally, start, end):
    acquire, release = client
    while (begun := now()) < end:
        try:
            lock = await acquire()
            held = now()
            await release(lock)
            done = now()
            if start <= done < end:
                tally.add(i, begun, held, done)
        except Exception as error:
            if start <= now() < end:
                tally.fail(error)
            await asyncio.sleep(ERROR_PAUSE_S)


def cpu_s():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def work_threads(clients, tally, start, end):
    threads = [
        threading.Thread(target=run_thread, args=(client, i, tally, start, end), daemon=True)
        for i, client in clients.items()
    ]
    for thread in threads:
        thread.start()
    time.sleep(max(0, start - now()))
    tally.cpu_s = -cpu_s()
    time.sleep(max(0, end - now()))
    tally.cpu_s += cpu_s()
    # Let every client give its lock back, or the next round would wait for it.
    for thread in threads:
        thread.join(max(0, end + DRAIN_S - now()))


async def work_coroutines(clients, tally, start, end):
    tasks = [asyncio.create_task(run_coroutine(client, i, tally, start, end)) for i, client in clients.items()]
    await asyncio.sleep(max(0, start - now()))
    tally.cpu_s = -cpu_s()
    await asyncio.sleep(max(0, end - now()))
    tally.cpu_s += cpu_s()
    await asyncio.wait(tasks, timeout=DRAIN_S)


def worker(peer, opts, open_clients, mine, start, end, results):
    logging.disable(logging.CRITICAL)
    tally = Tally(opts.clients)
    keys = {i: "bench:one" if opts.keys == "one" else f"bench:{peer}:{opts.host_id}:{i}" for i in mine}
    try:
        if inspect.iscoroutinefunction(open_clients):

            async def body():
                await work_coroutines(await open_clients(opts, keys), tally, start, end)

            asyncio.run(asyncio.wait_for(body(), end + DRAIN_S + 1 - now()))
        else:
            work_threads(open_clients(opts, keys), tally, start, end)
    except Exception as error:
        tally.fail(error)
    results.put(tally)
    # A thread that a dead node holds up must not hold up the process.
    os._exit(0)


def main(peer, version, open_clients):
    """open_clients(opts, keys: {client: key}) -> {client: (acquire, release)}"""
    opts = options()
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    start = now() + OPEN_S + opts.warmup
    end = start + opts.seconds
    workers = min(len(os.sched_getaffinity(0)), opts.clients)
    for w in range(workers):
        mine = range(w, opts.clients, workers)
        fork.Process(target=worker, args=(peer, opts, open_clients, mine, start, end, results), daemon=True).start()

    total = Tally(opts.clients)
    giving_up = threading.Timer(end + DRAIN_S + 3 - now(), lambda: (print("a worker did not end", file=sys.stderr), os._exit(1)))
    giving_up.daemon = True
    giving_up.start()
    for _ in range(workers):
        total.merge(results.get())
    line = {
        "peer": peer,
        "version": version,
        "clients": opts.clients,
        "keys": opts.keys,
        "seconds": opts.seconds,
        "pairs": sum(total.per_client),
        "errors": total.errors,
        "first_error": total.first_error,
        "pair_us": percentiles(total.pair),
        "acquire_us": percentiles(total.acquire),
        "per_client": total.per_client,
        "cpu_s": round(total.cpu_s, 6),
    }
    print(json.dumps(line, separators=(",", ":")), flush=True)
    os._exit(0)
