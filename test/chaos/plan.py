"""test/chaos/plan.py: makes the plan of faults from a seed

Each round has a mode.  The mode decides which faults occur, and so which guarantees must hold:

  calm       durable nodes; two of the five, the links to them, and sessions are
             disturbed: no lease may be lost
  durable    nodes that forget nothing; all kinds of faults but loss of data; wall
             clocks of hosts jump, and clocks of nodes go back
  forgetful  nodes without persistence: each restart loses all data
  flushed    nodes of each persistence are emptied, by FLUSHALL or between stop and start, or
             evict keys; servers do not crash, since a server that has never seen a node cannot notice
             (docs/how-to/recover-a-quorum.md)
  beyond     as durable, with wall clocks of nodes and hosts that jump for hours: two
             holders are possible, but fenced data must not suffer
"""

import random

MODES = ["durable", "calm", "flushed", "beyond", "forgetful"]
HOSTS = ["a", "b", "c"]
NODES = [0, 1, 2, 3, 4]
RESOURCES = 3
PERMITS = 2
NEW_NAME_S = 5

# options of a node
PERSISTENCE = {"durable": ["--appendonly", "yes", "--appendfsync", "always"],
               "everysec": ["--appendonly", "yes", "--appendfsync", "everysec"],
               "forgetful": ["--appendonly", "no"]}

# kind: weight in the draw
NODE_FAULTS = {"node_pause": 5, "node_restart": 5, "node_full": 3}
DISK = {"node_disk_full": 3}
LINK_FAULTS = {"link_delay": 4, "link_cut": 4, "link_hold": 4, "link_half_in": 2, "link_half_out": 2}
SESSION_FAULTS = {"backend_pause": 5, "backend_cancel": 5, "backend_term": 5}
BROKER_FAULTS = {"broker_term": 4, "broker_pause": 4}
PAUSES = {"server_pause": 3}
CRASHES = {"broker_kill": 1, "backend_kill": 1, "server_kill": 1, "server_immediate": 1, "server_fast": 1}
DATA_LOSS = {"node_flush": 6, "node_empty": 4}
EVICTION = {"node_evicts": 2}
NOTICED_S = 13  # hosts look every 5 s, at the end too; then a quarantine of max_ttl
CLOCKS = {"host_clock": 3, "node_clock": 3}


def weights(mode, persistence):
    found = {**NODE_FAULTS, **LINK_FAULTS, **SESSION_FAULTS}
    if persistence != "forgetful":
        found |= DISK
    if mode != "calm":
        found |= {**BROKER_FAULTS, **PAUSES}
    if mode in ("durable", "forgetful", "beyond"):
        found |= CRASHES
    if mode == "flushed":
        found |= {**DATA_LOSS, **EVICTION}
    if mode == "forgetful":
        found["node_restart"] *= 2
    if mode in ("durable", "beyond"):
        found |= CLOCKS
    return found


def duration(draw, kind):
    if kind in ("node_flush", "backend_cancel", "backend_term", "backend_kill", "broker_term", "broker_kill",
                "host_clock", "node_clock"):
        return 0
    if kind in ("server_immediate", "server_fast", "server_kill"):
        return draw.choice([0, 0.5, 3])
    if kind in EVICTION:
        return draw.choice([1.5, 2.5, 4])
    return draw.choice([0.05, 0.3, 0.7, 1.5, 2.5, 4])


def clock_step(draw, mode, kind):
    """In seconds.  PostgreSQL's timers follow the wall clock, and would be late after a large
    step back; late timers are not the subject."""
    if mode == "beyond":
        return draw.choice([-3, 2, 600, 4000, 20000] if kind == "host_clock" else [-20000, -3, 2, 600, 20000])
    return draw.choice([-2, -1, 1, 30, 300]) if kind == "host_clock" else -1


def faults_of_round(seed, number, mode, seconds):
    """Returns a list of faults, by time.  Faults on one target don't overlap."""
    draw = random.Random(f"{seed}/{number}/{mode}")
    chances = weights(mode, persistence(seed, number, mode))
    nodes = draw.sample(NODES, 2) if mode == "calm" else NODES
    mean_pause_s = draw.choice([0.25, 0.6, 1.2] if mode not in ("flushed", "forgetful") else [0.4, 0.7])
    busy_until = {}
    clock_of = {}
    crashed_at = {}
    forgot_at = -10
    faults = []
    at = 0.5
    while at < seconds:
        at += draw.expovariate(1 / mean_pause_s)
        kind = draw.choices(list(chances), list(chances.values()))[0]
        where = kind.split("_")[0]
        # most nodes must forget at once to do harm
        forgets = kind in DATA_LOSS or kind in EVICTION or (kind == "node_restart" and mode == "forgetful")
        forgets = forgets and at > forgot_at + 6  # so that nodes vote again between two losses
        how_many = draw.choices([1, 2, 3, 5], [2, 1, 4, 3] if forgets else [14, 3, 2, 2])[0]
        forgot_at = at if forgets else forgot_at
        if where == "node":
            targets = [f"node/{n}" for n in draw.sample(nodes, min(how_many, len(nodes)))]
        elif where == "link":
            host = draw.choice(HOSTS)
            targets = [f"link/{host}/{n}" for n in draw.sample(nodes, min(how_many, len(nodes)))]
        else:
            targets = [f"{where}/{draw.choice(HOSTS)}"]
        fault = {"at": round(at, 3), "kind": kind, "for": duration(draw, kind), "pick": round(draw.random(), 4)}
        step = clock_step(draw, mode, kind) if where in ("node", "host") else 0
        for target in targets:
            if busy_until.get(target, 0) > at:
                continue
            if kind.endswith("_clock"):
                offset = clock_of.get(target, 0) + step
                if mode != "beyond" and where == "node" and offset < -3:
                    continue
                # at most 11 hours off
                if mode == "beyond" and where == "node" and abs(offset) > 40000:
                    continue
                if where == "host" and not -3 <= offset <= (30000 if mode == "beyond" else 1500):
                    continue
                fault["step"] = step
                clock_of[target] = offset
            if kind in CRASHES:
                host = target.split("/")[1]
                # a server that only restarts tests nothing
                if crashed_at.get(host, -10) > at - 7:
                    continue
                crashed_at[host] = at
            busy_until[target] = at + fault["for"] + 0.3 + (NOTICED_S if kind in EVICTION else 0)
            faults.append({**fault, "target": target})
    return [fault for fault in faults if fault["at"] < seconds]


def persistence(seed, number, mode):
    if mode == "flushed":
        return random.Random(f"{seed}/{number}/persistence").choice(list(PERSISTENCE))
    return "forgetful" if mode == "forgetful" else "durable"


def modes_of_run(seed, rounds):
    draw = random.Random(f"{seed}/modes")
    modes = []
    while len(modes) < rounds:
        some = MODES[:]
        draw.shuffle(some)
        modes += some
    return modes[:rounds]
