"""pottery's AIORedlock, or its Redlock of threads when PEER_THREADS is set.

Neither is the better one everywhere. AIORedlock asks the nodes without a thread
for each and makes twice the pairs of Redlock, but waits for the answer of every
node, a dead one's too; Redlock goes on with the majority.

The library's pause between tries, random in 0 to 200 ms, stays: 16 clients on one
key made 64, 146 and 334 pairs a second with at most 2, 50 and 200 ms.
"""

import os
from importlib.metadata import version

from pottery import AIORedlock, Redlock
from redis import Redis
from redis.asyncio import Redis as AIORedis
from redis.asyncio.retry import Retry as AIORetry
from redis.backoff import NoBackoff
from redis.retry import Retry

import bench


def masters(opts, redis, retry):
    return {
        redis(
            host=host,
            port=port,
            socket_timeout=bench.NODE_TIMEOUT_S,
            socket_connect_timeout=bench.NODE_TIMEOUT_S,
            retry=retry(NoBackoff(), 0),
        )
        for host, port in opts.nodes
    }


def open_threads(opts, keys):
    nodes = masters(opts, Redis, Retry)

    def open_client(key):
        lock = Redlock(key=key, masters=nodes, auto_release_time=opts.ttl_ms / 1000)
        return lock.acquire, lambda _: lock.release()

    return {i: open_client(key) for i, key in keys.items()}


async def open_coroutines(opts, keys):
    nodes = masters(opts, AIORedis, AIORetry)

    def open_client(key):
        lock = AIORedlock(key=key, masters=nodes, auto_release_time=opts.ttl_ms / 1000)
        return lock.acquire, lambda _: lock.release()

    return {i: open_client(key) for i, key in keys.items()}


peer_version = f"{version('pottery')} redis {version('redis')}"
if os.environ.get("PEER_THREADS"):
    bench.main("pottery-threads", peer_version, open_threads)
else:
    bench.main("pottery", peer_version, open_coroutines)
