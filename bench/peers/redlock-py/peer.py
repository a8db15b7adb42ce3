"""redlock-py: asks the nodes one after the other, which no setting changes.

Each client has its own connection to each node: with pools shared by the clients
of a process, 16 clients made 1,100 pairs a second, with their own 1,600.
"""

import random
from importlib.metadata import version

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redlock import Redlock

import bench

# The library waits the same time again and again; each client gets a time of its
# own around this, which stands for the jitter. 2 ms: 47 pairs a second of 16
# clients on one key, 10 ms: 162, 50 ms: 538, 200 ms: 330.
RETRY_S = 0.05
NO_LIMIT = 1 << 62


def open_clients(opts, keys):
    def open_client(key):
        servers = [
            redis.Redis(
                host=host,
                port=port,
                socket_timeout=bench.NODE_TIMEOUT_S,
                socket_connect_timeout=bench.NODE_TIMEOUT_S,
                retry=Retry(NoBackoff(), 0),
            )
            for host, port in opts.nodes
        ]
        locks = Redlock(servers, retry_count=NO_LIMIT, retry_delay=RETRY_S * random.uniform(0.5, 1.5))
        return lambda: locks.lock(key, opts.ttl_ms), locks.unlock

    return {i: open_client(key) for i, key in keys.items()}


bench.main("redlock-py", f"{version('redlock-py')} redis {version('redis')}", open_clients)
