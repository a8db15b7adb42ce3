"""test/chaos/workload.py: the sessions of one host, which use locks in all ways

    python3 workload.py HOST SOCKET_DIR PORT DATA_PORT SEED PREFIX HISTORY_DIR

Each worker is a thread with a session of the host and a session of the data server.  The
worker writes one record for each acquire.  The program ends with its standard input.

Most locks are exclusive.  One lock more has readers and writers, and one has permits.  One
changes its name every few seconds, since a full node refuses new names only.

A record has the session (host, worker, pid, how), the resource, the mode ("exclusive",
"shared" or "permits"), the call (begin, end, terms), the result ("granted", "busy", or
"error" with state and message), and for a granted lock

  held      [[at, valid_until], ...]: at `at` the session saw a lease that is valid at
            least until `valid_until`; the first pair is taken right after the grant
  released  begin of the release, or of the COMMIT, that confirmed a valid lease
  returned  return of this release
  writes    [[store, value, token, begin, end], ...]: fenced writes at the host or the
            data server.  `end` is None unless the write was surely committed

All times are microseconds of CLOCK_BOOTTIME.  `begin` and `released` are taken before
the call is sent, `end` and `returned` after it returned.
"""

import random
import re
import socket
import sys
import threading
import time

import psycopg2

from history import Writer, now_us
from plan import NEW_NAME_S, PERMITS, RESOURCES


WORKERS = 5
# no statement waits longer
STATEMENT_TIMEOUT_MS = 6000

# after a token: the time, and the least validity of the lease from then on
HOLD = ", chaos_clock(), (extract(epoch FROM redlock_check('{}')) * 1e6)::bigint"


class Stopped(Exception):
    """The work is over."""


class Worker(threading.Thread):
    def __init__(self, number):
        super().__init__()
        self.host, self.sockets, self.port, self.data_port, seed, self.prefix, directory = sys.argv[1:]
        self.number = number
        self.draw = random.Random(f"{seed}/{self.prefix}/{self.host}/{number}")
        self.history = Writer(f"{directory}/worker.{self.host}{number}")
        self.connection = None
        self.data = None

    # ---- sessions ----

    def connect(self):
        while not over.is_set():
            try:
                self.connection = psycopg2.connect(
                    host=self.sockets, port=self.port, dbname="postgres", application_name="chaos",
                    options=f"-c statement_timeout={STATEMENT_TIMEOUT_MS}")
                self.connection.autocommit = True
                self.pid = self.connection.info.backend_pid
                self.on_loss = self.draw.choice(["cancel", "cancel", "error", "terminate"])
                self.sql(f"SET redlock.on_loss = {self.on_loss}")
                return
            except psycopg2.Error:
                time.sleep(0.1)
        raise Stopped

    def sql(self, statement):
        with self.connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone() if cursor.description else None

    def vanish(self, connection):
        """The client vanishes without a message."""
        try:
            with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as s:
                s.shutdown(socket.SHUT_RDWR)
        except (OSError, psycopg2.Error):
            pass

    # ---- records ----

    def begin(self, how, resource, mode="exclusive", **terms):
        self.record = {"host": self.host, "worker": self.number, "pid": self.pid, "how": how, "on_loss": self.on_loss,
                       "resource": resource, "mode": mode, **terms, "held": [], "writes": [], "released": None}
        self.record["begin"] = now_us()
        self.pending = []
        self.connection.notices.clear()

    def saw_held(self, token, at, remaining_us):
        self.record.setdefault("token", token)
        if token != self.record["token"]:
            self.record.setdefault("other_tokens", []).append(token)
        self.record["held"].append([at, at + remaining_us])

    def read_notices(self, begin):
        """Reads the notices of procedures that were called at `begin` or later."""
        for text in self.connection.notices:
            if found := re.search(r"chaos (\d+) (\d+) (\d+)", text):
                token, at, until = map(int, found.groups())
                self.saw_held(token, at, until - at)
            elif found := re.search(r"wrote (\d+) (\d+)", text):
                self.pending.append([self.host, *map(int, found.groups()), begin, None])
            elif "committed" in text:
                self.committed()
            elif "; skipped" in text:
                self.record["skipped"] = True
        self.connection.notices.clear()

    def committed(self):
        at = now_us()
        self.record["writes"] += [[*write[:-1], at] for write in self.pending]
        self.pending = []

    def released(self, begin):
        self.record.update(released=begin, returned=now_us())

    def error(self, error):
        state = error.pgcode
        message = str(error).strip()
        if state is None:
            # an error of libpq; the server's last words, if any, tell the reason
            state = "gone"
            if found := re.search(r"FATAL:  (.*)", message):
                self.record["last_words"] = found.group(1)
        self.record["error"] = {"at": now_us(), "state": state, "message": message}

    # ---- terms ----

    def terms(self):
        """Returns the limit that ends the wait, and its ms."""
        ms = self.draw.choice([50, 200, 700, 1500, 3000])
        kind = self.draw.choices(["wait", "zero", "lock_timeout", "statement_timeout"], [6, 1, 2, 2])[0]
        return {"limit": kind, "limit_ms": 0 if kind == "zero" else ms}

    def arguments(self, record_terms):
        """As SQL."""
        limit, ms = record_terms["limit"], record_terms["limit_ms"]
        arguments = f", wait => '{ms} ms'" if limit in ("wait", "zero") else ""
        for name in ("ttl", "hold_at_least", "hold_at_most", "keep_idle"):
            if record_terms.get(name):
                arguments += f", {name} => '{record_terms[name]} ms'"
        return arguments

    def hold_terms(self):
        terms = {}
        if self.draw.random() < 0.15:
            terms["ttl"] = self.draw.choice([700, 1000, 3000])
        if self.draw.random() < 0.06:
            terms["hold_at_least"] = self.draw.choice([100, 500, 1200])
        if self.draw.random() < 0.06:
            terms["hold_at_most"] = self.draw.choice([1300, 2500])
        if "hold_at_least" not in terms and "hold_at_most" not in terms and self.draw.random() < 0.4:
            terms["keep_idle"] = self.draw.choice([50, 500, 4000])
        return terms

    def set_limit(self, terms):
        if terms["limit"] in ("lock_timeout", "statement_timeout"):
            self.sql(f"SET {terms['limit']} = {terms['limit_ms']}")
            return lambda: self.sql(
                f"SET {terms['limit']} = {0 if terms['limit'] == 'lock_timeout' else STATEMENT_TIMEOUT_MS}")
        return lambda: None

    # ---- work under a lock ----

    def check(self, resource):
        self.saw_held(*self.sql(f"SELECT redlock_token('{resource}')" + HOLD.format(resource)))

    def write_outside(self, resource, token):
        """Reads, pauses, and writes at the data server, with the token and without."""
        begin = now_us()
        with self.data.cursor() as cursor:
            cursor.execute("UPDATE chaos_data SET token = %s WHERE resource = %s AND token <= %s RETURNING value",
                           (token, resource, token))
            if row := cursor.fetchone():
                cursor.execute(
                    """WITH written AS (UPDATE chaos_data SET value = %s WHERE resource = %s AND token = %s
                                        RETURNING resource, value, token)
                       INSERT INTO chaos_log SELECT * FROM written""", (row[0] + 1, resource, token))
                if cursor.rowcount:
                    self.record["writes"].append(["data", row[0] + 1, token, begin, now_us()])
            cursor.execute("SELECT unfenced FROM chaos_data WHERE resource = %s", (resource,))
            unfenced = cursor.fetchone()[0]
            cursor.execute("UPDATE chaos_data SET unfenced = %s, unfenced_writes = unfenced_writes + 1 "
                           "WHERE resource = %s", (unfenced + 1, resource))

    def write_fenced(self, resource):
        begin = now_us()
        self.sql(f"CALL chaos_fenced_write('{resource}')")
        self.read_notices(begin)

    def think(self):
        """The session does not look at the lease for long before it commits."""
        time.sleep(1 + 3 * self.draw.random())

    def work(self, resource, in_transaction):
        # some sessions hold the lock for longer than a lease is valid without a renewal
        if self.draw.random() < 0.06:
            time.sleep(0.3 + self.draw.random())
            self.check(resource)
        pieces = self.draw.choices([0, 1, 3, 20], [3, 6, 4, 1])[0]
        for _ in range(pieces):
            what = self.draw.choice(["sleep", "sleep", "check", "outside", "fenced", "nested", "caught", "pool"])
            if what == "sleep":
                time.sleep(self.draw.random() * (0.2 if pieces == 20 else 0.03))
            elif what == "outside":
                self.write_outside(resource, self.record["token"])
            elif what == "fenced":
                if not in_transaction:
                    self.sql("BEGIN")
                self.write_fenced(resource)
                if not in_transaction:
                    self.sql("COMMIT")
                    self.committed()
            elif what == "nested":
                scope = "transaction" if in_transaction else "session"
                self.sql(f"SELECT redlock_acquire('{resource}', scope => '{scope}')")
                if not in_transaction:
                    self.sql(f"SELECT redlock_release('{resource}')")
            elif what == "caught":
                other = self.draw.choice(self.resources)
                self.sql(f"""DO $$ BEGIN
                                 PERFORM redlock_acquire('{other}', wait => '100 ms');
                                 RAISE 'never mind';
                             EXCEPTION WHEN others THEN NULL;
                             END $$""")
            elif what == "pool":
                # the session leaves the queue, and keeps the lock
                self.sql("SELECT pg_advisory_unlock_all()")
            self.check(resource)

    # ---- ways to use a lock ----

    def acquire(self, resource, terms, scope, tries=False):
        """True: granted.  A refusal is an error, or False for a try."""
        record = self.record
        arguments = self.arguments(terms)
        if tries:
            if not self.sql(f"SELECT redlock_try('{resource}', scope => '{scope}'{arguments})")[0]:
                record.update(end=now_us(), result="busy")
                return False
            record["end"] = now_us()
            self.check(resource)
        else:
            self.saw_held(*self.sql(f"SELECT redlock_acquire('{resource}', scope => '{scope}'{arguments})"
                                    + HOLD.format(resource)))
            record["end"] = now_us()
        record["result"] = "granted"
        return True

    def transaction(self, resource):
        tries = self.draw.random() < 0.2
        thinks = self.draw.random() < 0.06
        # every second session loses the lease, and another session gets the lock
        hold_terms = {"ttl": 700, "hold_at_most": 500} if thinks and self.draw.random() < 0.5 else self.hold_terms()
        terms = ({"limit": "none", "limit_ms": 0} if tries else self.terms()) | hold_terms
        savepoint = self.draw.random() < 0.1
        reset = self.set_limit(terms)
        self.sql("BEGIN")
        if savepoint:
            self.sql("SAVEPOINT s")
        self.begin("try" if tries else "transaction", resource, **terms)
        if self.acquire(resource, terms, "transaction", tries):
            reset()
            if thinks:
                self.think()
                if self.draw.random() < 0.5:
                    self.write_fenced(resource)
            else:
                self.work(resource, True)
            if self.draw.random() < 0.1:
                second = self.draw.choice(self.resources)
                self.sql(f"SELECT redlock_acquire('{second}', wait => '300 ms')")
            at = now_us()
            if savepoint and self.draw.random() < 0.5:
                self.sql("ROLLBACK TO s")
                self.pending = []
                self.sql("COMMIT")
            elif self.draw.random() < 0.1:
                self.sql("ROLLBACK")
                self.pending = []
            else:
                self.sql("COMMIT")
                self.released(at)
                self.committed()
        else:
            self.sql("COMMIT")
        # outside of the transaction, so that no rollback undoes the reset
        reset()

    def session(self, resource):
        tries = self.draw.random() < 0.2
        terms = ({"limit": "none", "limit_ms": 0} if tries else self.terms()) | self.hold_terms()
        reset = self.set_limit(terms)
        self.begin("try" if tries else "session", resource, **terms)
        if self.acquire(resource, terms, "session", tries):
            reset()
            self.work(resource, False)
            at = now_us()
            how = self.draw.random()
            if how < 0.85:
                if self.sql(f"SELECT redlock_release('{resource}')")[0]:
                    self.released(at)
            elif how < 0.95:
                self.sql("DISCARD ALL")
                self.sql(f"SET redlock.on_loss = {self.on_loss}")
                self.sql(f"SET statement_timeout = {STATEMENT_TIMEOUT_MS}")
            else:
                self.connection.close()
        else:
            reset()

    def procedure(self, resource):
        runs = self.draw.random() < 0.4
        pieces = self.draw.choice([1, 3, 6])
        fenced = self.draw.choice(["true", "false"])
        terms = {"limit": "wait", "limit_ms": self.draw.choice([0, 200, 1500])} | self.hold_terms()
        self.begin("run" if runs else "call", resource, **terms)
        ms = {name: f"'{terms[name]} ms'" if terms.get(name) else "NULL"
              for name in ("ttl", "hold_at_least", "hold_at_most", "keep_idle")}
        if runs:
            self.sql(f"CALL redlock_run('{resource}', 'CALL chaos_work(''{resource}'', {pieces}, {fenced})', "
                     f"'{terms['limit_ms']} ms', {ms['ttl']}, {ms['hold_at_least']}, {ms['hold_at_most']}, "
                     f"{ms['keep_idle']})")
        else:
            self.sql(f"CALL chaos_call('{resource}', '{terms['limit_ms']} ms', {ms['ttl']}, {ms['hold_at_least']}, "
                     f"{ms['hold_at_most']}, {pieces}, {fenced})")
        self.record["end"] = now_us()
        self.read_notices(self.record["begin"])
        self.record["result"] = "busy" if self.record.get("skipped") else "granted"
        if self.record["held"]:
            self.released(self.record["held"][-1][0])

    def share(self, resource):
        """A transaction of a reader, of a writer, or with a permit."""
        mode = "permits" if resource.endswith("_permits") else self.draw.choices(["shared", "exclusive"], [3, 1])[0]
        argument = f"permits => {PERMITS}" if mode == "permits" else f"mode => '{mode}'"
        self.plain_transaction(resource, mode, argument)

    def plain_transaction(self, resource, mode="exclusive", argument="mode => 'exclusive'"):
        ms = self.draw.choice([50, 700, 3000])
        self.sql("BEGIN")
        self.begin("transaction", resource, mode, limit="wait", limit_ms=ms)
        self.saw_held(*self.sql(f"SELECT redlock_acquire('{resource}', wait => '{ms} ms', {argument})"
                                + HOLD.format(resource)))
        self.record.update(end=now_us(), result="granted")
        for _ in range(self.draw.choice([0, 1, 3])):
            time.sleep(self.draw.random() * 0.1)
            self.check(resource)
        if self.draw.random() < 0.06:
            self.think()
        at = now_us()
        self.sql("COMMIT")
        self.released(at)

    def once(self):
        self.record = None
        new = f"{self.prefix}_new{int(time.monotonic() / NEW_NAME_S)}"
        resource = self.draw.choices([*self.resources, *self.shared, new], [6, 2, 1, 2, 1, 1])[0]
        what = self.draw.choices([self.transaction, self.session, self.procedure], [5, 4, 3])[0]
        if resource in self.shared:
            what = self.share
        elif resource == new:
            what = self.plain_transaction
        timer = None
        if self.draw.random() < 0.015:
            timer = threading.Timer(self.draw.random() * 0.5, self.vanish, [self.connection])
            timer.start()
        try:
            what(resource)
        except psycopg2.Error as error:
            self.recover(error)
        if timer is not None:
            timer.cancel()
            timer.join()
            self.connection.close()  # the end may have come after all work
            if self.record is not None:
                self.record["vanished"] = True
        if self.record is not None and "begin" in self.record:
            self.history.write(self.record)
        if self.connection.closed:
            self.connect()

    def recover(self, error):
        """Writes the record, and releases all locks of the session."""
        if self.record is None:  # of a BEGIN or SET
            self.connection.close()
            return
        try:
            self.read_notices(self.record["begin"])
        except psycopg2.Error:
            pass
        record = self.record
        record.setdefault("end", now_us())
        record.setdefault("result", "granted" if record["held"] else "error")
        record["writes"] += self.pending  # perhaps committed
        self.error(error)
        if self.connection.closed:
            return
        try:
            self.sql("ROLLBACK")
            if self.draw.random() < 0.3:
                self.connection.close()
            else:
                self.sql("SELECT redlock_release_all()")
                self.sql("SET lock_timeout = 0")
                self.sql(f"SET statement_timeout = {STATEMENT_TIMEOUT_MS}")
        except psycopg2.Error:
            self.connection.close()

    def run(self):
        self.resources = [f"{self.prefix}_{n}" for n in range(RESOURCES)]
        self.shared = [f"{self.prefix}_shared", f"{self.prefix}_permits"]
        self.data = psycopg2.connect(host=self.sockets, port=self.data_port, dbname="postgres")
        self.data.autocommit = True
        try:
            self.connect()
            while not over.is_set():
                self.once()
                if self.draw.random() < 0.3:
                    time.sleep(self.draw.random() * 0.05)
            self.connection.close()
        except Stopped:
            pass


over = threading.Event()
workers = [Worker(n) for n in range(WORKERS)]
for worker in workers:
    worker.start()
sys.stdin.read()
over.set()
for worker in workers:
    worker.join()
