"""test/chaos/selftest.py: made-up histories: the checker must find the one fault of
each history, and nothing in the history without a fault

    python3 selftest.py
"""

import sys

import check

S = check.S


def record(begin, token=None, held=(), released=None, host="a", end=None, **more):
    found = {"host": host, "worker": 0, "pid": 1, "how": "transaction", "on_loss": "cancel", "resource": "r",
             "begin": begin, "end": end or (held[0][0] if held else begin), "limit": "wait", "limit_ms": 1000,
             "held": [list(h) for h in held], "released": released,
             "result": "granted" if held else "error", **more}
    if token:
        found["token"] = token
    return found


def error(begin, at, state, message, **more):
    return record(begin, end=at, error={"at": at, "state": state, "message": message}, **more)


GOOD = [record(10 * S, 100, [(11 * S, 13 * S)], 12 * S), record(10 * S, 200, [(12 * S + 1, 14 * S)], 13 * S, "b")]
LOST = "the lease on redlock \"r\" was lost before the commit"


def node_fault(node, t0, t1, kind="node_pause"):
    return {"kind": kind, "target": f"node/{node}", "t0": t0, "t1": t1}


NO_QUORUM = [node_fault(n, 5 * S, 30 * S) for n in range(3)]
LINK_OF_B = {"kind": "link_cut", "target": "link/b/2", "t0": 5 * S, "t1": 30 * S}
FULL = [node_fault(n, 5 * S, 30 * S, "node_full") for n in range(5)]

DOUBT = "no quorum of redlock nodes: n: it started lately, and another host has not named it since"
REFUSED = error(10 * S, 11 * S, "55000", "since host \"c\" has other settings")
CHANGE = {"kind": "nodes_change", "target": "lists/all", "t0": 5 * S, "t1": 30 * S, "from": [0, 1, 2, 3, 4], "to": [0, 3, 4]}
CRASH_IN_CHANGE = {"kind": "server_kill", "target": "server/a", "t0": 7 * S, "t1": 8 * S}

# name, records, faults, part of the violation's text; None: no fault
HISTORIES = [
    ("a good one", GOOD, [], None),
    ("two holders", [GOOD[0], record(10 * S, 200, [(11 * S + 500000, 14 * S)], 13 * S, "b")], [], "two holders"),
    ("two holders by what one saw last", [record(10 * S, 100, [(11 * S, 13 * S), (12 * S, 14 * S)]),
                                          record(11 * S, 200, [(11 * S + 900000, 13 * S)])], [], "two holders"),
    ("a token going back", [record(10 * S, 300, [(11 * S, 13 * S)], 12 * S),
                            record(13 * S, 200, [(13 * S + 1, 14 * S)], 13 * S + 2, "b")], [], "was asked for when"),
    ("a later holder with a smaller token", [record(10 * S, 300, [(11 * S, 13 * S)], 12 * S), GOOD[1]], [],
     "a later holder"),
    ("a token twice", [GOOD[0], record(13 * S, 100, [(13 * S + 1, 14 * S)], 13 * S + 2)], [], "given twice"),
    ("a token that changes", [record(10 * S, 100, [(11 * S, 13 * S)], 12 * S, other_tokens=[101])], [], "changed"),
    ("hold_at_least cut short", [record(10 * S, 100, [(10 * S + 1, 12 * S)], 10 * S + 5, hold_at_least=1000),
                                 record(10 * S, 200, [(10 * S + 500000, 12 * S)])], [], "hold_at_least"),
    ("a wait that is too long", [error(10 * S, 19 * S, "55P03", "could not acquire")], [], "took"),
    ("a wait while the machine did not run us", [error(10 * S, 50 * S, "55P03", "could not acquire")],
     [{"kind": "stall", "target": "machine", "t0": 10 * S, "t1": 30 * S},
      {"kind": "stall", "target": "machine", "t0": 20 * S, "t1": 49 * S}], None),
    ("a wait that is longer than the machine did not run us", [error(10 * S, 80 * S, "55P03", "could not acquire")],
     [{"kind": "stall", "target": "machine", "t0": 10 * S, "t1": 30 * S},
      {"kind": "stall", "target": "machine", "t0": 20 * S, "t1": 49 * S}], "took"),
    ("a statement_timeout while the clock goes back", [error(10 * S, 19 * S, "57014",
     "canceling statement due to statement timeout", limit="statement_timeout", limit_ms=50)],
     [{"kind": "host_clock", "target": "host/a", "step": -8, "t0": 10 * S, "t1": 10 * S}], None),
    ("a wait while the clock goes back", [error(10 * S, 19 * S, "55P03", "could not acquire")],
     [{"kind": "host_clock", "target": "host/a", "step": -8, "t0": 10 * S, "t1": 10 * S}], "took"),
    ("a wait that is too short", [error(10 * S, 10 * S + 400000, "55P03", "could not acquire")], [], "before its"),
    ("an error of another class", [error(10 * S, 10 * S, "XX000", "oops")], [], "without a reason"),
    ("a cancel by nobody", [error(10 * S, 10 * S, "57014", "canceling statement due to user request")], [],
     "without a reason"),
    ("a full lock table", [error(10 * S, 10 * S, "53400", "too many redlocks")], [], "without a reason"),
    ("a full lock table, by a broker that hangs", [error(10 * S, 10 * S, "53400", "too many redlocks")],
     [{"kind": "broker_pause", "target": "broker/a", "t0": 5 * S, "t1": 30 * S}], None),
    ("no quorum, with one", [error(10 * S, 10 * S, "08006", "no quorum of redlock nodes")], NO_QUORUM[:2],
     "without a reason"),
    ("no quorum", [error(10 * S, 10 * S, "08006", "no quorum of redlock nodes")], NO_QUORUM, None),
    ("busy, without a quorum", [error(10 * S, 11 * S, "55P03", "could not acquire redlock")], NO_QUORUM,
     "without a quorum"),
    ("busy, with a node that had started already", [error(10 * S, 11 * S, "55P03", "could not acquire redlock")],
     NO_QUORUM[:2] + [dict(NO_QUORUM[2], kind="node_restart", silent_until=8 * S)], None),
    ("busy, with a broker that was stopped too", [error(10 * S, 11 * S, "55P03", "could not acquire redlock")],
     NO_QUORUM + [{"kind": "broker_pause", "target": "broker/a", "t0": 5 * S, "t1": 30 * S}], "without a quorum"),
    ("a doubt about nodes without a dead host", [error(60 * S, 60 * S, "08006", DOUBT)], [], "without a reason"),
    ("a doubt about nodes that a dead host may use", [error(60 * S, 60 * S, "08006", DOUBT)],
     [{"kind": "backend_kill", "target": "backend/b", "t0": 30 * S, "t1": 30 * S}], None),
    ("a doubt about nodes that lasts too long", [error(80 * S, 80 * S, "08006", DOUBT)],
     [{"kind": "backend_kill", "target": "backend/b", "t0": 30 * S, "t1": 30 * S}], "without a reason"),
    ("no broker, with one", [error(10 * S, 11 * S, "55000", "the redlock broker is not running")], [],
     "without a reason"),
    ("refused by an entry of the dead, in a change of nodes", [REFUSED], [CHANGE, CRASH_IN_CHANGE], None),
    ("refused by an entry of the dead, after a crash that ended in the change",
     [REFUSED], [CHANGE, {**CRASH_IN_CHANGE, "t0": 4 * S, "t1": 6 * S}], None),
    ("refused, and another host crashed", [REFUSED], [CHANGE, {**CRASH_IN_CHANGE, "target": "server/c"}],
     "without a reason"),
    ("refused, and it crashed before the change", [REFUSED], [CHANGE, {**CRASH_IN_CHANGE, "t0": 3 * S, "t1": 4 * S}],
     "without a reason"),
    ("a lease lost for nothing", [record(10 * S, 100, [(11 * S, 13 * S)], error={"at": 14 * S, "state": "40001",
                                                                                "message": LOST})], NO_QUORUM[:2],
     "was lost without"),
    ("a lease lost behind another host's link", [record(10 * S, 100, [(11 * S, 13 * S)],
                                                        error={"at": 14 * S, "state": "40001", "message": LOST})],
     NO_QUORUM[:2] + [LINK_OF_B], "was lost without"),
    ("a lease lost to the key of another host whose link fails",
     [record(10 * S, 100, [(11 * S, 13 * S)],
             error={"at": 14 * S, "state": "40001", "message": LOST + " n: " + check.TAKEN})],
     NO_QUORUM[:2] + [LINK_OF_B], None),
    ("a lease lost at full nodes", [record(10 * S, 100, [(11 * S, 13 * S)],
                                           error={"at": 14 * S, "state": "40001", "message": LOST})], FULL,
     "was lost without"),
    ("a lease lost at full nodes and one that is down", [record(10 * S, 100, [(11 * S, 13 * S)],
                                                                error={"at": 14 * S, "state": "40001", "message": LOST})],
     FULL + NO_QUORUM[:1], None),
    ("a lease lost", [record(10 * S, 100, [(11 * S, 13 * S)], error={"at": 14 * S, "state": "40001",
                                                                    "message": LOST})], NO_QUORUM, None),
]

# Mode "beyond": clocks of nodes run ahead.
GRANT = record(10 * S, 100, [(11 * S, 15 * S)], 12 * S)
NEWER = record(11 * S, 200, [(11 * S + 500000, 15 * S)], 12 * S, "b")
CRASH = {"kind": "server_kill", "target": "server/c", "t0": 5 * S, "t1": 6 * S}
FORWARD = {"kind": "node_clock", "target": "node/1", "t0": 8 * S, "t1": 8 * S, "step": 600}
BEYOND = [
    ("a hand-over after another host's grant", [GRANT, NEWER, record(12 * S, 101, [(13 * S, 14 * S)], 14 * S)], [],
     None),
    ("a grant with a smaller token", [GRANT, NEWER, record(12 * S, 150, [(13 * S, 14 * S)], 14 * S)], [],
     "was asked for when"),
    ("a hand-over to another host", [GRANT, NEWER, record(12 * S, 101, [(13 * S, 14 * S)], 14 * S, "c")], [],
     "was asked for when"),
    ("refused by an entry of the dead", [REFUSED], [CRASH, FORWARD], None),
    ("refused, and nobody died", [REFUSED], [FORWARD], "without a reason"),
    ("refused, by nodes that tell their age", [REFUSED], [CRASH, {**FORWARD, "step": -3}], "without a reason"),
]

ROWS = [("r", 1, 100), ("r", 2, 100), ("r", 3, 200)]
FENCED = [
    ("good rows", ROWS, {"r": 3}, [("r", 2)], None),
    ("a lost update", ROWS, {"r": 2}, [], "lost update"),
    ("a stale writer", ROWS + [("r", 4, 150)], {"r": 4}, [], "had passed the fence"),
    ("a commit that is gone", ROWS, {"r": 3}, [("r", 4)], "is gone"),
]

LOGS = [
    ("a good log", "LOG:  server process (PID 5) was terminated by signal 9: Killed", None),
    ("a crash", "LOG:  server process (PID 5) was terminated by signal 11: Segmentation fault", "signal 11"),
    ("a kill that is not ours", "LOG:  server process (PID 6) was terminated by signal 9: Killed", "PID 6"),
    ("an assertion", "TRAP: FailedAssertion", "TRAP"),
    ("a lock that nobody owns", "WARNING:  you don't own a lock of type ExclusiveLock", "own a lock"),
]


def main():
    failed = 0

    def judge(name, texts, expected):
        nonlocal failed
        ok = any(expected in text for text in texts) if expected else not texts
        if not ok:
            failed += 1
            print(f"selftest: {name}: expected {expected}, found {texts}")

    for name, records, faults, expected in HISTORIES:
        found = check.check_history(records, faults, "durable")
        judge(name, [v.what for v in found], expected)
        for violation in found:
            check.story(violation, records, faults)
    for name, records, faults, expected in BEYOND:
        judge(name, [v.what for v in check.check_history(records, faults, "beyond")], expected)
    for name, rows, data, acked, expected in FENCED:
        judge(name, [v.what for v in check.fenced_rows("here", rows, data, acked)], expected)
    for name, log, expected in LOGS:
        judge(name, list(check.bad_lines(log, {5})), expected)
    total = len(HISTORIES) + len(BEYOND) + len(FENCED) + len(LOGS)
    return total - failed, failed


if __name__ == "__main__":
    passed, failed = main()
    print(f"{passed} passed, {failed} failed")
    sys.exit(failed > 0)
