#!/usr/bin/env python3
"""bench/scale/model.py: the model of docs/design/scaling.md, and the flushes of fresh-locks.md

  bench/scale/model.py           writes the tables of the pages, and bench/scale/results/README.md
  bench/scale/model.py --check   fails if they differ from the figures

The figures are those of bench/scale/run.  Rows of several servers, and of nodes at a distance,
only check predictions.
"""

import csv
import os
import re
import statistics
import sys
from collections import defaultdict

HERE = os.path.dirname(os.path.abspath(__file__))
RESULTS = HERE + "/results"
PAGES = [HERE + "/../../docs/design/" + name for name in ("scaling.md", "fresh-locks.md")]
PARTS = ("pairs", "flush", "distance", "rest", "many")
NODES = 5
NEAR = "distance 0 ms, 1"
CORES = 2  # of the machine of the checks
DISTANCES_MS = (0.2, 1, 5, 20, 100)
CORE_US = 1e6  # processor time of a core in a second
BEAT_S = 10
COUNTER_S = 7200  # LUA_COUNTER_KEEP_MS
TTL_S = 30
NODE_TIMEOUT_MS = 500  # redlock.node_timeout
NEW_NAMES_AN_HOUR = 10000  # redlock.max_new_names_per_hour
GIB = 2 ** 30
FULL = 0.7  # more of a core leaves no room for peaks


class Figures:
    def __init__(self):
        self.rounds = defaultdict(list)
        self.machine = {}
        self.of_part = defaultdict(dict)
        for part in PARTS:
            with open(f"{RESULTS}/{part}.csv") as f:
                for workload, contender, count, _, metric, value in list(csv.reader(f))[1:]:
                    self.rounds[workload, int(count), metric].append(float(value))
                    self.of_part[part].setdefault((workload, int(count)), {})[metric] = True
            with open(f"{RESULTS}/{part}.machine.txt") as f:
                self.machine[part] = dict(line.rstrip("\n").split(": ", 1) for line in f)

    def get(self, workload, count, metric):
        return statistics.median(self.rounds[workload, count, metric])

    def counts(self, workload):
        return sorted({count for of, count, _ in self.rounds if of == workload})


def fitted(rows):
    """Least squares of relative errors: the coefficients of (x, y) with y = sum of coefficient * x."""
    rows = [([x / y for x in xs], 1) for xs, y in rows]
    n = len(rows[0][0])
    # the normal equations, by elimination
    equations = [[sum(xs[i] * xs[j] for xs, _ in rows) for j in range(n)] + [sum(xs[i] * y for xs, y in rows)]
                 for i in range(n)]
    for i in range(n):
        for k in range(n):
            if k != i:
                factor = equations[k][i] / equations[i][i]
                equations[k] = [a - factor * b for a, b in zip(equations[k], equations[i])]
    return [equations[i][n] / equations[i][i] for i in range(n)]


class Model:
    def __init__(self, f):
        self.f = f
        rows = []
        for workload, metric, nodes in (("cost", "redis_us", NODES), ("many pairs", "node_us", 1)):
            for count in f.counts(workload):
                for us, calls, wakes in zip(*(f.rounds[workload, count, m] for m in (metric, "calls", "wakes"))):
                    rows.append(([1, calls, wakes], us / nodes))
        # processor time of a node for a pair, for each call of the script, and to wake up
        self.pair_us, self.call_us, self.wake_us = fitted(rows)
        # the median of a pair without distance
        self.alone_ms = f.get(NEAR, 1, "pair_p50_us") / 1000 - f.get(NEAR, 1, "trip_ms")
        # at rest, in a second: a node, and each host by its beats and checks of connections.  A few servers cost
        # less than a node's own use varies, so the beats are those of 1,000 hosts.
        few = f.counts("rest")[0]
        self.host_us = (f.get("many beats", 1000, "node_us") / BEAT_S
                        + f.get("rest", few, "pings_per_s") / few * self.wake_us)
        self.idle_us = f.get("rest", few, "node_us_per_s") - few * self.host_us
        self.broker_rest_us = statistics.mean(f.get("rest", hosts, "broker_us_per_s") / hosts for hosts in f.counts("rest"))

        self.lease_bytes = f.get("memory", 10000, "lease_bytes")
        self.counter_bytes = f.get("memory", 10000, "counter_bytes")
        self.renewal_us = f.get("renewals", 10000, "node_us")

    def of_server(self, sessions, metric):
        return self.f.get("cost", sessions, metric)

    def node_us(self, servers, sessions):
        """Of a node for a pair; a node wakes up once for several servers."""
        return (self.pair_us + self.call_us * self.of_server(sessions, "calls")
                + self.wake_us * self.of_server(sessions, "wakes") / servers)

    def busy_node_us(self, hosts):
        """Of a busy node for a pair.  One host sends many commands at once; those of many hosts come each by itself."""
        return self.f.get("many pairs", hosts, "node_us") if hosts > 1 else self.node_us(1, 64)

    def rest_share(self, hosts):
        return (self.idle_us + self.host_us * hosts) / CORE_US

    def node_limit(self, hosts):
        return CORE_US * (1 - self.rest_share(hosts)) / self.busy_node_us(hosts)

    def broker_limit(self, sessions=64):
        return CORE_US / self.of_server(sessions, "broker_us")

    def predict(self, hosts, sessions, distance_ms):
        """Pairs a second of all hosts, the median pair in ms, and what bounds the pairs."""
        by_part = {"sessions": hosts * sessions / (distance_ms + self.alone_ms) * 1000,
                   "nodes": self.node_limit(hosts), "brokers": hosts * self.broker_limit(sessions)}
        first = min(by_part, key=by_part.get)
        return by_part[first], hosts * sessions / by_part[first] * 1000, first


# ---- text ----

def number(value):
    if isinstance(value, (str, int)):
        return str(value)
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{2 if abs(value) < 1 else 1 if abs(value) < 10 else 0}f}"


def rounded(value):
    """Two digits, for a prediction."""
    value = float(f"{value:.2g}")
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def percent(value):
    return f"{100 * value:.{0 if value >= .1 else 1}f} %"


def plural(count, what):
    return f"{count:,} {what}" + "s" * (count != 1)


def both(predicted, measured):
    return f"{number(predicted)} / {number(measured)}"


def difference(predicted, measured):
    return f"{round(100 * (predicted / measured - 1)):+d} %"


def table(heads, rows):
    return "\n".join(["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"] +
                     ["| " + " | ".join(map(number, row)) + " |" for row in rows])


def measured(m):
    machines = m.f.machine.values()
    loads = [float(of[when].split()[0]) for of in machines for when in ("load before", "load after")]
    all_of = lambda what: ", ".join(sorted({of[what] for of in machines}))
    return (f"Measured at {all_of('redlock_pg')}, {all_of('date')}: {all_of('processor')}, Redis {m.f.machine['pairs']['Redis']}. The load "
            f"of the machine before and after each part was {min(loads):.1f} to {max(loads):.1f}.")


def coefficients(m):
    f = m.f
    rows = [(plural(count, "session"), both(m.node_us(1, count), f.get("cost", count, "redis_us") / NODES),
             f.get("cost", count, "broker_us"), f.get("cost", count, "backends_us"), f.get("cost", count, "calls"),
             f.get("cost", count, "wakes")) for count in (1, 4, 16, 64)]
    calls, wakes = f.get("many pairs", 1000, "calls"), f.get("many pairs", 1000, "wakes")
    rows.append(("1,000 connections", both(m.pair_us + m.call_us * calls + m.wake_us * wakes, f.get("many pairs", 1000, "node_us")),
                 "–", "–", calls, wakes))
    return f"""A node needs for a pair, in µs:

```
node = {m.pair_us:.1f} + {m.call_us:.1f} * calls + {m.wake_us:.1f} * wakes
```

""" + table(("for a pair, µs", "node: formula / measured", "broker", "backend", "calls", "wakes"), rows)


def per_thing(m):
    f = m.f
    many = f.counts("many beats")[-1]
    at_rest = lambda metric: f.get("rest", 16, metric) / 16
    executed = at_rest("commands_per_s") - at_rest("calls_per_s") - at_rest("pings_per_s")
    return table(("for each", "a node", "a broker"), [
        ("held lease, with its counter", f"{number(m.lease_bytes)} bytes", "–"),
        ("one of `redlock.max_locks`", "–", f"{number(f.get('memory', 100000, 'shared_bytes'))} bytes of shared memory"),
        ("counter alone, for two hours", f"{number(m.counter_bytes)} bytes", "–"),
        ("renewal, three in a ttl", f"{number(m.renewal_us)} µs", f"{number(f.get('renewals', 10000, 'broker_us'))} µs"),
        ("host at rest, each second", f"{number(m.host_us)} µs; {at_rest('calls_per_s'):.1f} calls, which execute {executed:.1f} commands; "
         f"{at_rest('pings_per_s'):.1f} `PING`; {number(at_rest('bytes_per_s'))} bytes", f"{number(m.broker_rest_us)} µs"),
        (f"beat among {many:,} hosts", f"{number(f.get('many beats', many, 'node_us'))} µs", "–"),
        ("host and a connection", f"{number(f.get('many beats', many, 'host_bytes') / 1024)} kB", "–")])


def flush(m):
    f = m.f
    rows = [(plural(count, "session"), f.get("cost", count, "pairs_per_s"), f.get("flush", count, "pairs_per_s"),
             f.get("cost", count, "pair_p50_us") / 1000, f.get("flush", count, "pair_p50_us") / 1000,
             f.get("cost", count, "calls"), f.get("flush", count, "calls")) for count in (1, 4, 16, 64)]
    return (f"The disk's median flush took {f.get('flush', 1, 'flush_us') / 1000:.2f} ms ({m.f.machine['flush']['Redis'].split(', ')[-1]}).\n\n"
            + table(("one server", "pairs a second, memory", "disk", "median pair, ms, memory", "disk", "calls for a pair, memory", "disk"), rows))


def waiters(m):
    f, rows = m.f, []
    for count in f.counts("waiting"):
        hosts = count + 1
        more = lambda metric: (f.get("waiting", count, metric) - f.get("rest", hosts, metric)) / count
        rows.append((count, more("calls_per_s"), more("node_us_per_s"), f.get(f"turns {hosts}", hosts, "calls"),
                     f.get(f"turns {hosts}", hosts, "bytes"), f.get(f"turns {hosts}", hosts, "redis_us") / NODES))
    crowd = f.counts("many waiting")[-1]
    rows.append((f"{crowd:,}", f.get("many waiting", crowd, "commands_per_s") / crowd, "–", "–", "–", "–"))
    return table(("hosts that wait for one lock", "calls a second of each, at a node", "µs a second of each", "calls for a grant",
                  "bytes", "µs"), rows)


def check_servers(m):
    f, rows = m.f, []
    for count in (2, 8, 16):
        for sessions in (1, 4):
            seen = lambda metric: f.get(f"servers {count}", count * sessions, metric)
            node, broker, client = m.node_us(count, sessions), m.of_server(sessions, "broker_us"), m.of_server(sessions, "client_us")
            all_seen = seen("redis_us") + seen("broker_us") + seen("client_us")
            other = (seen("machine_us") - all_seen) * seen("pairs_per_s") / CORE_US
            pairs = (CORES - other) * CORE_US / (NODES * node + broker + client)
            compared = ((node, seen("redis_us") / NODES), (broker, seen("broker_us")), (pairs, seen("pairs_per_s")))
            cells = [f"{both(*of)} ({difference(*of)})" for of in compared]
            rows.append((f"{count} servers, {plural(sessions, 'session')} each", *cells, f"{other:.1f}"))
    return table(("predicted / measured (error)", "node, µs", "broker, µs", "pairs a second", "cores of other work"), rows)


def check_distance(m):
    f, rows = m.f, []
    for workload, count in sorted(f.of_part["distance"], key=lambda w: (float(w[0].split()[1]), w[0], w[1])):
        if workload == NEAR:
            continue
        ms, servers = re.match(r"distance ([\d.]+) ms, (\d+)", workload).groups()
        trip, seen = f.get(workload, count, "trip_ms"), f.get(workload, count, "pair_p50_us") / 1000
        predicted = trip + m.alone_ms
        rate = (count / predicted * 1000, f.get(workload, count, "pairs_per_s"))
        rows.append((f"{ms} ms, {plural(int(servers), 'server')}", count, f"{trip:.2f}", f"{predicted:.2f} / {seen:.2f} ({difference(predicted, seen)})",
                     f"{both(*rate)} ({difference(*rate)})"))
    return f"`median = round trip + {m.alone_ms:.2f} ms`\n\n" + table(
        ("predicted / measured (error)", "sessions", "round trip, ms", "median pair, ms", "pairs a second"), rows)


def limits(m):
    rows = []
    for hosts in (1, 10, 100, 1000):
        nodes, brokers = m.node_limit(hosts), hosts * m.broker_limit()
        limit = min(nodes, brokers)
        rows.append((f"{hosts:,}", percent(m.rest_share(hosts)), rounded(nodes), rounded(brokers),
                     "broker" if brokers < nodes else "nodes", rounded(limit / hosts), rounded(FULL * limit / hosts),
                     f"{limit * (m.f.get('many pairs', 1000, 'bytes') if hosts > 1 else m.of_server(64, 'bytes')) * 8 / 1e6:.0f}"))
    return table(("hosts", "a node's core at rest", "limit of a node", "of all brokers", "ends first", "of each host",
                  f"at {100 * FULL:.0f} %", "Mbit/s at a node"), rows)


def predictions(m):
    rows = []
    for hosts in (10, 100, 1000):
        for sessions in (1, 16):
            row = [f"{hosts:,} hosts, {plural(sessions, 'session')} each"]
            for distance in DISTANCES_MS:
                pairs, ms, first = m.predict(hosts, sessions, distance)
                text = f"{rounded(pairs)} / {rounded(ms) if ms < NODE_TIMEOUT_MS else 'fails'}"
                row.append(text if first == "sessions" else f"**{text}**")
            rows.append(row)
    return "Pairs a second of all hosts / median in ms. Bold: the nodes are the bound. `fails`: commands wait longer "
    "than `redlock.node_timeout`, and nodes count as silent.\n\n" + table(
        ["nodes away"] + [f"{distance:g} ms" for distance in DISTANCES_MS], rows)


def busy(m):
    """How busy the node was in the replays that give the limits."""
    shares = [f"{percent(m.f.get('many pairs', count, 'node_share'))} with {count:,}" for count in m.f.counts("many pairs")]
    return (f"The replays kept a node busy for {', '.join(shares)} connections; the limits extrapolate to 100 %. The limit of "
            "1,000 hosts uses the measured cost, which exceeds the formula's.")


def ends(m):
    service_ms = m.busy_node_us(1000) / 2 / 1000
    limit = m.node_limit(1000)
    return f"""- **Processor**: for one host the broker's core, at {rounded(m.broker_limit())} pairs a second; for many hosts the nodes' cores, at {rounded(limit)}.
- **Memory**: with a new name for each lock, memory ends before the core. {rounded(GIB / m.counter_bytes / COUNTER_S)} new names a second fill a GiB with counters; {rounded(limit)} need {rounded(limit * COUNTER_S * m.counter_bytes / GIB)} GiB. By default [each role of a host](../reference/nodes.md#memory-of-the-nodes) may bring in {NEW_NAMES_AN_HOUR:,} new names an hour, or {NEW_NAMES_AN_HOUR / 3600:.1f} a second.
- **Held leases**: with a ttl of {TTL_S} s, {rounded(CORE_US / m.renewal_us * TTL_S / 3)} leases of one host fill a node's core with renewals, and {rounded(GIB / m.lease_bytes)} fill a GiB. With the default ttl of 10 s a third as many do. Renewals of hosts with few leases share no calls, and cost up to {number(m.pair_us + m.call_us)} µs.
- **Latency**: at 90 % of a node's core a command waits {rounded(0.9 * service_ms / 0.2)} ms on average, so the distance decides until the core is full."""


def verdict(m):
    limit = m.node_limit(1000)
    return (f"1,000 hosts at rest use {percent(m.rest_share(1000))} of a node's core. The rest of the core takes {rounded(limit)} pairs a second: "
            f"{rounded(limit / 1000)} of each host, all the time, or {rounded(FULL * limit / 1000)} at {100 * FULL:.0f} % of the core. "
            f"100 hosts have {rounded(FULL * m.node_limit(100) / 100)} each at {100 * FULL:.0f} %. An idle lease needs only renewals. "
            "So a rate of fresh locks needs several sets, not a number of hosts; and memory for new names ends before this rate.")


def summary(m):
    f = m.f
    text = ["# Figures of bench/scale/run", "", "Written by `bench/scale/model.py`. [Scaling](../../../docs/design/scaling.md) has the model. "
            "Medians over the rounds; the least and the most in brackets. µs, calls, bytes and wakes are for a pair, unless their names say otherwise."]
    for part in PARTS:
        text += ["", f"## {part}", ""] + [f"- {name}: {value}" for name, value in f.machine[part].items()]
        metrics = {}
        for (workload, count), of in f.of_part[part].items():
            for metric in of:
                if not re.search("_(p95|p99|max)_us$|^(jain|smaller_share|acquire_p50_us)$", metric):
                    metrics.setdefault((workload, count), []).append(metric)
        by_heads = defaultdict(list)
        for (workload, count), heads in metrics.items():
            cells = []
            for metric in heads:
                values = f.rounds[workload, count, metric]
                spread = f" ({number(min(values))}–{number(max(values))})" if len(values) > 1 else ""
                cells.append(number(statistics.median(values)) + spread)
            by_heads[tuple(heads)].append([workload, count] + cells)
        for heads, rows in by_heads.items():
            text += ["", table(("", "count") + heads, rows)]
    return "\n".join(text) + "\n"


TABLES = {of.__name__: of for of in (measured, coefficients, per_thing, flush, waiters, check_servers, check_distance, limits, busy,
                                     predictions, ends, verdict)}


def main():
    m = Model(Figures())
    written = [(RESULTS + "/README.md", summary(m))]
    for path in PAGES:
        with open(path) as f:
            page = f.read()
        for name in re.findall(r"^<!-- (\w+) -->$", page, re.M):
            text = TABLES[name](m)
            page = re.sub(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", lambda found: found[1] + text + "\n" + found[2], page, flags=re.S)
        written.append((path, page))
    stale = False
    for path, text in written:
        old = ""
        if os.path.exists(path):
            with open(path) as f:
                old = f.read()
        if text != old:
            stale = True
            if "--check" not in sys.argv:
                with open(path, "w") as f:
                    f.write(text)
    if stale and "--check" in sys.argv:
        sys.exit("stale: run bench/scale/model.py")


main()
