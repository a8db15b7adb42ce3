'use strict';
// The half that the node peers share: options, clients, measuring, the line of
// JSON. A peer gives only what is its own: how to open, acquire and release.

const NODE_TIMEOUT_MS = 500;
const DRAIN_MS = 5000;
const OPEN_MS = 2000;
const ERROR_PAUSE_MS = 10;
const RETRY_PAUSE_MS = 100;

// Buckets grow by 1%, so a percentile is off by 0.5% at most.
class Histogram {
    constructor() {
        this.counts = new Uint32Array(2200);
        this.total = 0;
    }

    add(us) {
        this.counts[Math.min(2199, Math.round(Math.log(Math.max(us, 1)) / Math.log(1.01)))]++;
        this.total++;
    }

    percentile(p) {
        let left = this.total * p;
        for (let i = 0; i < this.counts.length && this.total; i++) {
            left -= this.counts[i];
            if (left <= 0) return Math.round(Math.pow(1.01, i));
        }
        return null;
    }

    summary() {
        return { p50: this.percentile(0.5), p95: this.percentile(0.95), p99: this.percentile(0.99) };
    }
}

function options() {
    const { values } = require('node:util').parseArgs({
        options: {
            nodes: { type: 'string' },
            clients: { type: 'string' },
            keys: { type: 'string' },
            seconds: { type: 'string' },
            warmup: { type: 'string', default: '1' },
            'ttl-ms': { type: 'string', default: '10000' },
            'host-id': { type: 'string', default: 'host' },
        },
    });
    const opts = {
        nodes: (values.nodes || '').split(',').filter(Boolean).map((node) => {
            const at = node.lastIndexOf(':');
            return { host: node.slice(0, at), port: Number(node.slice(at + 1)) };
        }),
        clients: Number(values.clients),
        keys: values.keys,
        seconds: Number(values.seconds),
        warmup: Number(values.warmup),
        ttl_ms: Number(values['ttl-ms']),
        host_id: values['host-id'],
        pinned: require(process.env.PEER_BUILD + '/package.json').dependencies,
    };
    if (!opts.nodes.length || !(opts.clients > 0) || !(opts.seconds > 0) || !['own', 'one'].includes(opts.keys))
        throw new Error('usage: run --nodes host:port,... --clients N --keys own|one --seconds S'
            + ' [--warmup S] [--ttl-ms MS] [--host-id X]');
    return opts;
}

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// One connection to each node. A node that does not answer must neither hold up
// the start nor gather commands while it is away: its commands fail at once or
// after NODE_TIMEOUT_MS.
//
// Auto-pipelining writes what one turn of the event loop gathered at once: 16
// clients on their own keys make 7,100 pairs a second with it and 3,400 without.
// One client has nothing to gather, and clients who wait for one key lose by it
// (1,400 pairs a second with, 1,900 without).
async function connect(Redis, opts) {
    const conns = opts.nodes.map((node) => new Redis({
        ...node,
        commandTimeout: NODE_TIMEOUT_MS,
        connectTimeout: NODE_TIMEOUT_MS,
        maxRetriesPerRequest: 0,
        enableOfflineQueue: false,
        retryStrategy: () => NODE_TIMEOUT_MS,
        enableAutoPipelining: opts.clients > 1 && opts.keys === 'own',
    }));
    const ready = conns.map((conn) => new Promise((resolve) => {
        conn.on('error', () => {});
        conn.on('ready', resolve);
    }));
    await Promise.race([Promise.all(ready), sleep(OPEN_MS)]);
    return conns;
}

// Acquire with no limit. The library's own retries (retryCount -1) keep the votes
// that a failed attempt won until their TTL: with two processes on one key no
// client got the lock in 4 s. With retryCount 0 every failed attempt gives its
// votes back, and 16 clients make 1,200 to 1,900 pairs a second. A mean pause of
// 50 ms beat 2, 5, 20 and 100: what waiters ask costs the holder more than what
// they wait.
//
// On its own key a client has nobody to wait for: a failure is an error to count.
async function insist(opts, attempt) {
    if (opts.keys === 'own') return attempt();
    for (;;) {
        try {
            return await attempt();
        } catch (error) {
            if (error.name !== 'ExecutionError') throw error;
            await sleep(Math.random() * RETRY_PAUSE_MS);
        }
    }
}

async function measure(peer, version, opts, acquire, release) {
    const pair = new Histogram(), acquired = new Histogram();
    const per_client = new Array(opts.clients).fill(0);
    let measuring = false, stopping = false, errors = 0, first_error = null;

    async function client(i) {
        const key = opts.keys === 'one' ? 'bench:one' : `bench:${peer}:${opts.host_id}:${i}`;
        while (!stopping) {
            const start = performance.now();
            try {
                const lock = await acquire(key);
                const held = performance.now();
                await release(lock);
                if (measuring) {
                    acquired.add((held - start) * 1000);
                    pair.add((performance.now() - start) * 1000);
                    per_client[i]++;
                }
            } catch (error) {
                if (measuring) {
                    errors++;
                    first_error = first_error || String(error.message || error);
                }
                await sleep(ERROR_PAUSE_MS);
            }
        }
    }

    const clients = per_client.map((_, i) => client(i));
    await sleep(opts.warmup * 1000);
    const cpu = process.cpuUsage(), start = performance.now();
    measuring = true;
    await sleep(opts.seconds * 1000);
    measuring = false;
    const seconds = (performance.now() - start) / 1000, used = process.cpuUsage(cpu);

    // Let every client give its lock back, or the next round would wait for it.
    stopping = true;
    await Promise.race([Promise.all(clients), sleep(DRAIN_MS)]);
    console.log(JSON.stringify({
        peer, version, clients: opts.clients, keys: opts.keys, seconds,
        pairs: per_client.reduce((sum, n) => sum + n, 0), errors, first_error,
        pair_us: pair.summary(), acquire_us: acquired.summary(), per_client,
        cpu_s: (used.user + used.system) / 1e6,
    }));
    process.exit(0);
}

function main(body) {
    Promise.resolve().then(() => body(options())).catch((error) => {
        console.error(String(error.message || error));
        process.exit(1);
    });
}

module.exports = { main, connect, measure, insist };
