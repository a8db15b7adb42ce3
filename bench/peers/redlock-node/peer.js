'use strict';
// node redlock v5 over one ioredis connection to each node.
//
// A library of promises on one thread: more connections to a node would only
// cost more system calls.
const { createRequire } = require('node:module');
const { main, connect, measure, insist } = require('../lib/bench.js');

const installed = createRequire(process.env.PEER_BUILD + '/package.json');
const { default: Redlock } = installed('redlock');

main(async (opts) => {
    const conns = await connect(installed('ioredis'), opts);
    const redlock = new Redlock(conns, { retryCount: 0 });
    await measure('redlock-node', `${opts.pinned.redlock} ioredis ${opts.pinned.ioredis}`, opts,
        (key) => insist(opts, () => redlock.acquire([key], opts.ttl_ms)),
        (lock) => lock.release());
});
