"""test/chaos/check.py: the rules for the histories of a round

Pure: takes records (see workload.py), faults (see chaos.py) and rows; returns violations.
Numbers in parentheses are invariants of CONTRIBUTING.md.
"""

import re
from collections import defaultdict

S = 1000000

# Margin for a busy machine.
WAIT_MARGIN_US = 3 * S
# Time until a node or server is well again after a fault: it connects again within a
# second, may have to load its data, and is in quarantine for 3 s; twice if the loss of
# data shows only in a later command.
RECOVERY_US = 8 * S
RENEWAL_RECOVERY_US = 3 * S
SILENT_HOST_US = 36 * S  # a newcomer may wait this long after the death of a server
ENTRY_US = 55 * S  # a dead server's entry lives on, and hosts read it later
# A majority that was stopped this long before a call gives the call no late answer.
ANSWER_US = 1 * S
# On a busy machine a shorter wait may end before the nodes were asked, or have answered.
SHORT_WAIT_MS = 200

NODES = 5
QUORUM = 3

EXPECTED_STATES = {"55P03", "08006", "57014", "40001", "57P01", "55000", "40P01", "57P02", "57P03", "gone"}
CRASHES = {"broker_kill", "backend_kill", "server_kill", "server_immediate", "server_fast"}
# texts of a host during its wait for the next entry of another host
WAITS = ("is still asking the nodes", "another host has not named it since", "until a moment ago its vote did not count")
SILENT = {"node_pause", "node_restart", "node_empty", "link_cut", "link_hold", "link_half_in", "link_half_out"}


class Violation:
    def __init__(self, what, resource, at, records=()):
        self.what = what
        self.resource = resource
        self.at = at
        self.records = records


def by_resource(records):
    found = defaultdict(list)
    for record in records:
        found[record["resource"]].append(record)
    return found


def granted(records):
    return [r for r in records if r["held"]]


def is_loss(record):
    """Is the error about the end of the lease?"""
    return "error" in record and re.search(
        r"the lease on redlock .* (was lost|might end)", record["error"]["message"]) is not None


# ---- faults as explanations ----

class Faults:
    def __init__(self, faults):
        self.faults = faults

    def spare(self):
        """How many nodes may be hit while a majority of each list is well.  While the lists change, some
        lists have three nodes."""
        return 1 if any(f["kind"] == "nodes_change" for f in self.faults) else NODES - QUORUM

    def during(self, begin, end):
        return [f for f in self.faults if f["t0"] <= end and f["t1"] >= begin]

    def nodes_hit(self, host, begin, end, but=None):
        """Nodes with a fault of another kind than `but`, or whose link to the host has a fault; None: to any host."""
        hit = set()
        for fault in self.during(begin, end):
            if fault["kind"] == but:
                continue
            kind, *where = fault["target"].split("/")
            if kind == "node":
                hit.add(where[0])
            elif kind == "link" and host in (where[0], None):
                hit.add(where[1])
        return hit

    def host_hit(self, host, begin, end, recovery=0):
        """Faults of the host; after a stall of the machine, no recovery is needed."""
        return [f for f in self.during(begin - recovery, end)
                if f["target"] in (f"server/{host}", f"broker/{host}")
                or (f["target"] == f"backend/{host}" and f["kind"] == "backend_kill")
                or (f["target"] == "machine" and f["t1"] >= begin)]

    def stalled_us(self, begin, end):
        """How long the machine did not run us."""
        stalls = sorted((max(f["t0"], begin), min(f["t1"], end)) for f in self.during(begin, end)
                        if f["target"] == "machine")
        total, until = 0, begin
        for t0, t1 in stalls:
            total += max(0, t1 - max(t0, until))
            until = max(until, t1)
        return total

    def set_back_us(self, host, begin, end):
        """By how much the clock of the host went back: PostgreSQL's timeouts follow this clock."""
        return sum(-f["step"] * S for f in self.during(begin, end)
                   if f["kind"] == "host_clock" and f["target"] == f"host/{host}" and f["step"] < 0)

    def hides_the_dead(self, at):
        """A dead server's entry lives on, and by a forward clock a restarted node may claim to be older."""
        return ([f for f in self.during(0, at) if f["kind"] in CRASHES]
                and [f for f in self.during(0, at) if f["kind"] == "node_clock" and f["step"] > 0])

    def waits_for_the_dead(self, at):
        """A host that has crashed, or has new lists, cannot tell restarted nodes from other nodes until a dead
        server has been silent for long enough."""
        return [f for f in self.during(at - SILENT_HOST_US, at) if f["kind"] in CRASHES]

    def came_back_alone(self, host, at):
        """The host crashed, or came back, during a change of the lists, and had only the next list then.  The
        entry of a server that died before the change lives on, with only the former list, and for longer if
        clocks of nodes are set back."""
        return [f for f in self.host_hit(host, 0, at) if f["kind"] in CRASHES and at - f["t0"] < ENTRY_US
                and any(other["kind"] == "nodes_change" for other in self.during(f["t0"], f["t1"]))]

    def session_hit(self, kind, pid, begin, end):
        return [f for f in self.during(begin, end) if f["kind"] == kind and f.get("pid") == pid]

    def nodes_silent_all_the_time(self, host, begin, end):
        silent = set()
        for fault in self.faults:
            # a restarted node answers before t1 if the busy test sees the first answer late
            until = fault.get("silent_until", fault["t1"])
            if fault["kind"] in SILENT and fault["t0"] <= begin and until >= end:
                kind, *where = fault["target"].split("/")
                if kind == "node" or where[0] == host:
                    silent.add(where[-1])
        return silent


# ---- one holder, and the order of tokens ----

def holds(records):
    """[(from, to, record)]: the lock was surely held for all of this time."""
    found = []
    for record in granted(records):
        end = record["held"][-1][0]
        if record["released"] is not None:
            end = max(end, record["released"])
        found.append((record["held"][0][0], end, record))
    return sorted(found, key=lambda hold: hold[0])


def two_holders(records):
    """(1)"""
    for resource, some in by_resource(records).items():
        last = None
        for hold in holds(some):
            if last is not None and hold[0] < last[1]:
                yield Violation(f"two holders: {last[2]['token']} until {last[1]}, {hold[2]['token']} from {hold[0]}",
                                resource, hold[0], (last[2], hold[2]))
            if last is not None and hold[2]["token"] <= last[2]["token"]:
                yield Violation(f"a later holder has the token {hold[2]['token']}, an earlier one "
                                f"{last[2]['token']}", resource, hold[0], (last[2], hold[2]))
            if last is None or hold[1] > last[1]:
                last = hold


def tokens(records, mode):
    """(2), (13): unique, and who began to ask after another had returned has a larger one.

    A hand-over asks no node: where their clocks run ahead, another host may have been
    granted the lock by then, with larger tokens."""
    for resource, some in by_resource(records).items():
        seen = {}
        some = granted(some)
        by_host = {(record["host"], record["token"]) for record in some}
        for record in some:
            if record["token"] in seen:
                yield Violation(f"token {record['token']} was given twice", resource, record["held"][0][0],
                                (seen[record["token"]], record))
            seen[record["token"]] = record
            if "other_tokens" in record:
                yield Violation(f"a holder's token changed from {record['token']} to {record['other_tokens']}",
                                resource, record["held"][0][0], (record,))
        returned = sorted(some, key=lambda r: r["held"][0][0])
        largest = None
        i = 0
        for record in sorted(some, key=lambda r: r["begin"]):
            while i < len(returned) and returned[i]["held"][0][0] < record["begin"]:
                if largest is None or returned[i]["token"] > largest["token"]:
                    largest = returned[i]
                i += 1
            handed_over = (record["host"], record["token"] - 1) in by_host
            if mode == "beyond" and handed_over:
                continue
            if largest is not None and largest["token"] >= record["token"]:
                yield Violation(f"token {record['token']} was asked for when {largest['token']} had been returned",
                                resource, record["held"][0][0], (largest, record))


def hold_at_least(records, faults):
    for resource, some in by_resource(records).items():
        all_holds = holds(some)
        for begin, end, record in all_holds:
            least = record.get("hold_at_least")
            if not least or record["released"] is None:
                continue
            until = record["begin"] + least * 1000
            if (faults.host_hit(record["host"], record["begin"], until)
                    or len(faults.nodes_hit(record["host"], record["begin"] - RECOVERY_US, until)) > faults.spare()):
                continue
            for other in all_holds:
                if end < other[0] < until and other[2] is not record:
                    yield Violation(f"granted {until - other[0]} us before the hold_at_least of {record['token']} "
                                    "was over", resource, other[0], (record, other[2]))


# ---- fenced data ----

def fenced_rows(where, rows, data, acked):
    """rows: [(resource, value, token)] of chaos_log; data: {resource: value};
    acked: [(resource, value)] that were committed for sure."""
    logs = defaultdict(dict)
    for resource, value, token in rows:
        logs[resource][value] = token
    for resource, log in logs.items():
        if sorted(log) != list(range(1, data.get(resource, 0) + 1)):
            yield Violation(f"{where}: lost update: the value is {data.get(resource)} after {len(log)} writes",
                            resource, None)
        newest = 0
        for value in sorted(log):
            if log[value] < newest:
                yield Violation(f"{where}: {log[value]} wrote {value} when {newest} had passed the fence",
                                resource, None)
            newest = max(newest, log[value])
    for resource, value in acked:
        if value not in logs[resource]:
            yield Violation(f"{where}: value {value} was committed and is gone", resource, None)


# ---- the ends of calls ----

def waits(records, faults):
    """(11): not long after its time, and not before."""
    for record in records:
        if record["result"] == "granted" or record["how"] in ("call", "run") and record["result"] == "busy":
            continue
        took = record["end"] - record["begin"]
        limit = 6 * S if record["limit"] == "none" else record["limit_ms"] * 1000
        allowed = limit + WAIT_MARGIN_US
        if (faults.host_hit(record["host"], record["begin"], record["end"], RECOVERY_US)
                or faults.session_hit("backend_pause", record["pid"], record["begin"], record["end"])):
            allowed += 15 * S
        if record["limit"] == "statement_timeout":
            allowed += faults.set_back_us(record["host"], record["begin"], record["end"])
        if took > allowed + faults.stalled_us(record["begin"], record["end"]):
            yield Violation(f"a wait of at most {limit} us ({record['limit']}) took {took} us", record["resource"],
                            record["end"], (record,))
        error = record.get("error", {})
        if error.get("state") == "55P03" and record["limit"] in ("wait", "lock_timeout") and took < limit - 5000:
            yield Violation(f"refused after {took} us, before its {record['limit']} of {limit} us was over",
                            record["resource"], record["end"], (record,))


def states(records, faults, mode):
    """Each error has a reason."""
    for record in records:
        if "error" not in record:
            continue
        error = record["error"]
        state, message = error["state"], error["message"]
        # a signal may come before the call that notices the signal
        since = record["begin"] - 1 * S
        was_short = record["limit"] in ("wait", "lock_timeout") and record["limit_ms"] <= SHORT_WAIT_MS
        if state in ("gone", "57P02", "57P03"):
            explained = (record.get("vanished")
                         or [f for f in faults.host_hit(record["host"], since, error["at"], RECOVERY_US)
                             if f["kind"] in CRASHES]
                         or faults.session_hit("backend_term", record["pid"], since, error["at"])
                         or record["on_loss"] == "terminate")
        elif is_loss(record):
            explained = True  # see losses()
        elif state == "57P01":
            explained = (faults.session_hit("backend_term", record["pid"], since, error["at"])
                         or [f for f in faults.host_hit(record["host"], since, error["at"])
                             if f["kind"] == "server_fast"])
        elif state == "57014":
            explained = ("statement timeout" in message
                         or faults.session_hit("backend_cancel", record["pid"], since, error["at"]))
        elif state == "55000":
            explained = ("the redlock broker has not asked for" in message and was_short
                         or "the redlock broker" in message
                         and faults.host_hit(record["host"], since, error["at"], RECOVERY_US)
                         or "has other settings" in message and mode == "beyond"
                         and faults.hides_the_dead(error["at"])
                         or "has other settings" in message and mode == "durable"
                         and faults.came_back_alone(record["host"], error["at"])
                         or "have left the nodes" in message)  # behind a change of nodes
        elif state == "53400":  # a broker that hangs frees no entry of the lock table
            explained = [f for f in faults.host_hit(record["host"], since, error["at"])
                         if f["kind"] == "broker_pause"]
        elif state == "40001":
            explained = "has passed the fence" in message
        elif state == "08006":
            explained = ("no quorum" in message
                         and (mode == "beyond" or was_short
                              or len(faults.nodes_hit(record["host"], since - RECOVERY_US, error["at"]))
                              > faults.spare()
                              or faults.host_hit(record["host"], since, error["at"], RECOVERY_US)
                              or any(text in message for text in WAITS) and (
                                  faults.waits_for_the_dead(since)
                                  or faults.came_back_alone(record["host"], error["at"]))))
        else:
            explained = state in EXPECTED_STATES
        if not explained:
            yield Violation(f"an error without a reason: {state} {message}", record["resource"], error["at"],
                            (record,))


def busy_without_quorum(records, faults):
    """Who could reach no majority all the time can't know that another holds it."""
    locals_ = defaultdict(list)
    for record in records:
        locals_[record["host"], record["resource"]].append(record)
    for record in records:
        message = record.get("error", {}).get("message", "")
        refused = record["result"] == "busy" or (
            not record["held"] and "held by another" in message or "could not acquire" in message)
        if not refused or " of this server " in message:  # a session of it is named
            continue
        if (record["result"] == "busy" or "The nodes did not name" in message) and any(
                other is not record and other["begin"] <= record["end"]
                and (other["error"]["at"] if "error" in other else max(other["end"], other["released"] or 0)) + S
                >= record["begin"]
                for other in locals_[record["host"], record["resource"]]):
            continue  # refused by a session of this host, or waited for one until the last moment
        if len(faults.nodes_silent_all_the_time(record["host"], record["begin"] - ANSWER_US, record["end"])) >= NODES - faults.spare():
            yield Violation("refused as held by another, without a quorum", record["resource"], record["end"],
                            (record,))


TAKEN = "another session took the lock there"


def losses(records, faults):
    """No lease is lost while a majority of the nodes, the host and its broker are well.  A full node renews its
    leases.  The key that another host could not release takes a node from the lease."""
    for record in records:
        if not is_loss(record) or record.get("hold_at_most"):
            continue
        ttl_us = record.get("ttl", 2000) * 1000
        last_seen = record["held"][-1][0] if record["held"] else record["begin"]
        since = last_seen - ttl_us - RENEWAL_RECOVERY_US
        until = record["error"]["at"]
        linked = None if TAKEN in record["error"]["message"] else record["host"]
        if ((len(faults.nodes_hit(linked, since, until)) <= faults.spare()
             or not faults.nodes_hit(linked, since, until, but="node_full"))
                and not faults.host_hit(record["host"], since, until)):
            yield Violation("a lease was lost without a reason: " + record["error"]["message"], record["resource"],
                            until, (record,))


# ---- all rules ----

def check_history(records, fault_list, mode):
    faults = Faults(fault_list)
    found = list(tokens(records, mode)) + list(waits(records, faults)) + list(states(records, faults, mode))
    found += busy_without_quorum(records, faults)
    if mode != "beyond":
        found += list(two_holders(records)) + list(losses(records, faults)) + list(hold_at_least(records, faults))
    return found


def bad_lines(log, killed_pids):
    """Lines of a server's log that tell of damage."""
    for line in log.splitlines():
        if re.search(r"PANIC|TRAP:|you don't own a lock|XX00[0-9]|stuck spinlock|corrupt", line):
            yield line
        elif found := re.search(r"\(PID (\d+)\) was terminated by signal (\d+)", line):
            if int(found.group(1)) not in killed_pids or found.group(2) != "9":
                yield line


def story(violation, records, faults):
    """The events around a violation, by time."""
    lines = [f"VIOLATION: {violation.what}", f"  resource {violation.resource}, at {violation.at}"]
    if violation.at is None:
        return lines
    first = min([violation.at] + [r["begin"] for r in violation.records]) - 3 * S
    last = max([violation.at] + [r["end"] for r in violation.records]) + S
    events = []
    for fault in faults:
        if fault["t0"] <= last and fault["t1"] >= first:
            extra = {k: v for k, v in fault.items() if k not in ("kind", "target", "t0", "t1")}
            events.append((fault["t0"], f"fault {fault['kind']} {fault['target']} until {fault['t1']} {extra}"))
    for record in records:
        if record["resource"] != violation.resource or record["end"] < first or record["begin"] > last:
            continue
        mark = "*" if any(record is r for r in violation.records) else " "
        who = (f"{mark} {record['host']}{record['worker']} pid {record['pid']} {record['how']} "
               f"{record.get('limit')} {record.get('limit_ms')}")
        terms = {k: record[k] for k in ("ttl", "hold_at_least", "hold_at_most") if k in record}
        events.append((record["begin"], f"{who} asks {terms or ''}"))
        if record["held"]:
            events.append((record["held"][0][0], f"{who} has {record['token']}, valid until {record['held'][0][1]}"))
            events.append((record["held"][-1][0], f"{who} last saw {record['token']}, valid until "
                                                  f"{record['held'][-1][1]}"))
        if record["released"]:
            events.append((record["released"], f"{who} releases {record['token']}"))
        if "error" in record:
            events.append((record["error"]["at"],
                           f"{who} ends: {record['error']['state']} {record['error']['message'][:300]!r}"))
        elif record["result"] == "busy":
            events.append((record["end"], f"{who} is refused"))
    return lines + [f"  {at} {text}" for at, text in sorted(events)]
