'use strict';
// @sesamecare-oss/redlock (the maintained descendant of node redlock v5) over one
// ioredis connection to each node.
const { createRequire } = require('node:module');
const { main, connect, measure, insist } = require('../lib/bench.js');

const installed = createRequire(process.env.PEER_BUILD + '/package.json');
const { Redlock } = installed('@sesamecare-oss/redlock');

main(async (opts) => {
    const conns = await connect(installed('ioredis'), opts);
    const redlock = new Redlock(conns, { retryCount: 0 });
    await measure('sesamecare-redlock', `${opts.pinned['@sesamecare-oss/redlock']} ioredis ${opts.pinned.ioredis}`, opts,
        (key) => insist(opts, () => redlock.acquire([key], opts.ttl_ms)),
        (lock) => lock.release());
});
