"""bench/scale/crowd_of_hosts.py: one node, used like 1,000 hosts would

The machine has no room for 1,000 servers.  So a real host takes and releases a lock and
sends a beat, while MONITOR shows its commands.  This program repeats these commands on
many connections with other names, and reads what the node needs for them.
"""

import re
import select
import socket
import time

from rig import Missing, cpu_of_ns, script_calls, sleeps_of

SECONDS = 2
BEATS_S = 10  # a host beats once in this time


def words_of(line):
    """The words of a command in a line of MONITOR."""
    quoted = re.findall(r'"((?:[^"\\]|\\.)*)"', line)
    return [word.encode("latin1").decode("unicode_escape").encode("latin1") for word in quoted]


def packed(words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class Captured:
    """The commands of a real host for a pair, and for a beat."""

    NAME = b"captured"

    def __init__(self, rig):
        self.node = rig.nodes[0]
        host = rig.hosts["h1"]
        monitor = socket.create_connection(("127.0.0.1", self.node.port), 60)
        monitor.sendall(b"MONITOR\r\n")
        lines = monitor.makefile("r", encoding="latin1")
        host.sql(f"SELECT redlock_acquire('{self.NAME.decode()}', scope => 'session'), redlock_release('{self.NAME.decode()}')")
        self.acquire = self.release = self.beat = None
        while not (self.acquire and self.release and self.beat):
            words = words_of(lines.readline())
            if len(words) < 5 or words[0].upper() != b"EVALSHA":
                continue
            if words[3] == b"beat":
                self.beat = words
            elif self.NAME in words[4]:
                setattr(self, words[4].split(b"\0")[0].decode(), words)
        monitor.close()

    def pair(self, number):
        """The two commands of a pair, for a lock of its own."""
        return [packed([word.replace(self.NAME, b"many:%07d" % number) for word in words])
                for words in (self.acquire, self.release)]

    def beat_of(self, number):
        """The beat of another host, with its own id and name."""
        words = list(self.beat)
        words[4] = b"%016x" % number
        words[6] = b"host%d\0" % number + words[6].split(b"\0", 1)[1]
        return packed(words)


class Connections:
    def __init__(self, node, count):
        self.epoll = select.epoll()
        self.sockets = {}
        for _ in range(count):
            s = socket.create_connection(("127.0.0.1", node.port), 60)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.sockets[s.fileno()] = s
            self.epoll.register(s, select.EPOLLIN)

    def answered(self, timeout_s):
        for fd, _ in self.epoll.poll(timeout_s):
            yield fd, self.sockets[fd].recv(65536)

    def close(self):
        for s in self.sockets.values():
            s.close()


def memory_used(node):
    return int(re.search(r"used_memory:(\d+)", node.ask("INFO memory")).group(1))


def look(node):
    commands, reads, size = node.counters()
    return {"at": time.monotonic(), "node_us": cpu_of_ns(node.pid) / 1e3, "calls": script_calls(commands),
            "reads": reads, "wakes": sleeps_of(node.pid), "bytes": size}


def pairs(captured, count):
    """Each connection acquires and releases a lock of its own, again and again."""
    connections = Connections(captured.node, count)
    commands = {fd: captured.pair(number) for number, fd in enumerate(connections.sockets)}
    step = dict.fromkeys(commands, 0)
    done = 0
    for fd, s in connections.sockets.items():
        s.sendall(commands[fd][0])
    before, done_before, ends = None, 0, time.monotonic() + 0.5
    while True:
        now = time.monotonic()
        if now > ends:
            if before:
                break
            before, done_before, ends = look(captured.node), done, now + SECONDS
        for fd, answer in connections.answered(1):
            if not answer.startswith(b"*1\r\n:1" if step[fd] else b"*1\r\n$"):
                raise Missing(f"answer to {'release' if step[fd] else 'acquire'}: {answer!r}")
            done += step[fd]
            step[fd] = 1 - step[fd]
            connections.sockets[fd].sendall(commands[fd][step[fd]])
    after = look(captured.node)
    connections.close()
    took = after.pop("at") - before.pop("at")
    used = {key: (value - before[key]) / (done - done_before) for key, value in after.items()}
    return {"pairs_per_s": (done - done_before) / took, "node_share": (after["node_us"] - before["node_us"]) / 1e6 / took,
            **used}


def beats(captured, hosts):
    """Each host beats twice, in even intervals.  The first beat of a host is not counted."""
    empty = memory_used(captured.node)
    connections = Connections(captured.node, hosts)
    order = list(connections.sockets.items())
    answer_bytes = 0
    for turn in (1, 2):
        before, began = look(captured.node), time.monotonic()
        for number, (fd, s) in enumerate(order):
            time.sleep(max(0, began + number * BEATS_S / hosts - time.monotonic()))
            s.sendall(captured.beat_of(number + 1))
            for _, answer in connections.answered(1):
                if answer.startswith(b"-"):
                    raise Missing(f"answer to a beat: {answer!r}")
                answer_bytes = len(answer)
    after, full = look(captured.node), memory_used(captured.node)
    connections.close()
    return {"node_us": (after["node_us"] - before["node_us"]) / hosts, "host_bytes": (full - empty) / hosts,
            "calls": (after["calls"] - before["calls"]) / hosts, "answer_bytes": answer_bytes}
