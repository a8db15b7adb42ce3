"""test/chaos/cluster.py: the nodes, the servers, the links between them, and their
faults"""

import contextlib
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import psycopg2

from plan import HOSTS, NODES, PERSISTENCE

HERE = os.path.dirname(os.path.abspath(__file__))
WAIT_S = 60
MAX_TTL_MS = 3000
MAX_HOLD_AT_LEAST_S = 1.2
TLS_NODES = [1, 4]  # one of each program
PORT_BLOCKS = 200

claims = []  # sockets that show other runs the ports of this run


class Broken(Exception):
    """A process does not start, stop or answer."""


def wait_until(what, condition, timeout_s=WAIT_S):
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise Broken("waited in vain for " + what)
        time.sleep(0.02)


def claim_ports():
    """Returns ports, below the system's range for outgoing connections, that no other run uses."""
    first = os.getpid() % PORT_BLOCKS
    for block in (*range(first, PORT_BLOCKS), *range(first)):
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0redlock_pg chaos {block}")  # until the end of this process
        except OSError:
            claim.close()
            continue
        claims.append(claim)
        return iter(range(10240 + 100 * block, 10340 + 100 * block))
    raise Broken("other runs use all ports")


def free_ports(candidates, number):
    """Takes free ports from the candidates."""
    sockets = []
    for port in candidates:
        s = socket.socket()
        try:
            s.bind(("127.0.0.1", port))
            s.listen()
        except OSError:
            s.close()
            continue
        sockets.append(s)
        if len(sockets) == number:
            break
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def send_signal(pid, number):
    """False if there is no such process."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def state_of(pid):
    """As in ps: R runs, T is stopped, Z has ended; "": the process is gone."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


class Clock:
    """The wall clock of a process tree, by test/hostile/wrong_clock.c."""

    def __init__(self, tmp, name):
        self.path = f"{tmp}/clock.{name}"
        self.set(0)
        self.environment = {**os.environ, "LD_PRELOAD": f"{tmp}/wrong_clock.so", "WRONG_CLOCK_FILE": self.path}

    def set(self, offset_s):
        """Writes in place, since processes map the file."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(fd, struct.pack("l", offset_s), 0)
        os.close(fd)
        self.offset_s = offset_s


def programs_of_nodes():
    """Two of the nodes are Valkey, if it is there."""
    return ["redis-server"] * 3 + ["valkey-server" if shutil.which("valkey-server") else "redis-server"] * 2


class Node:
    """certificate: of a node with TLS for the hosts; the test asks it without."""

    def __init__(self, tmp, nodes_tmp, number, ports, program, certificate):
        self.number = number
        self.program = program
        self.certificate = certificate
        self.port = ports.pop()
        self.hosts_port = ports.pop() if certificate else self.port
        self.dir = f"{nodes_tmp}/redis.{number}"
        self.log = f"{tmp}/redis.{number}.log"
        self.clock = Clock(tmp, f"node{number}")
        self.process = None
        self.lock = threading.Lock()  # held by the thread that acts on the node

    def ask(self, *words):
        """Returns the reply to a command: a text, a number, or a list of these."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as s:
            s.sendall(b"*%d\r\n" % len(words) + b"".join(
                b"$%d\r\n%s\r\n" % (len(w), w) for w in (str(word).encode() for word in words)))
            return self.read_reply(s.makefile("rb"))

    def read_reply(self, file):
        line = file.readline()
        kind, rest = line[:1], line[1:].strip()
        if kind == b"$":
            return None if rest == b"-1" else file.read(int(rest) + 2)[:-2].decode()
        if kind == b"*":
            return [self.read_reply(file) for _ in range(int(rest))]
        return int(rest) if kind == b":" else line.decode().strip()

    def answers(self):
        try:
            return self.ask("PING") == "+PONG"
        except OSError:
            return False

    def start(self, persistence):
        os.makedirs(self.dir, exist_ok=True)
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.dir, "--save", "",
                 "--daemonize", "no", *PERSISTENCE[persistence], *self.tls()],
                cwd=self.dir, env=self.clock.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                restore_signals=False)  # SIGXFSZ stays ignored, as limit_files needs it
        wait_until(f"node {self.number}", self.answers)

    def tls(self):
        if not self.certificate:
            return []
        return ["--tls-port", str(self.hosts_port), "--tls-cert-file", self.certificate + ".crt",
                "--tls-key-file", self.certificate + ".key", "--tls-ca-cert-file", self.certificate + ".crt",
                "--tls-auth-clients", "no"]

    def url(self, port):
        """At the port of a link."""
        return f"{'rediss' if self.certificate else 'redis'}://127.0.0.1:{port}"

    def kill(self):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def empty(self):
        shutil.rmtree(self.dir, ignore_errors=True)

    def info(self, section, field):
        return int(re.search(rf"^{field}:(\d+)", self.ask("INFO", section), re.MULTILINE).group(1))

    def configure(self, name, value):
        """maxmemory: in bytes; 0: no limit."""
        if (reply := self.ask("CONFIG", "SET", name, value)) != "+OK":
            raise Broken(f"node {self.number}: {reply}")

    def largest_file(self):
        return max(os.path.getsize(os.path.join(path, name)) for path, _, names in os.walk(self.dir) for name in names)

    def limit_files(self, size):
        """Writes beyond this size fail (EFBIG), as they do on a full disk."""
        resource.prlimit(self.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def keys_of_locks(self):
        """{key: ms to live}, without counters and markers."""
        found = {}
        for key in self.ask("KEYS", "redlock:*"):
            if "\0" not in key:
                found[key] = self.ask("PTTL", key)
        return {key: ms for key, ms in found.items() if ms != -2}


class Server:
    def __init__(self, tmp, name, port, node_urls=None, authority=None):
        self.tmp = tmp
        self.name = name
        self.port = port
        self.dir = f"{tmp}/pg.{name}"
        self.log = f"{self.dir}.log"
        self.node_urls = node_urls
        self.clock = Clock(tmp, f"host_{name}")
        self.process = None
        self.lock = threading.Lock()  # held by the thread that starts or stops the server
        self.stopped = set()
        self.reloads = False  # SIGHUP ends a server that has just begun to start
        subprocess.run(["initdb", "-D", self.dir, "-A", "trust", "-N", "-E", "UTF8", "--no-locale"], check=True,
                       stdout=subprocess.DEVNULL)
        with open(self.dir + "/postgresql.conf", "a") as f:
            f.write(f"""
                listen_addresses = ''
                unix_socket_directories = '{tmp}/tmp'
                port = {port}
                fsync = off
                dynamic_shared_memory_type = mmap
                cluster_name = '{name}'
                log_line_prefix = '%m [%p] %e %q%a '
                max_connections = 60
                shared_buffers = 32MB
                autovacuum = off
                deadlock_timeout = 200ms
                """)
            if node_urls:
                f.write(f"""
                    shared_preload_libraries = 'redlock_pg'
                    redlock.nodes = '{", ".join(node_urls)}'
                    redlock.ttl = '2s'
                    redlock.max_ttl = '{MAX_TTL_MS} ms'
                    redlock.node_timeout = '200ms'
                    """)
            if authority:
                f.write(f"redlock.tls_ca_file = '{authority}'\n")

    def set_nodes(self, now, then):
        """Sets the lists, by numbers of nodes; the file keeps the former lists in earlier lines."""
        urls = [", ".join(self.node_urls[n] for n in nodes) for nodes in (now, then)]
        with open(self.dir + "/postgresql.conf", "a") as f:
            f.write(f"redlock.nodes = '{urls[0]}'\nredlock.nodes_next = '{urls[1]}'\n")
        if self.reloads:
            self.reload()

    def reload(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGHUP)

    def connect(self):
        return psycopg2.connect(host=self.tmp + "/tmp", port=self.port, dbname="postgres", connect_timeout=10,
                                application_name="chaos conductor")

    def sql(self, statement):
        connection = self.connect()
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description else None
        finally:
            connection.close()

    def answers(self):
        try:
            return self.sql("SELECT 1") == [(1,)]
        except psycopg2.Error:
            return False

    def start(self):
        self.reloads = False
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(["postgres", "-D", self.dir], env=self.clock.environment, cwd=self.dir,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until(f"server {self.name}", lambda: self.answers() or self.process.poll() is not None)
        if self.process.poll() is not None:
            raise Broken(f"server {self.name} does not start: " + " / ".join(self.log_text().splitlines()[-3:]))
        self.reloads = True
        self.reload()  # the lists may have changed since the server read its configuration

    def stop(self, number):
        """Signals the postmaster: SIGINT is a fast shutdown, SIGQUIT an immediate shutdown."""
        self.go_on()
        self.process.send_signal(number)
        try:
            self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            raise Broken(f"server {self.name} does not stop")

    def children(self):
        """{pid: title} of the postmaster's children."""
        found = {}
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/stat") as f:
                    parent = int(f.read().rpartition(")")[2].split()[1])
                if parent == self.process.pid:
                    with open(f"/proc/{entry}/cmdline") as f:
                        found[int(entry)] = f.read()
            except (OSError, IndexError):
                pass
        return found

    def broker(self):
        return next((pid for pid, title in self.children().items() if "redlock broker" in title), None)

    def backend(self, pick):
        """Returns a session of a worker, or None; `pick` is from 0 to 1."""
        pids = sorted(pid for pid, title in self.children().items() if "[local]" in title)
        return pids[int(pick * len(pids))] if pids else None

    def stop_postmaster(self):
        """Stops the postmaster first, so that no new process starts meanwhile."""
        if send_signal(self.process.pid, signal.SIGSTOP):
            wait_until(f"server {self.name} to be stopped", lambda: state_of(self.process.pid) in "TZ")

    def pause(self):
        self.stop_postmaster()
        self.stopped = {self.process.pid, *self.children()}
        for pid in self.stopped:
            send_signal(pid, signal.SIGSTOP)

    def go_on(self):
        for pid in self.stopped:
            send_signal(pid, signal.SIGCONT)
        self.stopped = set()

    def kill(self):
        """As a power failure: kills all processes at once, so that none blocks the next server's start."""
        self.stop_postmaster()
        children = self.children()
        for pid in children:
            send_signal(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        for pid in children:
            wait_until(f"the end of process {pid} of server {self.name}", lambda: state_of(pid) in "Z")

    def log_text(self):
        with open(self.log, errors="replace") as f:
            return f.read()


class Links:
    def __init__(self, node_ports, candidates):
        ports = free_ports(candidates, len(HOSTS) * len(NODES))
        pairs = []
        self.ports = {}
        self.index = {}
        for host in HOSTS:
            self.ports[host] = []
            for node in NODES:
                self.index[host, node] = len(pairs)
                self.ports[host].append(ports[len(pairs)])
                pairs.append(f"{ports[len(pairs)]}:{node_ports[node]}")
        self.lock = threading.Lock()
        self.process = subprocess.Popen([sys.executable, HERE + "/proxy.py", *pairs], text=True, bufsize=1,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.process.stdout.readline() != "ready\n":
            raise Broken("the links don't start")

    def set(self, host, node, *state):
        with self.lock:
            print(self.index[host, node], *state, file=self.process.stdin, flush=True)

    def watch_stalls(self, path):
        with self.lock:
            print("stalls", path, file=self.process.stdin, flush=True)

    def stop(self):
        self.process.stdin.close()
        self.process.wait()


class Cluster:
    def __init__(self, tmp, nodes_tmp, certificate):
        self.tmp = tmp
        candidates = claim_ports()
        ports = free_ports(candidates, 2 * len(NODES) + len(HOSTS) + 1)
        self.nodes = [Node(tmp, nodes_tmp, n, ports, program, certificate if n in TLS_NODES else None)
                      for n, program in zip(NODES, programs_of_nodes())]
        self.links = Links([node.hosts_port for node in self.nodes], candidates)
        self.hosts = {name: Server(tmp, name, ports.pop(),
                                   [node.url(self.links.ports[name][node.number]) for node in self.nodes],
                                   certificate and certificate + ".crt") for name in HOSTS}
        self.data = Server(tmp, "data", ports.pop())
        self.stalls = None

    def servers(self):
        return [*self.hosts.values(), self.data]

    def start(self):
        with open(HERE + "/schema.sql") as f:
            schema = f.read()
        for server in self.servers():
            server.start()
            if server is not self.data:
                server.sql("CREATE EXTENSION redlock_pg")
                server.sql(f"CREATE FUNCTION chaos_clock() RETURNS bigint AS '{self.tmp}/chaos_clock' LANGUAGE C")
            for statement in schema.split("\n-- end of statement\n"):
                if server is not self.data or "PROCEDURE" not in statement:
                    server.sql(statement)

    def watch_stalls(self, path):
        if self.stalls is not None:
            self.stalls.kill()
            self.stalls.wait()
        self.stalls = path and subprocess.Popen([sys.executable, HERE + "/stalls.py", path + ".machine"])
        if path:
            self.links.watch_stalls(path + ".links")

    def fresh_nodes(self, persistence):
        for node in self.nodes:
            node.kill()
            node.empty()
            node.clock.set(0)
            node.start(persistence)

    def wait_ready(self, timeout_s=WAIT_S):
        for host in self.hosts.values():
            wait_until(f"the nodes of host {host.name}", lambda: host.sql(
                "SELECT count(*) FROM redlock_nodes WHERE state = 'ready'") == [(len(NODES),)], timeout_s)

    def stop(self):
        """Ends all that is left, by force."""
        self.watch_stalls(None)
        for server in self.servers():
            if server.process is not None and server.process.poll() is None:
                server.kill()
        for node in self.nodes:
            node.kill()
        self.links.stop()
