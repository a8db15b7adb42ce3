'use strict';
// Takes and gives back locks as standard input says; see bench/peers/README.md.
//
// `using` as in the library's README: it extends the lock, and its signal tells of a
// lock that could not be extended.
const { createRequire } = require('node:module');
const readline = require('node:readline');
const { parseArgs } = require('node:util');

const HOLD_WAIT_MS = 10000;
const RETRY_PAUSE_MS = 20;

const installed = createRequire(process.env.PEER_BUILD + '/package.json');
const { default: Redlock } = installed('redlock');
const Redis = installed('ioredis');
const { values } = parseArgs({ options: { nodes: { type: 'string' }, 'ttl-ms': { type: 'string' } } });

const connections = values.nodes.split(',').map((node) => {
    const connection = new Redis({
        host: node.split(':')[0], port: Number(node.split(':')[1]), commandTimeout: 500, connectTimeout: 500,
        maxRetriesPerRequest: 0, enableOfflineQueue: false, retryStrategy: () => 100,
    });
    connection.on('error', () => {});
    return connection;
});
const ttl = Number(values['ttl-ms']);
const redlock = new Redlock(connections, { retryCount: 0, automaticExtensionThreshold: ttl / 2 });
redlock.on('error', () => {});
const held = new Map();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function lock(key) {
    const end = Date.now() + HOLD_WAIT_MS;
    for (;;) {
        let granted = false;
        try {
            await redlock.using([key], ttl, async (signal) => {
                granted = true;
                await new Promise((release) => {
                    held.set(key, { signal, release });
                    console.log(key, 'granted');
                });
            });
            return;
        } catch {
            if (granted) return;
        }
        if (Date.now() > end) {
            console.log(key, 'refused');
            return;
        }
        await sleep(Math.random() * RETRY_PAUSE_MS);
    }
}

readline.createInterface({ input: process.stdin }).on('line', (line) => {
    const [command, key] = line.split(' ');
    const mine = held.get(key);
    if (command === 'lock') {
        lock(key);
    } else if (command === 'check') {
        console.log(key, mine && !mine.signal.aborted ? 'valid' : 'lost');
    } else {
        held.delete(key);
        if (mine) mine.release();
        console.log(key, 'released');
    }
}).on('close', () => process.exit(0));
console.log('ready');
